"""The stored batch: one commit of a topic's log as written to its file and as sent by READ.

Bodies are encoded as frames, the form that consumers receive, and frames as a batch.

All fields are little-endian except the frames, which have wire format (see ``protocol/frames``)::

    offset  size  field
         0     4  magic "SPQB"
         4     2  header size, 80
         6     1  version, 1
         7     1  required flags; a reader refuses a batch with a flag that it does not know
         8     1  optional flags; bit 0: due times among the sections
         9     3  zero
        12     4  the first four bytes of the log's id
        16     8  header checksum: XXH3-64, seed = the file's salt, over the batch's offset in its
                  file (u64) and the header with this field zero
        24     8  payload checksum: XXH3-64, seed 0, over everything after the header
        32     8  index of the first message; the others follow without a gap
        40     8  ordinal: messages in the log before this batch
        48     8  publish time, ns since 1970
        56     4  count of messages, at least 1
        60     4  size of the frames
        64     4  size of the sections
        68     4  size of the whole batch, a multiple of 8
        72     4  epoch: identifies the run of nsqd that wrote it
        76     4  zero
        80     -  ends (u32: the end of each frame) | frames | sections | zeros, 0 to 7

    section: u16 type | u16 flags | u32 size of the data | data
    type 1, due times: u32 n | u32 zero | n x u32 position | n x i64 due, ns since 1970

1. A header is valid only with its checksum, which depends on the file's salt and on the offset: a
   batch inside a message's body is never mistaken for a stored batch.
2. A payload is valid only with its checksum. It needs neither salt nor offset, so that Spark's
   executors can verify the batches that READ sends them.
3. The sizes in a header must agree with each other; otherwise it is not a header.
"""

import struct
import sys
from binascii import hexlify
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

from sparq.protocol.frames import VECTOR_MIN, BodySlices, Ends
from sparq.protocol.layout import (
    FRAME_MESSAGE,
    FRAME_OVERHEAD,
    ID_OFFSET,
    ID_SIZE,
    INDEX_BITS,
    INDEX_LIMIT,
    NODE_LIMIT,
    Buffer,
)

MAGIC: Final = b"SPQB"
HEADER_SIZE: Final = 80
VERSION: Final = 1
ALIGNMENT: Final = 8
HAS_DUES: Final = 1
"""Optional flag: the batch has due times."""
SECTION_DUES: Final = 1
SIZE_LIMIT: Final = 1 << 32
"""Batches are smaller than this: their sizes and ends are u32."""

TABLE_BODY_MIN: Final = 1 << 10
"""From this body size on, frames stay in the array in which they were encoded. With smaller bodies
they are copied out of it: small strided writes are faster in cache-hot memory, which is reused.
"""

COPY_MAX: Final = 4_096
"""Up to about this size, copying a body costs less than creating a view of it."""

Dues = Sequence[tuple[int, int]]
"""(position in the batch, due time in ns since 1970) of each deferred message."""

_HEADER: Final = struct.Struct("<4sHBBB3xIQQqqqIIIII4x")
_OFFSET: Final = struct.Struct("<Q")
_FRAME: Final = struct.Struct(">iiqH16s")
_BIG_U64: Final = np.dtype(">u8")
_SECTION: Final = struct.Struct("<HHI")
_DUES: Final = struct.Struct("<II")
_ENDS: Final = np.dtype("<u4")
_BIG_ENDIAN: Final = sys.byteorder == "big"
_CHECKSUM_AT: Final = 16
_CHECKSUM_END: Final = 24
_NO_CHECKSUM: Final = bytes(8)
_PADDING: Final = tuple(bytes(size) for size in range(ALIGNMENT))
_JOIN_BELOW: Final = 1 << 16
"""Smaller batches are joined into one buffer: a copy is cheaper than a gathering write."""


class BatchError(ValueError):
    """Bytes are not the whole batches that they should be."""


class BatchHeader(NamedTuple):
    """The fields of a batch's header."""

    magic: bytes
    header_size: int
    version: int
    required_flags: int
    optional_flags: int
    log_id_short: int
    header_checksum: int
    payload_checksum: int
    first_index: int
    ordinal: int
    publish_time_ns: int
    messages: int
    frames_size: int
    sections_size: int
    total_size: int
    epoch: int

    @property
    def end_index(self) -> int:
        """The index after the last message's."""
        return self.first_index + self.messages

    @property
    def end_ordinal(self) -> int:
        """Number of messages in the log up to the end of this batch."""
        return self.ordinal + self.messages

    @property
    def readable(self) -> bool:
        """Whether this version of sparq can read the batch."""
        return self.version == VERSION and not self.required_flags


@dataclass(frozen=True, slots=True, eq=False)
class StoredBatch:
    """A decoded batch.

    Attributes:
        header: the batch's header.
        ends: where each frame ends in `frames`, shape (count,), uint32.
        frames: the messages as frames, a view of the buffer that was decoded.
        dues: (position, due time in ns since 1970) of each deferred message.
    """

    header: BatchHeader
    ends: Ends
    frames: memoryview
    dues: list[tuple[int, int]]

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.ends)


# Encoding bodies as frames


def encode_frames(
    pieces: Sequence[BodySlices], first_index: int, node_id: int, timestamp_ns: int
) -> tuple[Buffer, Ends]:
    """Encode bodies as message frames with consecutive indexes and attempts 1.

    Args:
        pieces: the bodies, in order; at least one body in total.
        first_index: the index of the first message.
        node_id: 0 to 1,023, part of each id.
        timestamp_ns: the timestamp of all messages, ns since 1970.

    Returns:
        The frames, in a buffer that does not change any more, and the end of each frame in it.
    """
    count = 0
    for piece in pieces:
        count += len(piece.sizes)
    assert 0 <= first_index <= INDEX_LIMIT - count
    assert 0 <= node_id < NODE_LIMIT
    # A lone PUB, typical for a producer that waits for each OK. With its batch, lists and arrays of
    # positions took 5.5 to 6.3 us; this takes 3.9.
    if count == 1 and len(pieces) == 1:
        piece, id_text = pieces[0], b"%016x" % (node_id << INDEX_BITS | first_index)
        start, size = piece.starts[0], piece.sizes[0]
        header = _FRAME.pack(30 + size, FRAME_MESSAGE, timestamp_ns, 1, id_text)
        frame = b"".join((header, memoryview(piece.buffer)[start : start + size]))
        return frame, np.array((FRAME_OVERHEAD + size,), np.uint32)
    # With many pieces of few bodies, slicing each body is cheaper than filling piece by piece.
    if count >= VECTOR_MIN * len(pieces) and (size := _one_size(pieces)):
        return _encode_equal(pieces, count, size, (first_index, node_id, timestamp_ns))
    return encode_frames_scalar(pieces, first_index, node_id, timestamp_ns)


def encode_frames_scalar(
    pieces: Sequence[BodySlices], first_index: int, node_id: int, timestamp_ns: int
) -> tuple[bytes, Ends]:
    """Encode as `encode_frames` does, but message by message."""
    parts: list[Buffer] = []
    ends: list[int] = []
    raw, end = node_id << INDEX_BITS | first_index, 0
    for piece in pieces:
        for body in _cut(piece):
            size = len(body)
            parts.append(_FRAME.pack(30 + size, FRAME_MESSAGE, timestamp_ns, 1, b"%016x" % raw))
            parts.append(body)
            end += FRAME_OVERHEAD + size
            ends.append(end)
            raw += 1
    return b"".join(parts), np.array(ends, np.uint32)


def _one_size(pieces: Sequence[BodySlices]) -> int:
    """The common size of all bodies; 0 if sizes differ or all bodies are empty."""
    size = int(next(piece.sizes[0] for piece in pieces if len(piece.sizes)))
    for piece in pieces:
        sizes = piece.sizes
        if not len(sizes) or (isinstance(piece.starts, range) and sizes[0] == size):
            continue
        if isinstance(sizes, list):
            if sizes.count(size) != len(sizes):
                return 0
        elif not (sizes == size).all():
            return 0
    return size


def _encode_equal(
    pieces: Sequence[BodySlices], count: int, size: int, template: tuple[int, int, int]
) -> tuple[Buffer, Ends]:
    """Encode bodies of one size: the frames are the rows of a 2-D array."""
    first_index, node_id, timestamp_ns = template
    width = FRAME_OVERHEAD + size
    rows = np.empty((count, width), np.uint8)
    header = _FRAME.pack(30 + size, FRAME_MESSAGE, timestamp_ns, 1, bytes(ID_SIZE))
    rows[:, :ID_OFFSET] = np.frombuffer(header, np.uint8, ID_OFFSET)
    ids = np.arange(first_index, first_index + count, dtype=np.uint64)
    ids |= np.uint64(node_id << INDEX_BITS)
    digits = np.frombuffer(hexlify(ids.astype(_BIG_U64).data), np.uint8)
    rows[:, ID_OFFSET:FRAME_OVERHEAD] = digits.reshape(count, ID_SIZE)
    row = 0
    for piece in pieces:
        bodies = rows[row : row + len(piece.sizes), FRAME_OVERHEAD:]
        if isinstance(piece.starts, range):  # evenly spaced: one strided copy
            strides = (piece.starts.step, 1)
            source = piece.buffer, piece.starts.start, strides
            bodies[:] = np.ndarray(bodies.shape, np.uint8, *source)
        else:
            bodies[:] = np.frombuffer(b"".join(_cut(piece)), np.uint8).reshape(bodies.shape)
        row += len(piece.sizes)
    # The view is safe: nothing else refers to `rows`, so they do not change any more.
    frames = rows.data.cast("B") if size >= TABLE_BODY_MIN else rows.tobytes()
    return frames, np.arange(width, count * width + 1, width, dtype=np.uint32)


def _cut(piece: BodySlices) -> list[bytes | bytearray] | list[memoryview]:
    """The bodies one by one, as copies or, for large bodies, as views."""
    starts, sizes, buffer = piece.starts, piece.sizes, piece.buffer
    if len(sizes) == 1 and sizes[0] == len(buffer):
        return [buffer]  # a single body that fills the buffer, published over HTTP
    if isinstance(starts, (list, range)):
        slices = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    else:
        ends = starts + np.asarray(sizes, np.int64)
        slices = list(map(slice, starts.tolist(), ends.tolist()))
    # The first body decides for all: the result is the same, so a wrong guess costs only time.
    if slices and slices[0].stop - slices[0].start > COPY_MAX:
        return list(map(memoryview(buffer).__getitem__, slices))
    return [buffer[part] for part in slices]


# Encoding frames as a batch


def dues_size(count: int) -> int:
    """Size in bytes of a section with `count` due times; 0 without any."""
    return _SECTION.size + _DUES.size + 12 * count if count else 0


def batch_size(count: int, frames_size: int, sections_size: int = 0) -> int:
    """Size in bytes of a batch in its file. Raises BatchError: it exceeds `SIZE_LIMIT`."""
    size = HEADER_SIZE + 4 * count + frames_size + sections_size
    size += -size % ALIGNMENT
    if size >= SIZE_LIMIT:
        raise BatchError(f"a batch of {size} bytes is too large")
    return size


def encode(
    frames: Buffer,
    ends: Ends,
    first_index: int,
    ordinal: int,
    *,
    publish_time_ns: int,
    log_id_short: int,
    epoch: int,
    file_offset: int,
    salt: int,
    dues: Dues | None = None,
) -> list[Buffer]:
    """Encode a batch as buffers to write one after the other at `file_offset`.

    `batch_size` must have accepted its size.
    """
    count = len(ends)
    sections = _encode_dues(dues) if dues else b""
    ends_data = (ends.byteswap() if _BIG_ENDIAN else ends).tobytes()
    used = HEADER_SIZE + len(ends_data) + len(frames) + len(sections)
    total = used + -used % ALIGNMENT
    parts: list[Buffer] = [ends_data, frames, sections, _PADDING[total - used]]
    if total < _JOIN_BELOW:
        parts = [b"".join(parts)]
        checksum = xxh3_64_intdigest(parts[0])
    else:
        digest = xxh3_64()
        for part in parts:
            digest.update(part)
        checksum = digest.intdigest()
    header = _HEADER.pack(
        MAGIC,
        HEADER_SIZE,
        VERSION,
        0,
        HAS_DUES if sections else 0,
        log_id_short,
        0,
        checksum,
        first_index,
        ordinal,
        publish_time_ns,
        count,
        len(frames),
        len(sections),
        total,
        epoch,
    )
    # The header was packed with its own checksum as 0, as rule 1's checksum requires.
    own = _OFFSET.pack(xxh3_64_intdigest(_OFFSET.pack(file_offset) + header, salt))
    parts[0] = b"".join((header[:_CHECKSUM_AT], own, header[_CHECKSUM_END:], parts[0]))
    return parts


def _encode_dues(dues: Dues) -> bytes:
    positions = np.array([position for position, _ in dues], "<u4").tobytes()
    times = np.array([due for _, due in dues], "<i8").tobytes()
    size = _DUES.size + len(positions) + len(times)
    return b"".join(
        (_SECTION.pack(SECTION_DUES, 0, size), _DUES.pack(len(dues), 0), positions, times)
    )


# Reading


def parse_header(buffer: Buffer, at: int) -> BatchHeader | None:
    """Parse the header at position `at` of the buffer; None if the bytes cannot be a header.

    The checksum is not verified: see `check_header`.
    """
    if at + HEADER_SIZE > len(buffer):
        return None
    header = BatchHeader._make(_HEADER.unpack_from(buffer, at))
    if header.magic != MAGIC or header.header_size < HEADER_SIZE or not header.messages:
        return None
    used = header.header_size + 4 * header.messages + header.frames_size + header.sections_size
    return header if header.total_size == used + -used % ALIGNMENT else None


def check_header(buffer: Buffer, at: int, file_offset: int, salt: int) -> bool:
    """Whether the header's checksum is right for this file offset and salt."""
    # Read here, as a later version may have a longer header: its checksum covers that as well.
    size = int.from_bytes(buffer[at + 4 : at + 6], "little")
    if size < HEADER_SIZE or at + size > len(buffer):
        return False
    covered = (
        _OFFSET.pack(file_offset),
        buffer[at : at + _CHECKSUM_AT],
        _NO_CHECKSUM,
        buffer[at + _CHECKSUM_END : at + size],
    )
    checksum: int = _OFFSET.unpack_from(buffer, at + _CHECKSUM_AT)[0]
    return xxh3_64_intdigest(b"".join(covered), salt) == checksum


def check_payload(buffer: Buffer, at: int, header: BatchHeader) -> bool:
    """Whether the batch is complete and its payload matches the checksum."""
    payload = memoryview(buffer)[at + header.header_size : at + header.total_size]
    whole = len(payload) == header.total_size - header.header_size
    return whole and xxh3_64_intdigest(payload) == header.payload_checksum


def decode(buffer: Buffer, at: int, header: BatchHeader | None = None) -> StoredBatch:
    """Decode the batch at position `at` of the buffer; the caller has verified its checksums.

    Args:
        buffer: holds the whole batch; the result's frames are a view of it.
        at: where the batch begins.
        header: its header, if the caller has parsed it already.

    Raises:
        BatchError: no batch begins there, it is incomplete, or this version cannot read it.
    """
    header = header or parse_header(buffer, at)
    if header is None or at + header.total_size > len(buffer):
        raise BatchError(f"no complete batch at byte {at} of {len(buffer)}")
    if not header.readable:
        raise BatchError(
            f"a batch of version {header.version}, flags {header.required_flags:#x} "
            f"needs a newer sparq"
        )
    frames_at = at + header.header_size + 4 * header.messages
    sections_at = frames_at + header.frames_size
    ends = np.frombuffer(buffer, _ENDS, header.messages, at + header.header_size)
    frames = memoryview(buffer)[frames_at:sections_at]
    if not header.optional_flags & HAS_DUES:
        return StoredBatch(header, ends, frames, [])
    sections = memoryview(buffer)[sections_at : sections_at + header.sections_size]
    return StoredBatch(header, ends, frames, _decode_dues(sections))


def _decode_dues(sections: memoryview) -> list[tuple[int, int]]:
    """The due times; sections of unknown types are skipped. Raises BatchError: some are missing."""
    at = 0
    while at + _SECTION.size <= len(sections):
        kind, _, size = _SECTION.unpack_from(sections, at)
        at += _SECTION.size
        if kind == SECTION_DUES:
            dues = sections[at : at + size]
            # 1 stands for a count that is cut off: it fails the check below.
            count = _DUES.unpack_from(dues)[0] if len(dues) >= _DUES.size else 1
            if _DUES.size + 12 * count > len(dues):
                raise BatchError("the section of due times is truncated")
            positions = np.frombuffer(dues, "<u4", count, _DUES.size)
            times = np.frombuffer(dues, "<i8", count, _DUES.size + 4 * count)
            return list(zip(positions.tolist(), times.tolist(), strict=True))
        at += size
    return []


def walk(buffer: Buffer) -> Iterator[StoredBatch]:
    """Decode consecutive batches in the buffer and verify their payloads.

    Raises:
        BatchError: a batch is damaged or cut off, or this version cannot read it.
    """
    at = 0
    while at < len(buffer):
        header = parse_header(buffer, at)
        if header is None or not check_payload(buffer, at, header):
            raise BatchError(f"damaged batch at byte {at} of {len(buffer)}")
        yield decode(buffer, at, header)
        at += header.total_size
