"""A client's side of a V2 connection, as bytes in and bytes out: layers, frames and messages.

1. This module has no socket and no clock; `tests.support.v2_client` has both.
2. Frames and layers are read with Python's own `ssl` and zlib, and not by sparq's receiver: a
   client that shared this code with nsqd, or with sparq's client, would share its mistakes. Only
   the commands are those of `sparq.protocol.commands`.
"""

from __future__ import annotations

import ssl
import struct
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from cramjam import snappy

from sparq.protocol.commands import fin

FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
RECORD_BYTES = 1 << 14

_HEAD = struct.Struct(">ii")
_MESSAGE = struct.Struct(">qH16s")

Frame = tuple[int, bytes]
"""A frame's type and its data."""


class Message(NamedTuple):
    """One delivery."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def decode_message(data: bytes) -> Message:
    """Return the message in the data of a frame of type `FRAME_MESSAGE`."""
    return Message(*_MESSAGE.unpack_from(data), data[_MESSAGE.size :])


def fin_each(messages: Iterable[Message]) -> bytes:
    """Return a FIN for each message."""
    return b"".join([fin(message.id) for message in messages])


class V2Stream:
    """A client's side of a connection, as bytes in and bytes out.

    Attributes:
        plain: decoded bytes that are not part of a returned frame.
        tls: the TLS layer, or None.
        was_told_goodbye: whether the other side has ended TLS with its close_notify.
    """

    def __init__(self) -> None:
        self.plain = bytearray()
        self.tls: ssl.SSLObject | None = None
        self.was_told_goodbye = False
        self.is_shaking_hands = False
        self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._deflater: Any = None
        self._inflater: Any = None
        self._snappy: bytearray | None = None
        self._has_sent_identifier = False

    # Bytes through the layers

    def seal(self, data: bytes) -> bytes:
        """Return the encoded bytes to send for this data."""
        if self._deflater is not None:
            data = self._deflater.compress(data) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
        elif self._snappy is not None:
            identifier = len(SNAPPY_IDENTIFIER) if self._has_sent_identifier else 0
            data = bytes(snappy.compress(data))[identifier:]
            self._has_sent_identifier = True
        if self.tls is None:
            return data
        for at in range(0, len(data), RECORD_BYTES):
            self.tls.write(data[at : at + RECORD_BYTES])
        return self.tls_output()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self.tls is not None:
            self._tls_in.write(data)
            data = self._read_tls(self.tls)
        self.plain += self._decompress(data)

    def begin_tls(self, context: ssl.SSLContext) -> bytes:
        """Begin the handshake; return the first bytes to send."""
        self.tls = context.wrap_bio(self._tls_in, self._tls_out, server_hostname="localhost")
        self.is_shaking_hands = True
        return self.shake_hands(b"")

    def shake_hands(self, data: bytes) -> bytes:
        """Continue the handshake with received bytes; return the bytes to send next."""
        assert self.tls is not None
        self._tls_in.write(data)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return self.tls_output()
        self.is_shaking_hands = False
        # With TLS 1.2, nsqd's last handshake record and its OK may arrive in one read.
        self.plain += self._read_tls(self.tls)
        return self.tls_output()

    def tls_output(self) -> bytes:
        """Return the bytes that the TLS layer has to send."""
        return self._tls_out.read()

    def _read_tls(self, tls: ssl.SSLObject) -> bytes:
        pieces = []
        try:
            while piece := tls.read(1 << 16):
                pieces.append(piece)
            self.was_told_goodbye = True
        except ssl.SSLZeroReturnError:
            self.was_told_goodbye = True
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)

    def begin_compression(self, kind: str, level: int = 6) -> None:
        """Use deflate or snappy from now on; bytes after the last frame are compressed."""
        if kind == "deflate":
            self._deflater = zlib.compressobj(level, zlib.DEFLATED, -15)
            self._inflater = zlib.decompressobj(-15)
        else:
            assert kind == "snappy"
            self._snappy = bytearray()
        self.plain[:] = self._decompress(bytes(self.plain))

    def _decompress(self, data: bytes) -> bytes:
        if self._inflater is not None:
            return bytes(self._inflater.decompress(data))
        if self._snappy is None:
            return data
        found = b""
        self._snappy += data
        while len(self._snappy) >= 4:
            end = 4 + int.from_bytes(self._snappy[1:4], "little")
            if len(self._snappy) < end:
                break
            found += bytes(snappy.decompress(SNAPPY_IDENTIFIER + self._snappy[:end]))
            del self._snappy[:end]
        return found

    # Frames

    def take(self, size: int) -> bytes:
        """Remove and return the next bytes, at most `size`; they are part of no frame."""
        data = bytes(self.plain[:size])
        del self.plain[:size]
        return data

    def frame(self) -> Frame | None:
        """Return the next frame, None if it is incomplete; raises ValueError if it is invalid."""
        if len(self.plain) < _HEAD.size:
            return None
        size, kind = _HEAD.unpack_from(self.plain)
        if size < 4:
            raise ValueError(f"a frame of {size} bytes")
        if len(self.plain) < 4 + size:
            return None
        return kind, self.take(4 + size)[_HEAD.size :]

    def frames(self) -> list[Frame]:
        """Return all complete frames; stop before bytes that cannot be a frame."""
        found, at, plain = [], 0, bytes(self.plain)
        while at + _HEAD.size <= len(plain):
            size, kind = _HEAD.unpack_from(plain, at)
            end = at + 4 + size
            if size < 4 or end > len(plain):
                break
            found.append((kind, plain[at + _HEAD.size : end]))
            at = end
        del self.plain[:at]
        return found
