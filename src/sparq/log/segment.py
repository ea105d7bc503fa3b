"""One file of a log: its header, its name, and what is known of it in memory.

Header, little-endian, 128 bytes at offset 0 and once more at 4,096::

    offset  size  field
         0     8  magic "SPARQLOG"
         8     2  header size, 128
        10     1  version, 1
        11     1  checksum algorithm: 1 = XXH3-64
        12     4  required flags; a reader refuses a file with one that it does not know
        16     8  salt, random: seed of the batch headers' checksums
        24    16  log id
        40     2  node id
        42     2  zero
        44     4  generation: 0, or how many files began at this index before
        48     8  first index: no message in here has a lower one
        56     8  ceiling: indexes below it may have been given by this file's run
        64     8  base ordinal: messages in the log before this file
        72     8  created, ns since 1970
        80     8  first index of the file before this one; -1: none
        88     4  epoch: which run of nsqd made it
        92    28  zero
       120     8  checksum: XXH3-64, seed 0, over bytes [0, 120)

1. Batches begin at 4,608. The header stands twice, in different pages: no single bad sector costs
   more than batches.
2. File and folder are synced before the first message in it counts as stored, so that no index
   below the ceiling is ever given by a later run.
3. Only the run that made a file appends to it. Where a later file begins, this one has ended.
4. Behind the last batch there may be filling up to the end of its page (see `commit`). It is made
   of words, so that nobody takes a batch that became zeros for it.
5. A segment's life, with what stands for each state::

       prepared   a path (``Upkeep.spare``): an empty file under a name of no segment
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
"""Indexes that a file may give; also how far a later start stays clear of it."""
GENERATION_LIMIT: Final = 1 << 16
ORDINAL_MAX: Final = (1 << 63) - 1
FILLING: Final = b"(unused)" * (PAGE_BYTES // 8)
SUFFIX: Final = ".log"
NEXT: Final = ".next"
"""Ends the name of a file that was made in advance and has not got its own yet."""

HEADER: Final = HeaderForm(b"SPARQLOG", "Q16sH2xIqqqqqI28x")


class SegmentHeader(NamedTuple):
    """A file's header, less what every header has."""

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
    """What ties a batch to the file: its salt, and the part of the log's id that batches carry."""
    return BatchKey(header.salt, int.from_bytes(header.log_id[:4], "little"))


def encode_header(header: SegmentHeader) -> bytes:
    """The bytes a file begins with, both copies: DATA_START of them."""
    whole = HEADER.pack(header)
    return whole.ljust(COPY_OFFSET, b"\0") + whole.ljust(DATA_START - COPY_OFFSET, b"\0")


def decode_header(data: bytes, name: str = "") -> SegmentHeader | None:
    """The header of the file whose first DATA_START bytes these are, from the copy that is whole.

    Where both are and they differ, one was written here by mistake, and is another file's: then
    the one that belongs to this name counts. None: neither is whole, or this version cannot read
    the file.
    """
    copies = (HEADER.unpack(data, at) for at in (0, COPY_OFFSET))
    headers = [SegmentHeader(*facts) for facts in copies if facts is not None]
    first = first_index_of(name)
    named = [header for header in headers if header.first_index == first]
    return next(iter(named or headers), None)


def file_name(first_index: int, generation: int) -> str:
    """The name of a file."""
    return f"{first_index:016x}{f'.{generation}' if generation else ''}{SUFFIX}"


def first_index_of(name: str) -> int | None:
    """The first index that a file's name says; None: it is not a segment's name."""
    digits = name.removesuffix(SUFFIX).partition(".")[0]
    if not name.endswith(SUFFIX) or len(digits) != 16:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


class SegmentInfo(NamedTuple):
    """One file, for statistics and trimming. A sealed one takes no more messages."""

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
    """What is known of one file.

    Attributes:
        path: where it is.
        header: its header.
        key: what ties a batch to it.
        first_index: no message in here has a lower index.
        size: bytes up to the end of the last batch that counts.
        extents: where its messages are.
        first_time_ns, last_time_ns: publish times of the first batch and the latest; 0: none.
        index_count: extents that its index file has (see `index_file`).
        index_bytes: how large that file is; 0: there is none that counts.
        index_ends: nothing will be added to it: it has all there is, or damage comes next.
        indexed: its extents are as an index file says, not as its own headers do.
        dues: (index, due time) of deferred messages that the index file does not have yet.
        ordinal_limit: the file behind it begins with this ordinal: what is beyond was torn when
            that file was made, and does not count though its header may be whole.
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
    # What each commit asks for is found out once.
    key: BatchKey = field(init=False)
    first_index: int = field(init=False)

    def __post_init__(self) -> None:
        self.key = key_of(self.header)
        self.first_index = self.header.first_index

    @property
    def index_end(self) -> tuple[int, int, int]:
        """(offset, ordinal, index) where the extents of the index file end."""
        if not self.index_count:
            return DATA_START, self.header.base_ordinal, self.first_index
        last = self.extents[self.index_count - 1]
        return last.offset + last.size, last.end_ordinal, last.end

    @property
    def end_index(self) -> int:
        """The index behind the last message that can be read."""
        return self.extents.ends[-1] if len(self.extents) else self.first_index

    @property
    def end_ordinal(self) -> int:
        """Messages in the log up to the end of this file."""
        return self.extents[-1].end_ordinal if len(self.extents) else self.header.base_ordinal

    def info(self, *, sealed: bool) -> SegmentInfo:
        """What others may know of it."""
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
        end: how long the file is, with the filling behind its last batch; less: there is none.
    """

    segment: Segment
    file: File
    end: int = 0

    def cut(self) -> None:
        """Cut off the filling behind the last batch. Where that fails it does no harm."""
        if self.end > self.segment.size:
            self.end = 0
            with suppress(DiskError):
                self.file.truncate(self.segment.size)

    def close(self) -> None:
        """Append no more: the segment is sealed."""
        self.file.close()


class Place(NamedTuple):
    """Where a log's files are, and what is the same in all that one run makes."""

    disk: Disk
    directory: str
    log_id: bytes
    node_id: int
    epoch: int
    reserve: Reserve | None = None


def create(
    place: Place,
    first_index: int,
    base_ordinal: int,
    created_ns: int,
    previous_first: int,
    *,
    spare: str | None = None,
    bare: bool = False,
) -> ActiveSegment:
    """Make a new file, durable when this returns.

    Args:
        place: where.
        first_index, base_ordinal, created_ns, previous_first: see the header.
        spare: an empty file that is there for good, to be used for it. Its new name may be lost in
            a crash; the header is what counts.
        bare: leave the header out: before `complete` it is none of the log's files.

    Raises:
        DiskError: nothing is left behind, or else it is not `restored`.
    """
    header = SegmentHeader(
        salt=secrets.randbits(64),
        log_id=place.log_id,
        node_id=place.node_id,
        generation=0,
        first_index=first_index,
        ceiling=first_index + CEILING_SPAN,
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
            # The same may well work with a file made now.
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


def _new_name(place: Place, header: SegmentHeader) -> tuple[str, SegmentHeader]:
    """A path that no file has, and the header with its generation."""
    while True:
        path = f"{place.directory}/{file_name(header.first_index, header.generation)}"
        if not place.disk.exists(path):
            return path, header
        header = header._replace(generation=header.generation + 1)
        assert header.generation < GENERATION_LIMIT


def _begin(
    disk: Disk, path: str, header: SegmentHeader, spare: str | None, *, bare: bool
) -> ActiveSegment:
    """A file of this name with this header, synced."""
    if spare is None:
        file = disk.create(path)
    else:
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
    """Give a bare file, whose batches are synced, its header.

    Raises:
        DiskError: it may have it or not.
    """
    bare.file.overwrite(encode_header(bare.segment.header), 0)
    bare.file.sync()


def settle_name(place: Place, segment: Segment) -> None:
    """Give a file its own name that a crash has left with the one it was made under.

    Raises:
        DiskError: it keeps that one, which does no harm.
    """
    path, _ = _new_name(place, segment.header)
    place.disk.rename(segment.path, path)
    segment.path = path


def discard(disk: Disk, file: File) -> bool:
    """Delete a file of which nothing has been acknowledged; False: it may still be there.

    It is gone for good only with a sync of its folder: a power cut could bring back a file that was
    merely deleted, header and all. Recovery ends such a file where the one made in its place
    begins, and the file before it where it begins itself: nothing more may be appended to that one.
    """
    file.close()
    try:
        disk.unlink(file.path)
        disk.sync_directory(file.path.rpartition("/")[0])
    except DiskError:
        return False
    return True
