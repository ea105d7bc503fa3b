"""The two compressions of a V2 connection: raw DEFLATE, and snappy's framing format.

Bytes in, bytes out; both directions of one connection are one object, on either side of it.

1. `compress` gives whole pieces: what the peer has after it inflates to all that was compressed.
2. Inflating is pulled: `feed` only keeps what arrived, each `read` inflates at most `PIECE_BYTES`
   of it. A caller that stops reading stops inflating, so a bomb costs what its reader takes.
3. No size that a peer claims is believed before it is compared with what the format allows: a
   chunk of snappy has at most 64 KiB, and no more of one is held than such a chunk may have.
4. `CompressionError` ends the connection: the stream has no place to go on from.

The formats: RFC 1951; https://github.com/google/snappy/blob/main/framing_format.txt.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final, Protocol

from cramjam import CompressionError as CramjamCompressionError
from cramjam import DecompressionError, snappy

Buffer = bytes | bytearray | memoryview

PIECE_BYTES: Final = 64 << 10
"""What one `read` gives at most."""

SLICE_BYTES: Final = 16 << 10
"""Compressed bytes that are inflated at a time: zlib copies what it does not take at once."""

DEFLATE_LEVEL: Final = 6
RAW_WINDOW_BITS: Final = -15

STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
CHUNK_HEADER_SIZE: Final = 4
CHECKSUM_SIZE: Final = 4
CHUNK_BYTES_MAX: Final = 65_536
"""What one chunk may hold uncompressed, says the format."""

CHUNK_BYTES: Final = 16 << 10
"""What is put into one chunk here: as much as Go's nsqd gathers before it compresses. pynsq loses
its connection when a read of 64 KiB brings no whole chunk."""

CHUNK_STORED_MAX: Final = CHECKSUM_SIZE + 32 + CHUNK_BYTES_MAX + CHUNK_BYTES_MAX // 6
"""What a compressor makes of it at worst: the block format's own bound."""

_COMPRESSED, _PLAIN, _SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF


class CompressionError(Exception):
    """The peer's bytes are not what was agreed."""


class Compression(Protocol):
    """What a connection needs of either kind.

    Attributes:
        ended: the peer has closed its stream; nothing follows.
    """

    ended: bool

    def compress(self, parts: Iterable[Buffer]) -> bytes:
        """All parts compressed, up to their last byte: one piece, ready to be sent."""
        ...

    def feed(self, data: Buffer) -> None:
        """Keep what arrived from the peer."""
        ...

    def read(self) -> bytes:
        """The next inflated bytes, at most `PIECE_BYTES`; empty when more has to arrive.

        Raises:
            CompressionError: the stream is damaged, or lies about a size.
        """
        ...


class Deflate:
    """Raw DEFLATE: no header, no checksum, a sync flush behind each piece."""

    def __init__(self, level: int = DEFLATE_LEVEL) -> None:
        self.ended = False
        self._deflater = zlib.compressobj(level, zlib.DEFLATED, RAW_WINDOW_BITS)
        self._inflater = zlib.decompressobj(RAW_WINDOW_BITS)
        self._input = memoryview(b"")
        self._slice: Buffer = b""

    def compress(self, parts: Iterable[Buffer]) -> bytes:
        """All parts compressed and flushed; a marker of 5 bytes when there is nothing in them."""
        compress = self._deflater.compress
        pieces = [compress(part) for part in parts]
        pieces.append(self._deflater.flush(zlib.Z_SYNC_FLUSH))
        return b"".join(pieces)

    def feed(self, data: Buffer) -> None:
        """Keep what arrived; nothing behind the stream's end."""
        if self.ended:
            return
        if self._input:
            data = b"".join((self._input, data))
        self._input = memoryview(data)

    def read(self) -> bytes:
        """The next inflated bytes, at most `PIECE_BYTES`; empty when more has to arrive.

        Raises:
            CompressionError: the stream is damaged.
        """
        inflater = self._inflater
        while not self.ended:
            # zlib may hold output back even when it has taken all input: it is asked once more.
            arrived = self._slice or self._next_slice()
            try:
                data = inflater.decompress(arrived, PIECE_BYTES)
            except zlib.error as error:
                raise CompressionError(f"deflate: {error}") from error
            self._slice = inflater.unconsumed_tail
            self.ended = inflater.eof
            if data:
                return data
            if not arrived:
                break
        return b""

    def _next_slice(self) -> Buffer:
        piece = self._input[:SLICE_BYTES]
        self._input = self._input[SLICE_BYTES:]
        return piece


class Snappy:
    """Snappy's framing format; the checksum of each chunk is compared."""

    def __init__(self) -> None:
        self.ended = False
        self._is_open = False
        self._input = bytearray()
        self._to_skip = 0
        self._identified = False

    def compress(self, parts: Iterable[Buffer]) -> bytes:
        """All parts as chunks, the stream's identifier before the first ones."""
        data = memoryview(b"".join(parts))
        chunks = (
            self._chunk(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)
        )
        return b"".join(chunks)

    def _chunk(self, data: memoryview) -> memoryview:
        try:
            chunk = memoryview(snappy.compress(data))
        except CramjamCompressionError as error:
            raise CompressionError(f"snappy: {error}") from error
        skip = len(STREAM_IDENTIFIER) if self._is_open else 0
        self._is_open = True
        return chunk[skip:]

    def feed(self, data: Buffer) -> None:
        """Keep what arrived; of padding nothing."""
        if self._to_skip:
            taken = min(self._to_skip, len(data))
            self._to_skip -= taken
            data = memoryview(data)[taken:]
        self._input += data

    def read(self) -> bytes:
        """The next inflated bytes, at most `PIECE_BYTES`; empty when more has to arrive.

        Raises:
            CompressionError: a chunk is not allowed, too large, or damaged.
        """
        data = self._input
        at = 0
        chunks = bytearray(STREAM_IDENTIFIER)
        size = 0
        while (end := self._chunk_end(data, at)) and end <= len(data):
            claimed = self._claimed(data, at)
            if size + claimed > PIECE_BYTES:
                break
            if claimed:
                chunks += memoryview(data)[at:end]
            at, size = end, size + claimed
        if end > len(data) and data[at] not in (_COMPRESSED, _PLAIN, _IDENTIFIER):
            self._to_skip = end - len(data)
            at = len(data)
        del data[:at]
        return self._inflate(chunks, size) if size else b""

    def _inflate(self, chunks: bytearray, size: int) -> bytes:
        try:
            return bytes(snappy.decompress(chunks, output_len=size))
        except DecompressionError as error:
            raise CompressionError(f"snappy: {error}") from error

    def _chunk_end(self, data: bytearray, at: int) -> int:
        """Where the chunk at `at` ends, its header checked; 0: the header is not there yet."""
        if len(data) < at + CHUNK_HEADER_SIZE:
            return 0
        kind = data[at]
        size = int.from_bytes(data[at + 1 : at + CHUNK_HEADER_SIZE], "little")
        if kind == _IDENTIFIER:
            self._identified = True
            if size != len(STREAM_IDENTIFIER) - CHUNK_HEADER_SIZE:
                raise CompressionError(f"snappy: identifier of {size} bytes")
        elif not self._identified:
            raise CompressionError("snappy: no stream identifier")
        elif kind in (_COMPRESSED, _PLAIN):
            longest = CHUNK_STORED_MAX if kind == _COMPRESSED else CHECKSUM_SIZE + CHUNK_BYTES_MAX
            if not CHECKSUM_SIZE <= size <= longest:
                raise CompressionError(f"snappy: chunk of {size} bytes")
        elif kind < _SKIPPABLE:
            raise CompressionError(f"snappy: chunk type {kind}")
        return at + CHUNK_HEADER_SIZE + size

    def _claimed(self, data: bytearray, at: int) -> int:
        """How many bytes the whole chunk at `at` says that it holds; 0: it is no data."""
        kind = data[at]
        body_at = at + CHUNK_HEADER_SIZE
        size = int.from_bytes(data[at + 1 : body_at], "little")
        if kind == _IDENTIFIER:
            if data[at : body_at + size] != STREAM_IDENTIFIER:
                raise CompressionError("snappy: not its identifier")
            return 0
        if kind >= _SKIPPABLE:
            return 0
        body_at += CHECKSUM_SIZE
        if kind == _PLAIN:
            return size - CHECKSUM_SIZE
        return _claimed_size(data[body_at : body_at + 5])


def _claimed_size(header: bytearray) -> int:
    """The uncompressed size that a block of snappy begins with.

    Raises:
        CompressionError: it is none, or more than a chunk may hold.
    """
    size = 0
    for position, byte in enumerate(header):
        size |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            if size > CHUNK_BYTES_MAX:
                raise CompressionError(f"snappy: chunk that claims {size} bytes")
            return size
    raise CompressionError("snappy: chunk without a size")
