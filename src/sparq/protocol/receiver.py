"""Bytes in, frames out: the client's side of a connection.

1. ``Receiver`` reads what nsqd says (``i32 size | i32 type | data``), ``LengthReceiver`` what
   nsqlookupd says (``i32 size | data``, no type).
2. However the bytes are cut into chunks, the frames are the same. What a chunk leaves unfinished
   is copied and looked at again when enough has come: time is linear.
3. A size is checked before anything is kept for it. After a ``FrameError`` nothing on the
   connection can be trusted; its owner closes it.
"""

import struct
from collections.abc import Iterator
from typing import Final

from sparq.protocol.frames import FRAME_HEADER_SIZE, MESSAGE_HEADER_SIZE

_SIZE: Final = struct.Struct(">i")
_FRAME: Final = struct.Struct(">ii")
_MESSAGE: Final = struct.Struct(">qH16s")
_HTTP: Final = b"HTTP"


class FrameError(Exception):
    """What arrived is no frame that this connection may have."""


def decode_message(data: bytes) -> tuple[int, int, bytes, bytes]:
    """(timestamp in ns, attempts, id, body) of a message frame's data.

    Raises:
        FrameError: the data are too short for a message.
    """
    if len(data) < MESSAGE_HEADER_SIZE:
        raise FrameError(f"a message of {len(data)} bytes has no room for its header")
    timestamp_ns, attempts, message_id = _MESSAGE.unpack_from(data)
    return timestamp_ns, attempts, message_id, data[MESSAGE_HEADER_SIZE:]


class _Inflow:
    """What has arrived and is not consumed: a chunk and a place in it, or a tail that waits."""

    __slots__ = ("at", "data", "need", "tail")

    def __init__(self) -> None:
        self.data = b""
        self.at = 0
        self.tail = bytearray()
        self.need = 0

    def feed(self, data: bytes) -> None:
        """Adds a chunk; `data` becomes something to read once `need` bytes are there."""
        tail = self.tail
        if self.at < len(self.data):  # not all was consumed
            self.data = self.data[self.at :] + data
        elif not tail:
            self.data = data
        elif len(tail) + len(data) < self.need:
            tail += data
            return
        else:
            self.data = b"".join((tail, data))
            self.tail = bytearray()
        self.at = 0

    def wait_for(self, need: int) -> None:
        """What is left cannot be read before `need` bytes of it are there."""
        if self.at < len(self.data):
            self.tail += memoryview(self.data)[self.at :]
            self.need = need
        self.data = b""
        self.at = 0

    def take(self) -> bytes:
        """All that is not consumed; nothing is left."""
        rest = bytes(self.tail) + self.data[self.at :]
        self.data, self.at, self.tail, self.need = b"", 0, bytearray(), 0
        return rest


class Receiver:
    """Reads the frames that nsqd sends.

    Args:
        max_frame_bytes: the largest size a frame may declare.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._inflow = _Inflow()

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the connection."""
        self._inflow.feed(data)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """The frames that are there in full: (type, data) of each.

        Raises:
            FrameError: the bytes are no frame, after those before it were given.
        """
        inflow, size_max = self._inflow, self._max_frame_bytes
        while True:
            data, at = inflow.data, inflow.at
            if len(data) - at < FRAME_HEADER_SIZE:
                inflow.wait_for(FRAME_HEADER_SIZE)
                return
            size, frame_type = _FRAME.unpack_from(data, at)
            if not 4 <= size <= size_max:
                raise _not_a_frame(data[at : at + 4], size, size_max)
            end = at + 4 + size
            if end > len(data):
                inflow.wait_for(4 + size)
                return
            inflow.at = end
            yield frame_type, data[at + FRAME_HEADER_SIZE : end]

    def take_rest(self) -> bytes:
        """What was fed behind the last frame given: an upgrade hands it to the new layer."""
        return self._inflow.take()


class LengthReceiver:
    """Reads the replies that nsqlookupd sends.

    Args:
        max_reply_bytes: the largest size a reply may declare.
    """

    def __init__(self, max_reply_bytes: int) -> None:
        self._max_reply_bytes = max_reply_bytes
        self._inflow = _Inflow()

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the connection."""
        self._inflow.feed(data)

    def replies(self) -> Iterator[bytes]:
        """The replies that are there in full.

        Raises:
            FrameError: the bytes are no reply, after those before it were given.
        """
        inflow, size_max = self._inflow, self._max_reply_bytes
        while True:
            data, at = inflow.data, inflow.at
            if len(data) - at < 4:
                inflow.wait_for(4)
                return
            (size,) = _SIZE.unpack_from(data, at)
            if not 0 <= size <= size_max:
                raise _not_a_frame(data[at : at + 4], size, size_max)
            end = at + 4 + size
            if end > len(data):
                inflow.wait_for(4 + size)
                return
            inflow.at = end
            yield data[at + 4 : end]


def _not_a_frame(head: bytes, size: int, size_max: int) -> FrameError:
    if head == _HTTP:
        return FrameError("the peer answers in HTTP: this seems to be its HTTP port")
    return FrameError(f"a frame of size {size} is not allowed, at most {size_max} are")
