"""Finds out what a log's folder holds after a clean stop, a crash or damage.

`recover` changes nothing on the disk; `restore_names` and `sync_found`, which follow it, do.

1. A file ends at its last batch with a valid header, or where a later file begins: at that file's
   first index, or at its first ordinal. A torn batch can have a whole header: the next run of
   nsqd leaves it out, and so must every later one.
2. All headers that no index file describes are checked (see `index_file`). Payloads are checked
   where a crash may have torn them: after what the index file describes, in the last 16 MiB of the
   newest file, which is more than is ever unsynced. Other payloads are checked when they are read.
3. A bad stretch before a good batch is damage: it is reported with the number of messages lost, as
   the ordinals show. A bad stretch with no good batch after it is a torn tail: it was never
   acknowledged, or it is damage at the very end, which no reader can distinguish. It is reported as
   `torn_bytes`.
"""

import errno
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sparq.log import index_file
from sparq.log.disk import (
    PAGE_BYTES,
    Disk,
    DiskError,
    File,
    FileSystem,
    read_bytes,
    write_all_again,
)
from sparq.log.index_file import SUFFIX as INDEX
from sparq.log.reading import Damage, Rescan, damage_of, headers, pieces_of
from sparq.log.segment import (
    CEILING_SPAN,
    DATA_START,
    FILLING,
    NEXT,
    SUFFIX,
    Extent,
    LogDir,
    Segment,
    decode_header,
    first_index_of,
    new_name,
)
from sparq.log.upkeep import GONE
from sparq.protocol import batch
from sparq.protocol.batch import HAS_DUES, BatchHeader

VERIFY_BYTES: Final = 16 << 20
NO_HEADER: Final = "no readable file header"


class UnusableFile(NamedTuple):
    """A file that, by its name, should hold messages of this log, but holds none."""

    first: int
    path: str
    size: int
    reason: str


@dataclass(slots=True, eq=False)
class Recovered:
    """The result of a recovery.

    Attributes:
        segments: the log's files in order, without the unreadable ones.
        log_id: the id in the files; without files, the expected one.
        ceiling: no run that left files has assigned this index, or a higher one.
        epoch: the latest run that left files; 0: none.
        unread: files that hold none of the log's messages, whatever their names say.
        damage: what cannot be read.
        torn_bytes: bytes after the last batch of the newest file.
        dues: (index, due time in ns since 1970) of the deferred publishes.
        leftovers: files that are of no use, to be deleted.
    """

    segments: list[Segment] = field(default_factory=list)
    log_id: bytes | None = None
    ceiling: int = 0
    epoch: int = 0
    unread: list[UnusableFile] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    torn_bytes: int = 0
    dues: list[tuple[int, int]] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


def recover(
    disk: Disk, directory: str, log_id: bytes | None, *, believes_indexes: bool = True
) -> Recovered:
    """Read the headers of all files in the folder.

    Args:
        disk: the disk.
        directory: the log's folder.
        log_id: the id that the log's files should have; ignored if none has it.
        believes_indexes: whether index files may replace the headers that they describe.

    Raises:
        DiskError: the folder or a file cannot be opened.
    """
    found = Recovered()
    candidates = _candidates(disk, directory, found)
    found.log_id = log_id
    # If the ledger was lost, the expected id is a new one, and no file has it: the newest file's
    # counts.
    if candidates and not any(segment.header.log_id == log_id for segment in candidates):
        newest = max(candidates, key=lambda segment: segment.header.created_ns)
        found.log_id = newest.header.log_id
    for segment in candidates:
        if segment.header.log_id == found.log_id:
            found.segments.append(segment)
        else:
            first = first_index_of(segment.path.rpartition("/")[2]) or 0
            found.unread.append(UnusableFile(first, segment.path, 0, "file of another log"))
    # Of two files with the same first index the later generation counts: the other one ends there.
    found.segments.sort(key=lambda segment: (segment.first_index, segment.header.generation))
    for position, segment in enumerate(found.segments):
        found.ceiling = max(found.ceiling, segment.header.ceiling)
        found.epoch = max(found.epoch, segment.header.epoch)
        limit = segment.header.ceiling
        if position + 1 < len(found.segments):
            after = found.segments[position + 1]
            limit, segment.ordinal_limit = after.first_index, after.header.base_ordinal
        _scan(disk, segment, limit, found, believes_indexes)
    _compare_ordinals(found)
    costs = (_damage_of(unread, found.segments) for unread in found.unread)
    found.damage += [damage for damage in costs if damage is not None]
    if found.segments:
        _verify_tail(disk, found.segments[-1], found)
    return found


def _candidates(disk: Disk, directory: str, found: Recovered) -> list[Segment]:
    """List the files with a segment's name and header; note the others in `found`."""
    segments: list[Segment] = []
    names = disk.listdir(directory)
    for name in names:
        first = first_index_of(name)
        path = f"{directory}/{name}"
        # An index file without its segment is an orphan.
        is_orphan = name.endswith(INDEX) and name.removesuffix(INDEX) + SUFFIX not in names
        if name.endswith((GONE, NEXT)) or is_orphan:
            # Only the header shows whether a file made in advance has become a segment.
            made_in_advance = _candidate(disk, path) if name.endswith(NEXT) else None
            if isinstance(made_in_advance, Segment):
                segments.append(made_in_advance)
            elif made_in_advance is not None and made_in_advance > DATA_START:
                found.damage.append(Damage(0, 0, 0, path, 0, made_in_advance, NO_HEADER))
            else:
                found.leftovers.append(path)
        elif first is not None:
            # From the name: even if the header is damaged, these indexes may have been assigned.
            found.ceiling = max(found.ceiling, first + CEILING_SPAN)
            candidate = _candidate(disk, path)
            if isinstance(candidate, Segment):
                segments.append(candidate)
            else:
                found.unread.append(UnusableFile(first, path, candidate, NO_HEADER))
    return segments


def _candidate(disk: Disk, path: str) -> Segment | int:
    """Return a segment if the file has a valid header, else the file's size.

    Raises:
        DiskError: the file cannot be opened, or neither copy of its header can be read.
    """
    with closing(disk.open(path)) as file:
        name = path.rpartition("/")[2]
        # A header that cannot be read is no damage yet: a later start may be able to read it.
        header = decode_header(read_bytes(file, DATA_START, 0), name) or decode_header(
            file.pread(DATA_START, 0), name
        )
        size = file.size()
    return size if header is None else Segment(path, header, size=size)


def _damage_of(unread: UnusableFile, segments: list[Segment]) -> Damage | None:
    """Return what an unread file has cost, according to the file after it, if that is there.

    None: the file was being made when its run ended. Nothing in it was acknowledged.
    """
    first, path, size, reason = unread
    after = next((s for s in segments if s.header.previous_first == first), None)
    if after is None or any(s.first_index == first for s in segments):
        # No later file names it, or a file of the same first index took its place.
        is_new = size <= DATA_START and reason == NO_HEADER
        return None if is_new else Damage(first, first + CEILING_SPAN, 0, path, 0, size, reason)
    before = next((s for s in reversed(segments) if s.first_index < first), None)
    lost = after.header.base_ordinal - before.end_ordinal if before is not None else 0
    return Damage(first, after.first_index, lost, path, 0, size, reason)


def _scan(disk: Disk, segment: Segment, limit: int, found: Recovered, believes_index: bool) -> None:
    """Find where the file's messages are."""
    # Until here, `size` is the file's; from here on, it ends with the last batch that counts.
    file_size, segment.size = segment.size, DATA_START
    index = index_file.read(disk, segment, file_size, limit) if believes_index else None
    if index is not None:
        segment.extents.extend(index.rows)
        segment.size = index.end_offset
        segment.first_time_ns = index.first_time_ns
        segment.last_time_ns = int(index.rows[5].max())
        segment.index_count, segment.index_bytes = index.rows.shape[1], index.size
        segment.indexed = True
        found.dues += index.dues
    # Not added up over the files: if an older file has lost messages at its end, the ordinals show
    # it, and `_compare_ordinals` reports them.
    found.torn_bytes = 0
    if segment.size < file_size:
        _read_headers(disk, segment, (segment.size, file_size), limit, found)


def _read_headers(
    disk: Disk, segment: Segment, place: tuple[int, int], limit: int, found: Recovered
) -> None:
    """Add the batches whose headers are in [start, size) of the file."""
    _, ordinal, index = segment.index_end
    bad: tuple[int, int] | None = None
    with closing(disk.open(segment.path)) as file:
        for offset, size, header in headers(file, *place, segment.key):
            if header is None or not header.readable:
                bad = bad or (offset, offset)
                bad = (bad[0], offset + size)
                continue
            # A later file begins before these batches: they were torn or refused, or are in there.
            if header.first_index >= limit or header.end_ordinal > segment.ordinal_limit:
                bad = None
                break
            if bad is not None or header.ordinal > ordinal:
                start, stop = bad or (offset, offset)
                lost = header.ordinal - ordinal
                found.damage.append(
                    Damage(
                        first=index,
                        end=header.first_index,
                        messages=lost,
                        path=segment.path,
                        offset=start,
                        size_bytes=stop - start,
                        reason="damaged batch",
                    )
                )
                bad = None
            _add_batch(file, segment, offset, header, found)
            index, ordinal = header.end_index, header.end_ordinal
        if bad is not None:
            size = bad[1] - bad[0]
            # After a synced batch, the rest of its page may be filling.
            if size >= PAGE_BYTES or read_bytes(file, size, bad[0]) != FILLING[:size]:
                found.torn_bytes = size


def scan_again(disk: Disk, segment: Segment, limit: int) -> Rescan:
    """Read the headers of a file, ignoring its index file.

    Raises:
        DiskError: the file cannot be opened or read at all.
    """
    found = Recovered()
    fresh = Segment(segment.path, segment.header, size=segment.size)
    fresh.ordinal_limit = segment.ordinal_limit
    _scan(disk, fresh, limit, found, believes_index=False)
    return Rescan(fresh.extents, found.damage)


def _add_batch(
    file: File, segment: Segment, offset: int, header: BatchHeader, found: Recovered
) -> None:
    """Add a batch."""
    segment.extents.append(
        Extent(
            header.first_index,
            header.end_index,
            header.ordinal,
            offset,
            header.total_size,
            header.publish_time_ns,
        ),
        # The extents in the index file must not change.
        fresh=len(segment.extents) == segment.index_count,
    )
    segment.size = offset + header.total_size
    segment.first_time_ns = segment.first_time_ns or header.publish_time_ns
    segment.last_time_ns = max(segment.last_time_ns, header.publish_time_ns)
    # Due times are the only part of the payload that a start needs in memory.
    if header.optional_flags & HAS_DUES:
        data = read_bytes(file, header.total_size, offset)
        if batch.check_payload(data, 0, header):
            dues = [
                (header.first_index + at, due) for at, due in batch.decode(data, 0, header).dues
            ]
            segment.dues += dues
            found.dues += dues


def _compare_ordinals(found: Recovered) -> None:
    """Report messages lost at the end of a file, according to the file that followed it."""
    for before, after in zip(found.segments, found.segments[1:], strict=False):
        lost = after.header.base_ordinal - before.end_ordinal
        # Otherwise the file between them was deleted, since all channels had finished it.
        if lost > 0 and after.header.previous_first == before.first_index:
            end = after.first_index
            found.damage.append(
                Damage(before.end_index, end, lost, before.path, before.size, 0, "damaged end")
            )


def _verify_tail(disk: Disk, segment: Segment, found: Recovered) -> None:
    """Verify the payloads that a crash may have torn."""
    extents = segment.extents
    position = len(extents)
    while (
        position > segment.index_count
        and extents[position - 1].offset >= segment.size - VERIFY_BYTES
    ):
        position -= 1
    # From the end: replacing an extent moves those after it, and only the last one can be torn.
    for at in reversed(range(position, len(extents))):
        place = segment.place(extents[at])
        try:
            with closing(disk.open(place.path)) as file:
                data = file.pread(place.extent.size, place.extent.offset)
        except DiskError as error:
            if error.number != errno.EIO:
                raise
            # Unreadable is not torn. If it stays unreadable, a later read reports it.
            continue
        pieces = pieces_of(data, place)
        damage = damage_of(place, pieces)
        if not damage:
            continue
        extents.replace(at, [piece.extent for piece in pieces])
        last = damage[-1]
        if at + len(pieces) == len(extents) and last.end == place.extent.end:
            found.torn_bytes += segment.size - last.offset
            segment.size = last.offset
            damage.pop()
        found.damage.extend(damage)


def restore_names(place: LogDir, segments: list[Segment]) -> None:
    """Rename files that a crash has left with the names under which they were made."""
    for segment in segments:
        if segment.path.endswith(NEXT):
            # The disk may be read-only, or fail: the old name does no harm.
            with suppress(DiskError):
                path, _ = new_name(place, segment.header)
                place.disk.rename(segment.path, path)
                segment.path = path


def sync_found(
    disk: Disk, directory: str, segments: list[Segment], file_system: FileSystem | None
) -> None:
    """Sync the files that were found: a killed process may have left data in memory only.

    Data that an index file describes was synced, and so was every file except the newest.

    Args:
        disk: the disk.
        directory: the log's folder.
        segments: the segments that were found there.
        file_system: the file system that the caller syncs next, if the folder lies on it; None: it
            syncs none.

    Raises:
        DiskError: the files cannot be made durable; nothing may rely on them.
    """
    files = [
        (newest.path, max(newest.index_end[0], newest.size - VERIFY_BYTES))
        for newest in segments[-1:]
    ]
    write_all_again(disk, directory, files, file_system)
