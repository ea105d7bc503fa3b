"""Bytes in, frames out: the client's side of a connection.

1. ``Receiver`` parses the frames that nsqd sends (``i32 size | i32 type | data``).
2. Splitting the bytes into chunks differently does not change the frames. The unfinished rest of a
   chunk is copied and parsed again when enough bytes have arrived: time is linear.
3. A size is checked before memory is used for it. After a ``FrameError`` no data of the connection
   can be trusted; its owner closes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from sparq.protocol.layout import FRAME_HEADER_SIZE, FRAME_MESSAGE, MESSAGE_HEADER_SIZE, OK

_FRAME: Final = struct.Struct(">ii")
_MESSAGE: Final = struct.Struct(">qH16s")
_MESSAGE_FRAME: Final = struct.Struct(">iiqH")
_ID_AT: Final = _MESSAGE_FRAME.size
_BODY_AT: Final = FRAME_HEADER_SIZE + MESSAGE_HEADER_SIZE
_HTTP: Final = b"HTTP"


class FrameError(Exception):
    """The received bytes are not a frame that is allowed on this connection."""


def decode_message(data: bytes) -> tuple[int, int, bytes, bytes]:
    """Decode a message frame's data to (timestamp in ns, attempts, id, body).

    Raises:
        FrameError: the data are too short for a message.
    """
    if len(data) < MESSAGE_HEADER_SIZE:
        raise FrameError(f"message frame of {len(data)} bytes is too short for its header")
    timestamp_ns, attempts, message_id = _MESSAGE.unpack_from(data)
    return timestamp_ns, attempts, message_id, data[MESSAGE_HEADER_SIZE:]


class MessageRun:
    """Consecutive message frames as received.

    Attributes:
        data: the bytes that contain the frames, and possibly other data.
        bounds: where in ``data`` each frame begins, followed by the end of the last one.
        attempts_max: an upper bound of the messages' ``attempts``; exact before any `split`.
    """

    __slots__ = ("attempts_max", "bounds", "data")

    def __init__(self, data: bytes, bounds: list[int], attempts_max: int) -> None:
        self.data = data
        self.bounds = bounds
        self.attempts_max = attempts_max

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def bodies(self) -> list[bytes]:
        """The body of each message."""
        data = self.data
        return [data[begin + _BODY_AT : end] for begin, end in pairwise(self.bounds)]

    def ids(self) -> list[bytes]:
        """The id of each message, as on the wire."""
        data = self.data
        return [data[at + _ID_AT : at + _BODY_AT] for at in self.bounds[:-1]]

    def messages(self) -> list[tuple[int, int, bytes, bytes]]:
        """(timestamp in ns, attempts, id, body) of each message."""
        data, read = self.data, _MESSAGE.unpack_from
        return [
            (*read(data, begin + FRAME_HEADER_SIZE), data[begin + _BODY_AT : end])
            for begin, end in pairwise(self.bounds)
        ]

    def split(self, count: int) -> MessageRun:
        """Split off the first ``count`` messages as a new run; the rest stays in this one."""
        first = MessageRun(self.data, self.bounds[: count + 1], self.attempts_max)
        self.bounds = self.bounds[count:]
        return first


class Receiver:
    """Parses the frames that nsqd sends.

    Args:
        max_frame_bytes: the largest size that a frame may declare.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._data = b""
        self._at = 0
        # The unfinished rest until it has `_need` bytes.
        self._tail = bytearray()
        self._need = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the connection."""
        tail = self._tail
        if self._at < len(self._data):  # some of it is not consumed yet
            data = self._data[self._at :] + data
        elif tail:
            if len(tail) + len(data) < self._need:
                tail += data
                return
            data = b"".join((tail, data))
            self._tail = bytearray()
        self._data, self._at = data, 0

    def _wait_for(self, need: int) -> None:
        """Keep the rest as the tail until `need` bytes of it are there."""
        # Without readable bytes `need` stays as it is. If it fell to the size of a header, each
        # chunk of a large frame would copy the whole tail: quadratic time.
        if self._at < len(self._data):
            self._tail += memoryview(self._data)[self._at :]
            self._need = need
        self._data, self._at = b"", 0

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """The complete frames, as (type, data).

        Raises:
            FrameError: the next bytes are not a frame; all frames before them were yielded.
        """
        size_max = self._max_frame_bytes
        while True:
            data, at = self._data, self._at
            if len(data) - at < FRAME_HEADER_SIZE:
                self._wait_for(FRAME_HEADER_SIZE)
                return
            size, frame_type = _FRAME.unpack_from(data, at)
            if not 4 <= size <= size_max:
                if data.startswith(_HTTP, at):
                    raise FrameError("the peer answered in HTTP: this is probably its HTTP port")
                raise FrameError(f"frame size {size} is outside the allowed range 4 to {size_max}")
            end = at + 4 + size
            if end > len(data):
                self._wait_for(4 + size)
                return
            self._at = end
            yield frame_type, data[at + FRAME_HEADER_SIZE : end]

    def runs(self) -> Iterator[MessageRun | tuple[int, bytes]]:
        """The same frames, with consecutive messages as one run.

        Raises:
            FrameError: the next bytes are not a frame; all frames before them were yielded.
        """
        while True:
            if (run := self._run()) is not None:
                yield run
            # Only one: messages that follow it are a run again.
            frame = next(self.frames(), None)
            if frame is None:
                return
            yield frame

    def _run(self) -> MessageRun | None:
        """The next complete messages, up to the first other frame; None if there are none."""
        size_max, read = self._max_frame_bytes, _MESSAGE_FRAME.unpack_from
        data, at = self._data, self._at
        # The bounds suffice: bodies and ids are cut out only if they are asked for, all at once. A
        # frame that is not allowed ends the run, and `frames` raises the error.
        last = len(data) - _BODY_AT
        bounds, attempts_max = [at], 0
        while at <= last:
            size, kind, _, attempts = read(data, at)
            end = at + 4 + size
            if kind != FRAME_MESSAGE or not _BODY_AT - 4 <= size <= size_max or end > len(data):
                break
            if attempts > attempts_max:  # noqa: PLR1730 - max() is a call for each message
                attempts_max = attempts
            bounds.append(end)
            at = end
        if len(bounds) == 1:
            return None
        self._at = at
        return MessageRun(data, bounds, attempts_max)

    def take_oks(self) -> int:
        """Consume a chunk of nothing but plain ``OK`` frames; returns their number, else 0.

        Publishes are answered like this: a thousand OKs are compared at once.
        """
        count = (len(self._data) - self._at) // len(OK)
        if not count or not self._data.startswith(OK * count, self._at):
            return 0
        self._at += count * len(OK)
        return count

    @property
    def has_more(self) -> bool:
        """Whether readable bytes are left: frames, or the beginning of one."""
        return self._at < len(self._data)

    def take_rest(self) -> bytes:
        """Remove and return the bytes after the last frame: an upgrade passes them to its layer."""
        rest = bytes(self._tail) + self._data[self._at :]
        self._data, self._at, self._tail, self._need = b"", 0, bytearray(), 0
        return rest
