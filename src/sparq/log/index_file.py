"""A segment's index file: a summary of its batch headers, so that a start need not read them all.

``<name>.log`` has an index file ``<name>.index``: a header, then blocks like those of a ledger (see
``block_file``), each of which adds extents after those of the blocks before it. A block's payload,
little-endian::

    offset  size  field
         0     4  n, count of extents
         4     4  m, count of deferred messages
         8     8  publish time of the file's first batch, ns since 1970
        16   48n  extents by columns, n x i64 each: first index, end index, ordinal, offset, size,
                  latest publish time
         -   16m  m x i64 index | m x i64 due time: the deferred ones among these messages

1. It is not authoritative: losing it loses nothing, and a start that finds anything wrong in it
   scans the segment. It is never synced.
2. It describes only what was synced in the segment, without gaps in bytes and ordinals from the
   first batch on: it ends where damage begins.
3. It is used only for the segment with the same salt, only as far as that file reaches, and only if
   all its extents follow each other correctly and the last one begins with the batch it names.
4. Its data about an extent is verified with the extent's payload, whenever that is read.
"""

import struct
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np

from sparq.log.block_file import HeaderForm, block_at, encode_block
from sparq.log.disk import Disk, DiskError, File, read_bytes
from sparq.log.reading import read_header
from sparq.log.segment import COLUMNS, Rows, Segment, SegmentHeader
from sparq.log.segment import DATA_START as SEGMENT_DATA_START
from sparq.log.segment import SUFFIX as SEGMENT_SUFFIX
from sparq.log.task import Task
from sparq.protocol.batch import HEADER_SIZE as BATCH_HEADER_SIZE

SUFFIX: Final = ".index"
BATCH_HEADER_BYTES: Final = 4096
"""Enough for the header of a later version, too."""

HEADER: Final = HeaderForm(b"SPARQIDX", "Q16sq8x")
_PAYLOAD: Final = struct.Struct("<IIq")

Dues = list[tuple[int, int]]
"""(index, due time in ns since 1970)"""


class IndexContents(NamedTuple):
    """The contents of an index file.

    Attributes:
        rows: extents.
        dues: the deferred messages among them.
        first_time_ns: publish time of the first batch.
        size: the file's size, up to the end of the last whole block.
    """

    rows: Rows
    dues: Dues
    first_time_ns: int
    size: int

    @property
    def end_offset(self) -> int:
        """The offset in the segment at which the last extent ends."""
        return int(self.rows[3, -1] + self.rows[4, -1])


def path_of(segment_path: str) -> str:
    """Return the path of a segment's index file."""
    return segment_path.removesuffix(SEGMENT_SUFFIX) + SUFFIX


def facts_of(header: SegmentHeader) -> tuple[int, bytes, int]:
    """Return the facts in the header of this segment's index file."""
    return header.salt, header.log_id, header.first_index


def encode(rows: Rows, dues: Dues, first_time_ns: int, offset: int, salt: int) -> bytes:
    """Encode a block of extents for this offset of the index file of the segment with this salt."""
    head = _PAYLOAD.pack(rows.shape[1], len(dues), first_time_ns)
    times = np.array(dues, "<i8").reshape(-1, 2).T
    return encode_block(head + rows.astype("<i8").tobytes() + times.tobytes(), offset, salt)


def read(disk: Disk, segment: Segment, size: int, limit: int) -> IndexContents | None:
    """Read a segment's index file; None: it is missing or cannot be trusted.

    Args:
        disk: the disk.
        segment: the segment, with its path and header.
        size: the size of the segment's file.
        limit: the index at which the segment ends, whatever it holds.
    """
    path = path_of(segment.path)
    if not disk.exists(path):
        return None
    try:
        with closing(disk.open(path)) as file:
            data = file.pread(file.size(), 0)
        contents = _parse(data, segment.header)
        is_usable = contents is not None and _is_sound(disk, contents, segment, size, limit)
        return contents if is_usable else None
    except DiskError:
        # The segment has the same information, but reading it takes longer.
        return None


def _parse(data: bytes, header: SegmentHeader) -> IndexContents | None:
    """Parse the whole blocks of an index file; None: it is not this segment's, or is malformed."""
    if not data.startswith(HEADER.encode(facts_of(header))):
        return None
    parts: list[Rows] = []
    dues: Dues = []
    first_time_ns, at = 0, HEADER.size
    while (block := block_at(data, at, header.salt)) is not None:
        if len(block.records) < _PAYLOAD.size:
            return None
        count, due_count, time_ns = _PAYLOAD.unpack_from(block.records)
        numbers = np.frombuffer(block.records, "<i8", -1, _PAYLOAD.size)
        if len(numbers) != COLUMNS * count + 2 * due_count:
            return None
        parts.append(numbers[: COLUMNS * count].reshape(COLUMNS, count).astype(np.int64))
        indexes, times = numbers[COLUMNS * count :].reshape(2, due_count).tolist()
        dues += zip(indexes, times, strict=True)
        first_time_ns = first_time_ns or time_ns
        at = block.end
    return IndexContents(np.concatenate(parts, axis=1), dues, first_time_ns, at) if parts else None


def follows(rows: Rows, offset: int, ordinal: int, index: int) -> bool:
    """Whether extents follow each other without a gap, beginning at this place.

    Args:
        rows: the extents.
        offset, ordinal: where the first one must begin.
        index: the lowest index at which the first one may begin.
    """
    firsts, ends, ordinals, offsets, sizes, _ = rows
    counts = ends - firsts
    return bool(
        rows.shape[1]
        and (counts > 0).all()
        and (sizes >= BATCH_HEADER_SIZE).all()
        and firsts[0] >= index
        and (firsts[1:] >= ends[:-1]).all()
        and offsets[0] == offset
        and (offsets[1:] == offsets[:-1] + sizes[:-1]).all()
        and ordinals[0] == ordinal
        and (ordinals[1:] == ordinals[:-1] + counts[:-1]).all()
    )


def _is_sound(disk: Disk, contents: IndexContents, segment: Segment, size: int, limit: int) -> bool:
    """Whether a segment of this size, with messages below `limit`, has these contents."""
    rows, header = contents.rows, segment.header
    first, end, ordinal, offset, _, _ = map(int, rows[:, -1])
    if not (
        follows(rows, SEGMENT_DATA_START, header.base_ordinal, header.first_index)
        and end <= min(limit, header.ceiling)
        and ordinal + end - first <= segment.ordinal_limit
        and contents.end_offset <= size
    ):
        return False
    with closing(disk.open(segment.path)) as file:
        data = read_bytes(file, BATCH_HEADER_BYTES, offset)
    found = read_header(data, 0, offset, segment.key)
    return found is not None and (found.first_index, found.ordinal) == (first, ordinal)


class IndexWrite(Task):
    """A task that adds extents to a segment's index file, which it creates if none is in use yet.

    Attributes:
        segment: the segment whose index file it is.
        count: the number of extents in the file afterwards.
        dues: the deferred messages among the added ones.
        size: the file's size once this has run.
        broken: the extents do not follow each other: none is added, now or later.
    """

    def __init__(self, disk: Disk, segment: Segment, rows: Rows, dues: Dues) -> None:
        self._disk = disk
        self._rows = rows
        self._begin = segment.index_bytes
        self._first_time_ns = segment.first_time_ns
        self._follows = segment.index_end
        self.segment = segment
        self.count = segment.index_count + rows.shape[1]
        self.dues = dues
        self.size = segment.index_bytes
        self.broken = False

    def execute(self) -> None:
        """Write the block; earlier blocks stay as they are."""
        # A start would reject the whole file for one gap, e.g. after damage found by a read.
        if not follows(self._rows, *self._follows):
            self.broken = True
            return
        header = self.segment.header
        head = b"" if self._begin else HEADER.encode(facts_of(header))
        begin = self._begin + len(head)
        block = encode(self._rows, self.dues, self._first_time_ns, begin, header.salt)
        with closing(self._open()) as file:
            file.append([head + block], self._begin)
        self.size = begin + len(block)

    def _open(self) -> File:
        disk, path = self._disk, path_of(self.segment.path)
        if self._begin:
            return disk.open(path)
        # A start has found this file useless: its blocks must not follow the new header.
        if disk.exists(path):
            disk.unlink(path)
        return disk.create(path)
