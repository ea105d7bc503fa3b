"""The stored batch: what one commit of a topic's log leaves in a file, and what READ sends.

Bodies become frames, which are what consumers receive, and frames become a batch.

Little-endian, but for the frames, which are as the wire has them (see ``protocol/frames``)::

    offset  size  field
         0     4  magic "SPQB"
         4     2  header size, 80
         6     1  version, 1
         7     1  required flags; a reader refuses a batch with one that it does not know
         8     1  optional flags; bit 0: due times among the sections
         9     3  zero
        12     4  the first four bytes of the log's id
        16     8  header checksum: XXH3-64, seed = the file's salt, over the batch's offset in its
                  file (u64) and the header with this field zero
        24     8  payload checksum: XXH3-64, seed 0, over everything behind the header
        32     8  index of the first message; the others follow without a gap
        40     8  ordinal: messages in the log before this batch
        48     8  publish time, ns since 1970
        56     4  count of messages, at least 1
        60     4  size of the frames
        64     4  size of the sections
        68     4  size of the whole, a multiple of 8
        72     4  epoch: which run of nsqd wrote it
        76     4  zero
        80     -  ends (u32 each: where a frame ends) | frames | sections | zeros, 0 to 7

    section: u16 type | u16 flags | u32 size of the data | data
    type 1, due times: u32 n | u32 zero | n x u32 position | n x i64 due, ns since 1970

1. A header is believed only with its checksum, which holds for one place in one file: a message
   whose body is a batch is never taken for one.
2. A payload is believed only with its checksum. It needs neither salt nor offset, so that Spark's
   executors can verify what READ sent them.
3. Sizes in a header agree with each other, or it is no header.
"""

import struct
import sys
from binascii import hexlify
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from sparq.protocol.frames import VECTOR_MIN, Bodies, Ends
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
"""The optional flag of a batch with due times."""
SECTION_DUES: Final = 1
SIZE_LIMIT: Final = 1 << 32
"""A batch is smaller than this: its sizes and ends are u32."""

TABLE_BODY_MIN: Final = 1 << 10
"""From this size of bodies on, frames stay in the table that they were made in. Smaller bodies are
copied out of it: small strided writes are faster in memory that is hot, which is then used again.
"""

COPY_MAX: Final = 4_096
"""Up to about this size copying a body costs less than a view of it."""

Dues = Sequence[tuple[int, int]]
"""(position in the batch, due time in ns since 1970) of each deferred message."""

_HEADER: Final = struct.Struct("<4sHBBB3xIQQqqqIIIII4x")
_OFFSET: Final = struct.Struct("<Q")
_FRAME: Final = struct.Struct(">iiqH16s")
_BIG_U32: Final = np.dtype(">u4")
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
"""Smaller batches are one buffer: a copy is cheaper than a gathering write."""


class BatchError(ValueError):
    """Bytes that should be whole batches are not."""


class Header(NamedTuple):
    """A batch's header, field by field."""

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
        """The index behind the last message's."""
        return self.first_index + self.messages

    @property
    def end_ordinal(self) -> int:
        """Messages in the log up to the end of this batch."""
        return self.ordinal + self.messages

    @property
    def readable(self) -> bool:
        """Whether this version of sparq knows how to read the batch."""
        return self.version == VERSION and not self.required_flags


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch, read.

    Attributes:
        header: its header.
        ends: where each frame ends in `frames`, shape (count,), uint32.
        frames: the messages as frames, a part of the buffer it was read from.
        dues: (position, due time in ns since 1970) of the deferred ones.
    """

    header: Header
    ends: Ends
    frames: memoryview
    dues: list[tuple[int, int]]

    @property
    def count(self) -> int:
        """How many messages."""
        return len(self.ends)


# Bodies become frames


def encode_frames(
    pieces: Sequence[Bodies], first_index: int, node_id: int, timestamp_ns: int
) -> tuple[Buffer, Ends]:
    """The bodies as message frames with consecutive indexes and attempts 1.

    Args:
        pieces: the bodies, in order; not empty in all.
        first_index: the index of the first.
        node_id: 0 to 1,023, joined into each id.
        timestamp_ns: the timestamp of each.

    Returns:
        The frames, in a buffer that nobody changes, and the end of each in them.
    """
    count = 0
    for piece in pieces:
        count += len(piece.sizes)
    assert 0 <= first_index <= INDEX_LIMIT - count
    assert 0 <= node_id < NODE_LIMIT
    if count == 1 and len(pieces) == 1:  # the usual case of a producer that waits for each OK
        piece, id_text = pieces[0], b"%016x" % (node_id << INDEX_BITS | first_index)
        start, size = piece.starts[0], piece.sizes[0]
        header = _FRAME.pack(30 + size, FRAME_MESSAGE, timestamp_ns, 1, id_text)
        frame = b"".join((header, memoryview(piece.buffer)[start : start + size]))
        return frame, np.array((FRAME_OVERHEAD + size,), np.uint32)
    if count < VECTOR_MIN:
        return encode_frames_scalar(pieces, first_index, node_id, timestamp_ns)
    ids = _consecutive_ids(count, first_index, node_id)
    # Many pieces of few bodies are cheaper cut out one by one than filled in piece by piece.
    if count >= VECTOR_MIN * len(pieces) and (size := _one_size(pieces)):
        return _encode_equal(pieces, ids, size, timestamp_ns)
    sizes = _all_sizes(pieces)
    headers = _headers(sizes, ids, timestamp_ns)
    parts: list[Buffer] = [b""] * (2 * count)
    # The last byte of a header is a hex digit, so S34 items keep all their bytes.
    parts[0::2] = headers.view("S34").ravel().tolist()
    parts[1::2] = [body for piece in pieces for body in _cut(piece)]
    return b"".join(parts), np.cumsum(sizes + FRAME_OVERHEAD).astype(np.uint32)


def encode_frames_scalar(
    pieces: Sequence[Bodies], first_index: int, node_id: int, timestamp_ns: int
) -> tuple[bytes, Ends]:
    """What `encode_frames` does, message by message."""
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


def _consecutive_ids(count: int, first_index: int, node_id: int) -> NDArray[np.uint8]:
    """The digits of `count` ids, shape (count, 16)."""
    raw = np.arange(first_index, first_index + count, dtype=np.uint64)
    raw |= np.uint64(node_id << INDEX_BITS)
    return np.frombuffer(hexlify(raw.astype(_BIG_U64).data), np.uint8).reshape(count, ID_SIZE)


def _one_size(pieces: Sequence[Bodies]) -> int:
    """The size of all bodies; 0 where they have several, or none."""
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


def _all_sizes(pieces: Sequence[Bodies]) -> NDArray[np.int64]:
    if all(isinstance(piece.sizes, list) for piece in pieces):
        return np.array([size for piece in pieces for size in piece.sizes], np.int64)
    return np.concatenate([np.asarray(piece.sizes, np.int64) for piece in pieces])


def _headers(
    sizes: NDArray[np.int64], ids: NDArray[np.uint8], timestamp_ns: int
) -> NDArray[np.uint8]:
    """The 34 bytes before each body, shape (n, 34)."""
    count = len(sizes)
    template = _FRAME.pack(0, FRAME_MESSAGE, timestamp_ns, 1, bytes(ID_SIZE))
    headers = np.frombuffer(bytearray(template * count), np.uint8).reshape(count, FRAME_OVERHEAD)
    headers[:, :4] = (sizes + 30).astype(_BIG_U32).view(np.uint8).reshape(count, 4)
    headers[:, ID_OFFSET:] = ids
    return headers


def _encode_equal(
    pieces: Sequence[Bodies], ids: NDArray[np.uint8], size: int, timestamp_ns: int
) -> tuple[Buffer, Ends]:
    """All bodies have one size: the frames are the rows of a table."""
    count, width = len(ids), FRAME_OVERHEAD + size
    rows = np.empty((count, width), np.uint8)
    header = _FRAME.pack(30 + size, FRAME_MESSAGE, timestamp_ns, 1, bytes(ID_SIZE))
    rows[:, :ID_OFFSET] = np.frombuffer(header, np.uint8, ID_OFFSET)
    rows[:, ID_OFFSET:FRAME_OVERHEAD] = ids
    row = 0
    for piece in pieces:
        following = row + len(piece.sizes)
        _fill(rows[row:following, FRAME_OVERHEAD:], piece)
        row = following
    frames = rows.data.cast("B") if size >= TABLE_BODY_MIN else rows.tobytes()
    return frames, np.arange(width, count * width + 1, width, dtype=np.uint32)


def _fill(rows: NDArray[np.uint8], piece: Bodies) -> None:
    """Copies bodies of one size into the rows: in one step where they are known to lie evenly."""
    count, size = rows.shape
    starts = piece.starts
    if isinstance(starts, range):
        strides = (starts.step, 1)
        rows[:] = np.ndarray((count, size), np.uint8, piece.buffer, starts.start, strides)
        return
    rows[:] = np.frombuffer(b"".join(_cut(piece)), np.uint8).reshape(count, size)


def _cut(piece: Bodies) -> list[bytes | bytearray] | list[memoryview]:
    """The bodies one by one: copies, or views where these cost less."""
    starts, sizes, buffer = piece.starts, piece.sizes, piece.buffer
    if len(sizes) == 1 and sizes[0] == len(buffer):
        return [buffer]  # it came by itself, by HTTP
    if isinstance(starts, (list, range)):
        slices = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    else:
        ends = starts + np.asarray(sizes, np.int64)
        slices = list(map(slice, starts.tolist(), ends.tolist()))
    if slices and slices[0].stop - slices[0].start > COPY_MAX:
        return list(map(memoryview(buffer).__getitem__, slices))
    return [buffer[part] for part in slices]


# Frames become a batch


def dues_size(count: int) -> int:
    """Bytes that the section of so many due times takes."""
    return _SECTION.size + _DUES.size + 12 * count if count else 0


def batch_size(count: int, frames_size: int, sections_size: int = 0) -> int:
    """Bytes that a batch takes in its file.

    Raises:
        BatchError: more than a batch can hold.
    """
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
    """A batch as the buffers to write one after the other at `file_offset`.

    Raises:
        BatchError: more than a batch can hold.
    """
    count = len(ends)
    sections = _encode_dues(dues) if dues else b""
    used = HEADER_SIZE + 4 * count + len(frames) + len(sections)
    total = used + -used % ALIGNMENT
    if total >= SIZE_LIMIT:
        raise BatchError(f"a batch of {total} bytes is too large")
    ends_data = (ends.byteswap() if _BIG_ENDIAN else ends).tobytes()
    parts: list[Buffer] = [ends_data, frames, sections, _PADDING[total - used]]
    if total < _JOIN_BELOW:
        parts = [b"".join(parts)]
        checksum = xxh3_64_intdigest(parts[0])
    else:
        checksum = _payload_checksum(parts)
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
    own = _OFFSET.pack(xxh3_64_intdigest(_OFFSET.pack(file_offset) + header, salt))
    parts[0] = b"".join((header[:_CHECKSUM_AT], own, header[_CHECKSUM_END:], parts[0]))
    return parts


def _payload_checksum(parts: Sequence[Buffer]) -> int:
    digest = xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()


def _encode_dues(dues: Dues) -> bytes:
    positions = np.array([position for position, _ in dues], "<u4").tobytes()
    times = np.array([due for _, due in dues], "<i8").tobytes()
    size = _DUES.size + len(positions) + len(times)
    return b"".join(
        (_SECTION.pack(SECTION_DUES, 0, size), _DUES.pack(len(dues), 0), positions, times)
    )


# Reading


def parse_header(buffer: Buffer, at: int) -> Header | None:
    """The header at this place of the buffer; None for what cannot be one.

    Its checksum is not looked at: see `check_header`.
    """
    if at + HEADER_SIZE > len(buffer):
        return None
    header = Header._make(_HEADER.unpack_from(buffer, at))
    if header.magic != MAGIC or header.header_size < HEADER_SIZE or not header.messages:
        return None
    used = header.header_size + 4 * header.messages + header.frames_size + header.sections_size
    return header if header.total_size == used + -used % ALIGNMENT else None


def check_header(buffer: Buffer, at: int, file_offset: int, salt: int) -> bool:
    """Whether the header at this place was written for this place of the file with this salt."""
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


def check_payload(buffer: Buffer, at: int, header: Header) -> bool:
    """Whether all of the batch is there and everything behind its header is as it was written."""
    payload = memoryview(buffer)[at + header.header_size : at + header.total_size]
    whole = len(payload) == header.total_size - header.header_size
    return whole and xxh3_64_intdigest(payload) == header.payload_checksum


def decode(buffer: Buffer, at: int, header: Header | None = None) -> Batch:
    """The batch at this place of the buffer, whose checksums the caller has looked at.

    Args:
        buffer: holds the whole batch; the result's frames are a part of it.
        at: where the batch begins.
        header: its header, where the caller has it already.

    Raises:
        BatchError: there is no batch, or not all of it, or of a kind unknown to this version.
    """
    header = header or parse_header(buffer, at)
    if header is None or at + header.total_size > len(buffer):
        raise BatchError(f"no whole batch at byte {at} of {len(buffer)}")
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
        return Batch(header, ends, frames, [])
    sections = memoryview(buffer)[sections_at : sections_at + header.sections_size]
    return Batch(header, ends, frames, _decode_dues(sections))


def _decode_dues(sections: memoryview) -> list[tuple[int, int]]:
    """The due times among the sections; sections of unknown types are passed over.

    Raises:
        BatchError: there are fewer than their section says.
    """
    at = 0
    while at + _SECTION.size <= len(sections):
        kind, _, size = _SECTION.unpack_from(sections, at)
        at += _SECTION.size
        if kind == SECTION_DUES:
            dues = sections[at : at + size]
            count = _DUES.unpack_from(dues)[0] if len(dues) >= _DUES.size else 1
            if _DUES.size + 12 * count > len(dues):
                raise BatchError("the section of due times is cut off")
            positions = np.frombuffer(dues, "<u4", count, _DUES.size)
            times = np.frombuffer(dues, "<i8", count, _DUES.size + 4 * count)
            return list(zip(positions.tolist(), times.tolist(), strict=True))
        at += size
    return []


def walk(buffer: Buffer) -> Iterator[Batch]:
    """The batches that lie one after the other in the buffer, their payloads verified.

    Raises:
        BatchError: damaged, cut off or of a kind unknown to this version.
    """
    at = 0
    while at < len(buffer):
        header = parse_header(buffer, at)
        if header is None or not check_payload(buffer, at, header):
            raise BatchError(f"damaged batch at byte {at} of {len(buffer)}")
        yield decode(buffer, at, header)
        at += header.total_size
