"""The two compressions of a V2 connection: raw DEFLATE, and snappy's framing format.

Bytes in, bytes out. One object handles both directions of a connection, on either side of it.

1. `seal` returns complete pieces: after each one the peer can inflate everything compressed so
   far.
2. Inflating is pull-based: `feed` only stores input, and each `read` returns at most `PIECE_BYTES`
   of inflated data. A caller that stops reading stops inflating, so a decompression bomb costs only
   as much as its reader pulls.
3. Every size that a peer declares is checked against the format's limit before it is used: a snappy
   chunk's data is at most 64 KiB, and no more input is held than the longest chunk takes.
4. `LayerError` ends the connection: the stream cannot continue after it.

The formats: RFC 1951; https://github.com/google/snappy/blob/main/framing_format.txt.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from cramjam import CompressionError, DecompressionError, snappy

Buffer = bytes | bytearray | memoryview

PIECE_BYTES: Final = 64 << 10
"""Maximum bytes that one `read` returns."""

SLICE_BYTES: Final = 16 << 10
"""Compressed bytes passed to zlib at a time: zlib copies the input that it does not consume."""

DEFLATE_LEVEL: Final = 6
RAW_WINDOW_BITS: Final = -15

STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
CHUNK_HEADER_SIZE: Final = 4
CHECKSUM_SIZE: Final = 4
CHUNK_BYTES_MAX: Final = 65_536
"""Maximum uncompressed bytes of one chunk, by the format."""

CHUNK_BYTES: Final = 16 << 10
"""Uncompressed bytes per chunk that we send: as many as Go's nsqd buffers before it compresses.
pynsq loses its connection if a read of 64 KiB contains no whole chunk."""

CHUNK_STORED_MAX: Final = CHECKSUM_SIZE + 32 + CHUNK_BYTES_MAX + CHUNK_BYTES_MAX // 6
"""Maximum stored bytes of one chunk: the block format's worst case for `CHUNK_BYTES_MAX`."""

_COMPRESSED, _PLAIN, _SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF


class LayerError(Exception):
    """The peer's bytes do not follow the negotiated format, of compression or TLS."""


class Deflate:
    """Raw DEFLATE: no header, no checksum, a sync flush after each piece."""

    def __init__(self, level: int = DEFLATE_LEVEL) -> None:
        self.ended = False
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, RAW_WINDOW_BITS)
        self._inflater = zlib.decompressobj(RAW_WINDOW_BITS)
        self._input = memoryview(b"")
        self._slice: Buffer = b""

    def seal(self, parts: Iterable[Buffer]) -> bytes:
        """Compress and flush all parts; empty input gives a flush marker of 5 bytes."""
        compress = self._deflater.compress
        pieces = [compress(part) for part in parts]
        # Without a flush, zlib would hold the last bytes back, and the peer would wait for them.
        pieces.append(self._deflater.flush(zlib.Z_SYNC_FLUSH))
        return b"".join(pieces)

    def feed(self, data: Buffer) -> None:
        """Store received bytes; bytes after the stream's end are dropped."""
        if self.ended:
            return
        if self._input:
            data = b"".join((self._input, data))
        self._input = memoryview(data)

    def read(self) -> bytes:
        """The next inflated bytes, at most `PIECE_BYTES`; empty if more input is needed.

        Raises:
            LayerError: the stream is damaged.
        """
        inflater = self._inflater
        while not self.ended:
            # zlib may hold output back even after it has consumed all input: call it once more.
            arrived = self._slice
            if not arrived:
                arrived, self._input = self._input[:SLICE_BYTES], self._input[SLICE_BYTES:]
            try:
                data = inflater.decompress(arrived, PIECE_BYTES)
            except zlib.error as error:
                raise LayerError(f"deflate: {error}") from error
            self._slice = inflater.unconsumed_tail
            self.ended = inflater.eof
            if data:
                return data
            if not arrived:
                break
        return b""


class Snappy:
    """Snappy's framing format; the checksum of each chunk is verified."""

    def __init__(self) -> None:
        self.ended = False
        self._is_open = False
        self._input = bytearray()
        self._to_skip = 0
        self._identified = False

    def seal(self, parts: Iterable[Buffer]) -> bytes:
        """Compress all parts into chunks; the stream identifier precedes the very first chunk."""
        data = memoryview(b"".join(parts))
        chunks = []
        for at in range(0, len(data), CHUNK_BYTES):
            try:
                chunk = memoryview(snappy.compress(data[at : at + CHUNK_BYTES]))
            except CompressionError as error:
                raise LayerError(f"snappy: {error}") from error
            # cramjam makes a whole stream of each call. Chunks do not depend on each other, so
            # without their identifiers these streams are one stream.
            chunks.append(chunk[len(STREAM_IDENTIFIER) :] if self._is_open else chunk)
            self._is_open = True
        return b"".join(chunks)

    def feed(self, data: Buffer) -> None:
        """Store received bytes; the rest of a skippable chunk is dropped."""
        if self._to_skip:
            taken = min(self._to_skip, len(data))
            self._to_skip -= taken
            data = memoryview(data)[taken:]
        self._input += data

    def read(self) -> bytes:
        """The next inflated bytes, at most `PIECE_BYTES`; empty if more input is needed.

        Raises:
            LayerError: a chunk has a wrong type, is too large, or is damaged.
        """
        data = self._input
        at = 0
        # cramjam decodes whole streams, so whole chunks are collected into one with an identifier
        # of its own. Their sizes are added up first: nothing is inflated beyond `PIECE_BYTES`.
        chunks = bytearray(STREAM_IDENTIFIER)
        size = 0
        while (end := self._chunk_end(data, at)) and end <= len(data):
            claimed = self._claimed(data, at)
            if size + claimed > PIECE_BYTES:
                break
            if claimed:
                chunks += memoryview(data)[at:end]
            at, size = end, size + claimed
        # A skippable chunk may claim 16 MiB: it is dropped as it arrives, never held as a whole.
        if end > len(data) and data[at] not in (_COMPRESSED, _PLAIN, _IDENTIFIER):
            self._to_skip = end - len(data)
            at = len(data)
        del data[:at]
        try:
            return bytes(snappy.decompress(chunks, output_len=size)) if size else b""
        except DecompressionError as error:
            raise LayerError(f"snappy: {error}") from error

    def _chunk_end(self, data: bytearray, at: int) -> int:
        """Check the chunk header at `at`; returns the chunk's end, or 0 if it is incomplete."""
        if len(data) < at + CHUNK_HEADER_SIZE:
            return 0
        kind = data[at]
        size = int.from_bytes(data[at + 1 : at + CHUNK_HEADER_SIZE], "little")
        if kind == _IDENTIFIER:
            self._identified = True
            if size != len(STREAM_IDENTIFIER) - CHUNK_HEADER_SIZE:
                raise LayerError(f"snappy: stream identifier has a wrong size, {size} bytes")
        elif not self._identified:
            raise LayerError("snappy: stream identifier is missing")
        elif kind in (_COMPRESSED, _PLAIN):
            longest = CHUNK_STORED_MAX if kind == _COMPRESSED else CHECKSUM_SIZE + CHUNK_BYTES_MAX
            if not CHECKSUM_SIZE <= size <= longest:
                raise LayerError(f"snappy: chunk size of {size} bytes is out of range")
        elif kind < _SKIPPABLE:
            raise LayerError(f"snappy: unknown chunk type {kind}")
        return at + CHUNK_HEADER_SIZE + size

    def _claimed(self, data: bytearray, at: int) -> int:
        """Uncompressed size that the complete chunk at `at` declares; 0: not a data chunk."""
        kind = data[at]
        body_at = at + CHUNK_HEADER_SIZE
        size = int.from_bytes(data[at + 1 : body_at], "little")
        if kind == _IDENTIFIER:
            if data[at : body_at + size] != STREAM_IDENTIFIER:
                raise LayerError("snappy: invalid stream identifier")
            return 0
        if kind >= _SKIPPABLE:
            return 0
        body_at += CHECKSUM_SIZE
        if kind == _PLAIN:
            return size - CHECKSUM_SIZE
        header = data[body_at : body_at + 5]
        try:
            claimed: int = snappy.decompress_raw_len(header)
        except DecompressionError as error:
            raise LayerError(f"snappy: {error}") from error
        if not header or claimed > CHUNK_BYTES_MAX:
            raise LayerError(f"snappy: uncompressed chunk size of {claimed} bytes is invalid")
        return claimed


Compression = Deflate | Snappy
