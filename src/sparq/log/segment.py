"""One file of a log: its header, its name, and its state in memory.

Header, little-endian, 128 bytes at offset 0 and once more at 4,096::

    offset  size  field
         0     8  magic "SPARQLOG"
         8     2  header size, 128
        10     1  version, 1
        11     1  checksum algorithm: 1 = XXH3-64
        12     4  required flags; a reader refuses a file with an unknown one
        16     8  salt, random: seed of the batch headers' checksums
        24    16  log id
        40     2  node id
        42     2  zero
        44     4  generation: 0, or how many files began at this index before
        48     8  first index: no message in here has a lower one
        56     8  ceiling: indexes below it may have been assigned by this file's run
        64     8  base ordinal: messages in the log before this file
        72     8  created, ns since 1970
        80     8  first index of the file before this one; -1: none
        88     4  epoch: which run of nsqd made it
        92    28  zero
       120     8  checksum: XXH3-64, seed 0, over bytes [0, 120)

1. Batches begin at 4,608. The header is stored twice, in different pages: no single bad sector
   costs more than batches.
2. File and folder are synced before the first message in the file counts as stored, so that no
   later run assigns an index below the ceiling.
3. Only the run that made a file appends to it. A file ends where a later file begins.
4. After the last batch there may be filling up to the end of its page (see `commit`). It repeats
   the text `(unused)`, so that a batch that became zeros is not taken for filling.
5. The states of a segment, each with the object that represents it::

       prepared   a path (``Upkeep.spare``): an empty file whose name is no segment's
       bare       ActiveSegment without a header in its file: `create(bare=True)`
       active     ActiveSegment: `create`, or a bare one that got its header; `Log.active`
       sealed     Segment: its file is closed, or it was found at recovery
       dropped    ``upkeep.Drop``: the log has forgotten it, its file is deleted
"""

import secrets
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.log.block_file import HeaderForm, number_in
from sparq.log.disk import PAGE_BYTES, Disk, DiskError, File
from sparq.log.reserve import Reserve

COPY_OFFSET: Final = 4096
DATA_START: Final = 4608
CEILING_SPAN: Final = 1 << 22
"""Maximum number of indexes in a file; a later start skips as many from the file's first one."""
GENERATION_LIMIT: Final = 1 << 16
ORDINAL_MAX: Final = (1 << 63) - 1
FILLING: Final = b"(unused)" * (PAGE_BYTES // 8)
SUFFIX: Final = ".log"
NEXT: Final = ".next"
"""Suffix of a file that was made in advance and does not have a segment's name yet."""

HEADER: Final = HeaderForm(b"SPARQLOG", "Q16sH2xIqqqqqI28x", COPY_OFFSET, DATA_START)
EXTENT_BYTES: Final = 64 << 10
COLUMNS: Final = 6

Rows = NDArray[np.int64]
"""Extents as columns, shape (6, n), in the order of Extent's fields."""


class SegmentHeader(NamedTuple):
    """A file's header, without the fields that every file header has."""

    salt: int
    log_id: bytes
    node_id: int
    generation: int
    first_index: int
    ceiling: int
    base_ordinal: int
    created_ns: int
    previous_first: int
    epoch: int


def decode_header(data: bytes, name: str = "") -> SegmentHeader | None:
    """Decode a whole copy of the header from the first DATA_START bytes of a file.

    If both copies are whole but differ, one was written here by mistake and is another file's: then
    the one that matches this name counts. None: neither is whole, or this version cannot read the
    file.
    """
    headers = [SegmentHeader(*facts) for facts in HEADER.decode(data)]
    first = first_index_of(name)
    named = [header for header in headers if header.first_index == first]
    return next(iter(named or headers), None)


def first_index_of(name: str) -> int | None:
    """Return the first index in a file's name; None: it is not a segment's name."""
    if not name.endswith(SUFFIX):
        return None
    return number_in(name.removesuffix(SUFFIX).partition(".")[0], "", 16)


class Extent(NamedTuple):
    """One extent: indexes [first, end), file bytes [offset, offset + size).

    An extent is a stretch of the file whose batches follow each other without a gap in bytes,
    indexes and ordinals. It is the unit of reads from the disk and of the cache.
    """

    first: int
    end: int
    ordinal: int
    offset: int
    size: int
    time_max_ns: int

    @property
    def end_ordinal(self) -> int:
        """The number of messages in the log up to the end of this extent."""
        return self.ordinal + self.end - self.first


class Extents:
    """A segment's extents, stored by columns.

    1. An extent takes batches until it reaches 64 KiB; a batch of that size or more is an extent of
       its own. So the index costs 48 bytes for 64 KiB of file, however small the batches are.
    2. Extents ascend in every column except the time; data between two of them is not readable.
    3. `ends` may have been lowered (see `cut`): later batches in the extent's bytes do not count.

    Attributes:
        messages: the number of readable messages.
        firsts, ends, ordinals, offsets, sizes, times: the fields of each `Extent`.
    """

    __slots__ = ("columns", "ends", "firsts", "messages", "offsets", "ordinals", "sizes", "times")

    def __init__(self) -> None:
        self.messages = 0
        # Arrays, since all extents of all logs stay in memory: 750 MiB for a terabyte of log.
        # They grow in place, as NumPy's do not, and `bisect` searches them.
        self.columns = tuple(array("q") for _ in range(COLUMNS))
        self.firsts, self.ends, self.ordinals, self.offsets, self.sizes, self.times = self.columns

    def __len__(self) -> int:
        return len(self.firsts)

    def __getitem__(self, position: int) -> Extent:
        return Extent(*[column[position] for column in self.columns])

    def append(self, batch: Extent, *, fresh: bool = False) -> bool:
        """Add a batch after all others.

        Args:
            batch: its place.
            fresh: whether it must begin a new extent.

        Returns:
            Whether it begins a new extent.
        """
        self.messages += batch.end - batch.first
        if not fresh and self.ends and self.ends[-1] == batch.first:
            size = self.sizes[-1]
            if (
                size < EXTENT_BYTES
                and batch.size < EXTENT_BYTES
                and self.offsets[-1] + size == batch.offset
                and self.ordinals[-1] + batch.first - self.firsts[-1] == batch.ordinal
            ):
                self.ends[-1] = batch.end
                self.sizes[-1] = size + batch.size
                self.times[-1] = max(self.times[-1], batch.time_max_ns)
                return False
        for column, value in zip(self.columns, batch, strict=True):
            column.append(value)
        return True

    def position(self, index: int) -> int:
        """Return the position of the first extent that ends after the index, or len(self)."""
        return bisect_right(self.ends, index)

    def replace(self, position: int, pieces: Iterable[Extent]) -> None:
        """Replace an extent by the parts of it that can still be read."""
        rows = list(pieces)
        for number, column in enumerate(self.columns):
            column[position : position + 1] = array("q", [row[number] for row in rows])
        self._count()

    def _count(self) -> None:
        self.messages = sum(self.ends) - sum(self.firsts)

    def rows(self, position: int, stop: int) -> Rows:
        """Copy the extents [position, stop)."""
        return np.array([column[position:stop] for column in self.columns], np.int64)

    def extend(self, rows: Rows) -> None:
        """Add extents, as `rows` returns them, after all others; none joins the last one."""
        for column, added in zip(self.columns, rows, strict=True):
            column.frombytes(added.tobytes())
        self._count()

    def cut(self, index: int) -> None:
        """Forget all messages from this index on: they are stored elsewhere, or were refused."""
        keep = bisect_left(self.firsts, index)
        for column in self.columns:
            del column[keep:]
        if keep and self.ends[-1] > index:
            self.ends[-1] = index
        self._count()


class BatchKey(NamedTuple):
    """The values that tie a batch to its file."""

    salt: int
    log_id_short: int


class Stretch(NamedTuple):
    """An extent and the file that contains it."""

    path: str
    key: BatchKey
    extent: Extent

    def join(self, after: "Stretch") -> "Stretch | None":
        """Return both as one stretch, which takes one read; None: they do not touch."""
        left, right = self.extent, after.extent
        if (
            self.path != after.path
            or left.offset + left.size != right.offset
            or left.end != right.first
            or left.end_ordinal != right.ordinal
        ):
            return None
        size, time_max_ns = left.size + right.size, max(left.time_max_ns, right.time_max_ns)
        return self._replace(
            extent=left._replace(end=right.end, size=size, time_max_ns=time_max_ns)
        )


class SegmentInfo(NamedTuple):
    """One file, for statistics and trimming; a sealed one takes no more messages."""

    first_index: int
    end_index: int
    size_bytes: int
    messages: int
    sealed: bool
    first_time_ns: int
    last_time_ns: int
    path: str


@dataclass(slots=True, eq=False)
class Segment:
    """The state of one file.

    Attributes:
        path: where it is.
        header: its header.
        key: identifies the file in its batches' checksums (type `BatchKey`).
        first_index: no message in here has a lower index.
        size: bytes up to the end of the last batch that counts.
        extents: where its messages are.
        first_time_ns, last_time_ns: publish times of the first batch and the latest; 0: none.
        index_count: the number of extents in its index file (see `index_file`).
        index_bytes: the size of that file; 0: there is none in use.
        index_ends: nothing more is added to that file: it is complete, or damage comes next.
        indexed: the extents come from an index file, not from the segment's own headers.
        dues: (index, due time) of deferred messages that are not in the index file yet.
        ordinal_limit: the first ordinal of the next file. Batches beyond it were torn when that
            file was made, and do not count, although their headers may be whole.
    """

    path: str
    header: SegmentHeader
    size: int = DATA_START
    extents: Extents = field(default_factory=Extents)
    first_time_ns: int = 0
    last_time_ns: int = 0
    index_count: int = 0
    index_bytes: int = 0
    index_ends: bool = False
    indexed: bool = False
    dues: list[tuple[int, int]] = field(default_factory=list)
    ordinal_limit: int = ORDINAL_MAX
    # Every commit needs these two, so they are computed once.
    key: BatchKey = field(init=False)
    first_index: int = field(init=False)

    def __post_init__(self) -> None:
        log_id_short = int.from_bytes(self.header.log_id[:4], "little")
        self.key = BatchKey(self.header.salt, log_id_short)
        self.first_index = self.header.first_index

    def place(self, extent: Extent) -> Stretch:
        """Return what a reader needs to know about an extent."""
        return Stretch(self.path, self.key, extent)

    @property
    def index_end(self) -> tuple[int, int, int]:
        """Where the index file's extents end: (offset, ordinal, index)."""
        if not self.index_count:
            return DATA_START, self.header.base_ordinal, self.first_index
        last = self.extents[self.index_count - 1]
        return last.offset + last.size, last.end_ordinal, last.end

    @property
    def end_index(self) -> int:
        """The index after the last readable message."""
        return self.extents.ends[-1] if len(self.extents) else self.first_index

    @property
    def end_ordinal(self) -> int:
        """The number of messages in the log up to the end of this file."""
        return self.extents[-1].end_ordinal if len(self.extents) else self.header.base_ordinal

    def info(self, *, sealed: bool) -> SegmentInfo:
        """Return a summary for other modules."""
        return SegmentInfo(
            self.first_index,
            self.end_index,
            self.size,
            self.extents.messages,
            sealed,
            self.first_time_ns,
            self.last_time_ns,
            self.path,
        )


@dataclass(slots=True, eq=False)
class ActiveSegment:
    """A segment that this run appends to, with its open file.

    Attributes:
        end: the file's length including the filling after its last batch; if less than the
            segment's size, there is no filling.
    """

    segment: Segment
    file: File
    end: int = 0

    def cut(self) -> None:
        """Cut off the filling after the last batch; a failure does no harm."""
        # If it stays, a start recognises it by its words and does not take it for a torn batch.
        if self.end > self.segment.size:
            self.end = 0
            with suppress(DiskError):
                self.file.truncate(self.segment.size)


class LogDir(NamedTuple):
    """The place of a log's files, and the values that all files of one run share."""

    disk: Disk
    directory: str
    log_id: bytes
    node_id: int
    epoch: int
    reserve: Reserve | None = None


def create(
    place: LogDir,
    first_index: int,
    base_ordinal: int,
    created_ns: int,
    previous_first: int,
    *,
    next_index: int = 0,
    spare: str | None = None,
    bare: bool = False,
) -> ActiveSegment:
    """Create a new file, which is durable when this returns.

    Args:
        place: where.
        first_index, base_ordinal, created_ns, previous_first: see the header.
        next_index: the index of the newest batch to be written to it, if that is known.
        spare: a durable empty file to be used for it. A crash may undo its renaming; the header is
            what counts.
        bare: leave the header out: until it is written, the file is none of the log's.

    Raises:
        DiskError: if the error is `restored`, nothing is left behind.
    """
    header = SegmentHeader(
        # Unknown to publishers: a body that contains a batch does not pass for one.
        salt=secrets.randbits(64),
        log_id=place.log_id,
        node_id=place.node_id,
        generation=0,
        first_index=first_index,
        # Refused batches have used up the indexes between the two: millions of them, if a disk is
        # full for long. Messages beyond the ceiling would not be read at the next start.
        ceiling=max(first_index, next_index) + CEILING_SPAN,
        base_ordinal=base_ordinal,
        created_ns=created_ns,
        previous_first=previous_first,
        epoch=place.epoch,
    )
    is_clean = True
    # If the spare cannot be used, a new file may still work.
    for ready in (spare, None) if spare is not None else (None,):
        try:
            return _begin(place, header, ready, bare=bare)
        except DiskError as error:
            error.restored &= is_clean
            is_clean = error.restored
            if ready is None:
                raise
    raise AssertionError


def new_name(place: LogDir, header: SegmentHeader) -> tuple[str, SegmentHeader]:
    """Return an unused path, and the header with the path's generation."""
    # After a failure, the next file begins where the refused one did, which may still be there.
    while True:
        number = f".{header.generation}" if header.generation else ""
        path = f"{place.directory}/{header.first_index:016x}{number}{SUFFIX}"
        if not place.disk.exists(path):
            return path, header
        header = header._replace(generation=header.generation + 1)
        assert header.generation < GENERATION_LIMIT


def _begin(place: LogDir, header: SegmentHeader, spare: str | None, *, bare: bool) -> ActiveSegment:
    """Create a file with this header, durably; a spare is renamed instead."""
    path, header = new_name(place, header)
    if spare is None:
        file = place.disk.create(path)
    else:
        # Beginning a file took up to 46 ms; a renaming needs no sync of the folder.
        place.disk.rename(spare, path)
        file = place.disk.open(path)
    try:
        if not bare:
            file.append([HEADER.encode(header)], 0)
            file.sync()
        if spare is None:
            place.disk.sync_directory(place.directory)
    except DiskError as error:
        error.restored = discard(place.disk, file)
        raise
    return ActiveSegment(Segment(path, header), file)


def discard(disk: Disk, file: File) -> bool:
    """Delete a file from which nothing was acknowledged; False: it may still exist.

    The deletion is durable only after a sync of the folder: a power cut could bring back a file
    that was merely deleted, header and all. Recovery would end that file where its replacement
    begins, and the file before it where the deleted one begins: nothing more may be appended to the
    file before it.
    """
    file.close()
    try:
        disk.unlink(file.path)
        disk.sync_directory(file.path.rpartition("/")[0])
    except DiskError:
        return False
    return True
