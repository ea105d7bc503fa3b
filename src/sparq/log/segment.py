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
       active     ActiveSegment: `create`, or `complete` of a bare one; `Log.active`
       sealed     Segment: `ActiveSegment.close`, or found at recovery
       dropped    ``upkeep.Drop``: the log has forgotten it, its file is deleted
"""

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sparq.log.disk import PAGE_BYTES, Disk, DiskError, File
from sparq.log.extents import BatchKey, Extents
from sparq.log.file_header import HeaderForm
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

HEADER: Final = HeaderForm(b"SPARQLOG", "Q16sH2xIqqqqqI28x")


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


def key_of(header: SegmentHeader) -> BatchKey:
    """Return what ties a batch to the file: its salt, and the part of the log id in batches."""
    return BatchKey(header.salt, int.from_bytes(header.log_id[:4], "little"))


def encode_header(header: SegmentHeader) -> bytes:
    """Return the first DATA_START bytes of a file: both copies of the header."""
    whole = HEADER.pack(header)
    return whole.ljust(COPY_OFFSET, b"\0") + whole.ljust(DATA_START - COPY_OFFSET, b"\0")


def decode_header(data: bytes, name: str = "") -> SegmentHeader | None:
    """Decode a whole copy of the header from the first DATA_START bytes of a file.

    If both copies are whole but differ, one was written here by mistake and is another file's: then
    the one that matches this name counts. None: neither is whole, or this version cannot read the
    file.
    """
    copies = (HEADER.unpack(data, at) for at in (0, COPY_OFFSET))
    headers = [SegmentHeader(*facts) for facts in copies if facts is not None]
    first = first_index_of(name)
    named = [header for header in headers if header.first_index == first]
    return next(iter(named or headers), None)


def file_name(first_index: int, generation: int) -> str:
    """Return the name of a segment's file."""
    return f"{first_index:016x}{f'.{generation}' if generation else ''}{SUFFIX}"


def first_index_of(name: str) -> int | None:
    """Return the first index in a file's name; None: it is not a segment's name."""
    digits = name.removesuffix(SUFFIX).partition(".")[0]
    if not name.endswith(SUFFIX) or len(digits) != 16:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


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
        self.key = key_of(self.header)
        self.first_index = self.header.first_index

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

    def close(self) -> None:
        """Close the file: the segment is sealed."""
        self.file.close()


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
        bare: leave the header out: before `complete` it is none of the log's files.

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
    if spare is not None:
        try:
            return _begin(place.disk, *_new_name(place, header), spare, bare=bare)
        except DiskError as error:
            # It may still work with a new file.
            is_clean = error.restored
    try:
        active = _begin(place.disk, *_new_name(place, header), None, bare=bare)
        try:
            place.disk.sync_directory(place.directory)
        except DiskError as error:
            error.restored = discard(place.disk, active.file)
            raise
    except DiskError as error:
        error.restored &= is_clean
        raise
    return active


def _new_name(place: LogDir, header: SegmentHeader) -> tuple[str, SegmentHeader]:
    """Return an unused path, and the header with the path's generation."""
    # After a failure, the next file begins where the refused one did, which may still be there.
    while True:
        path = f"{place.directory}/{file_name(header.first_index, header.generation)}"
        if not place.disk.exists(path):
            return path, header
        header = header._replace(generation=header.generation + 1)
        assert header.generation < GENERATION_LIMIT


def _begin(
    disk: Disk, path: str, header: SegmentHeader, spare: str | None, *, bare: bool
) -> ActiveSegment:
    """Create a file with this name and header, and sync it; a spare is renamed."""
    if spare is None:
        file = disk.create(path)
    else:
        # Beginning a file took up to 46 ms; a renaming needs no sync of the folder.
        disk.rename(spare, path)
        file = disk.open(path)
    try:
        if not bare:
            file.append([encode_header(header)], 0)
            file.sync()
    except DiskError as error:
        error.restored = discard(disk, file)
        raise
    return ActiveSegment(Segment(path, header), file)


def complete(bare: ActiveSegment) -> None:
    """Write the header of a bare file, whose batches are synced.

    Raises:
        DiskError: the header may have been written or not.
    """
    # Not `append`, which would truncate the file to nothing if it failed.
    bare.file.overwrite(encode_header(bare.segment.header), 0)
    bare.file.sync()


def restore_name(place: LogDir, segment: Segment) -> None:
    """Rename a file that a crash has left with the name under which it was made.

    Raises:
        DiskError: it keeps that name, which does no harm.
    """
    path, _ = _new_name(place, segment.header)
    place.disk.rename(segment.path, path)
    segment.path = path


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
