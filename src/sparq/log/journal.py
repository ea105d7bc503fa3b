"""One sync for the commits of many topics: the data path's journal.

When commits of more than a few topics wait together, they are written to their own files, as
usual, and once more, all in one block, to ``journal-<number>`` in the data path. Only the journal
is synced before their OKs. Their own files are synced later, many commits at once (see
`broker.catalog`).

1. A journal is a redo log of bytes: the file, the offset in it, the data. Its contents are durable
   once their block is synced; a start writes them back before anything reads the files (`recover`).
2. A file is identified by path and salt: a file that was dropped since, or another of the same
   name, is left alone. No offset of a file is ever written twice with different bytes: a commit
   that could not be written is in no journal, and a file is abandoned after a failed sync.
3. Everything in the journals up to the number `cleaned` is also in synced files: those journals are
   not needed any more. Only the newest is appended to. While one before it is not clean, no new one
   is begun.
4. If the journal fails, each file is synced by itself, and that journal is not used any more.

The format is a ledger's (see `block_file`); a block's records are entries, little-endian::

    offset  size  field
         0     2  length of the path
         2     8  salt of the segment, from its header
        10     8  offset in the segment's file
        18     4  size of the bytes
        22     -  path, relative to the data path, UTF-8
         -     -  the bytes: one batch
"""

import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sparq.log import block_file
from sparq.log.block_file import DATA_START, HEADER, FileHeader, number_in
from sparq.log.commit import Commit, CommitState
from sparq.log.disk import Disk, DiskError, File, read_bytes, unlink_if_possible
from sparq.log.segment import DATA_START as SEGMENT_DATA_START
from sparq.log.segment import NEXT, SUFFIX, decode_header
from sparq.log.task import Task

SHARE_MIN: Final = 5
"""With fewer commits, each syncs its own file: four such syncs cost no more than a journal's."""
SHARE_BYTES: Final = 1 << 20
"""Maximum size of one block. Larger commits sync their own files: writing twice costs more."""
FILE_BYTES: Final = 8 << 20
"""A journal of this size is followed by a new one. Its contents are kept in memory, too."""
GROUPS_WITHOUT_JOURNAL: Final = 64
"""Number of groups of commits that do without a journal after a failure."""
PREFIX: Final = "journal-"

_ENTRY: Final = struct.Struct("<HQQI")
_NO_LOG: Final = bytes(16)


class JournalEntry(NamedTuple):
    """Bytes of one file.

    Attributes:
        path: the file's path, relative to the data path.
        salt: the salt of the segment that has that path.
    """

    path: str
    salt: int
    offset: int
    data: bytes

    def encode(self) -> bytes:
        """Encode the entry."""
        path = self.path.encode()
        head = _ENTRY.pack(len(path), self.salt, self.offset, len(self.data))
        return b"".join((head, path, self.data))


def decode(records: memoryview) -> Iterator[JournalEntry]:
    """Decode the entries of a whole block."""
    # No bounds are checked: the block's checksum is valid, so it holds what `encode` has made.
    at = 0
    while at < len(records):
        path_size, salt, offset, size = _ENTRY.unpack_from(records, at)
        begin = at + _ENTRY.size + path_size
        path = str(records[begin - path_size : begin], "utf-8")
        at = begin + size
        yield JournalEntry(path, salt, offset, bytes(records[begin:at]))


class Journal:
    """The journal of a data path. `run` belongs to the thread that commits, `clean` to another.

    Attributes:
        number: the number of the newest journal; 0: there is none.
        ended: nothing more is added to the journals up to this number.
        cleaned: see the module's text.
        first: the lowest number that this run may delete: earlier journals stay.
        share_min: the minimum number of commits that share a sync.
        file_bytes: a journal of this size is followed by a new one.
    """

    def __init__(self, disk: Disk, data_path: str) -> None:
        self.number = self.ended = self.cleaned = 0
        self.share_min = SHARE_MIN
        self.file_bytes = FILE_BYTES
        self._disk = disk
        self._data_path = data_path
        self.first = 1
        self._file: File | None = None
        self._salt = 0
        self._size = 0
        self._pause = 0

    def path(self, number: int) -> str:
        """Return the path of the journal with this number."""
        return f"{self._data_path}/{PREFIX}{number:08x}"

    def run(self, tasks: list[Task]) -> Iterator[Sequence[Task]]:
        """Run tasks that wait together, in any order; yield those that have run."""
        # One block after the other, each with at most SHARE_BYTES: the first group is answered
        # before the next one is written.
        while shared := self._sharing(tasks):
            self._commit(shared)
            yield shared
            done = set(map(id, shared))
            tasks = [task for task in tasks if id(task) not in done]
        for task in tasks:
            task.run()
            yield [task]

    def _sharing(self, tasks: list[Task]) -> list[Commit]:
        """Return the commits that share the next sync; none, if it is not worth it."""
        if len(tasks) < self.share_min:
            return []
        shared: list[Commit] = []
        size = 0
        for task in tasks:
            if not isinstance(task, Commit) or task.batch is None or not task.can_share_sync():
                continue
            if size + task.batch.size <= SHARE_BYTES:
                size += task.batch.size
                shared.append(task)
        if len(shared) < self.share_min:
            return []
        if self._pause:
            self._pause -= 1
            return []
        # At most two journals exist, since their batches also stay in memory: if the older one is
        # still needed when the newer one is full, files sync themselves until it is clean.
        has_room = self._file is not None and self._size < self.file_bytes
        return shared if has_room or self.number - self.cleaned <= 1 else []

    def _commit(self, shared: list[Commit]) -> None:
        written: list[Commit] = []
        entries: list[bytes] = []
        for commit in shared:
            if data := commit.write_shared():
                segment, _, offset = commit.written[0]
                path = segment.path.removeprefix(f"{self._data_path}/")
                entries.append(JournalEntry(path, segment.key.salt, offset, data).encode())
                written.append(commit)
        if not written:
            return
        try:
            self._append(b"".join(entries))
        except DiskError as error:
            self._give_up()
            # One note for the operator, not one for each topic.
            written[0].notes.append(
                f"journal failed ({error}): each topic's file is synced separately"
            )
            for commit in written:
                commit.journals_ended = self.number
                commit.sync_unshared()
            return
        for commit in written:
            # Not synced in its own file: the log keeps the batch in memory until it is.
            commit.state = CommitState.JOURNALED
            commit.journal = self.number
            commit.journals_ended = self.number - 1

    def _append(self, entries: bytes) -> None:
        file = self._file
        if file is None or self._size >= self.file_bytes:
            file = self._begin()
        # Appended, not written into a preallocated file: so a start finds the journal's end without
        # a mark (ARCHITECTURE.md, "Tried and rejected").
        block = block_file.encode_block(entries, self._size, self._salt)
        file.append([block], self._size)
        self._size += len(block)
        file.sync()

    def _begin(self) -> File:
        """Begin the next journal, which is durable when this returns."""
        self._give_up()
        self._pause = 0
        number = self.number + 1
        # A journal that could not be deleted keeps its number.
        while self._disk.exists(self.path(number)):
            number += 1
        header = FileHeader(secrets.randbits(64), _NO_LOG, number)
        file = self._disk.create(self.path(number))
        try:
            file.append([HEADER.encode(header)], 0)
            file.sync()
            self._disk.sync_directory(self._data_path)
        except DiskError:
            file.close()
            unlink_if_possible(self._disk, self.path(number))
            raise
        self._file, self._salt, self._size = file, header.salt, DATA_START
        self.number = number
        return file

    def end(self) -> None:
        """Close the newest journal: the next commits that share a sync begin a new one."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.ended = self.number

    def _give_up(self) -> None:
        """Append no more to the newest journal."""
        self._pause = GROUPS_WITHOUT_JOURNAL
        self.end()

    def clean(self, number: int) -> None:
        """Delete the journals up to this number: all that they hold is in synced files."""
        for old in range(max(self.first, self.cleaned + 1), number + 1):
            # Writing one back once more would change nothing.
            unlink_if_possible(self._disk, self.path(old))
        self.cleaned = max(self.cleaned, number)

    def close(self, *, is_clean: bool) -> None:
        """Close the journal when nsqd stops; no task may be running.

        `is_clean`: all its data is in synced files.
        """
        self._give_up()
        if is_clean:
            self.clean(self.number)


# Recovery


@dataclass(slots=True)
class WriteBack:
    """The result of writing journals back.

    Attributes:
        batches: how many batches were missing and are there again.
        report: messages for the operator.
        refused: folders, relative to the data path, with a file that could not be written, and the
            error.
    """

    batches: int = 0
    report: list[str] = field(default_factory=list)
    refused: dict[str, DiskError] = field(default_factory=dict)


def found(disk: Disk, data_path: str) -> list[int]:
    """List the numbers of the journals that an earlier run has left.

    Raises:
        DiskError: the data path cannot be read.
    """
    numbers = (number_in(name, PREFIX) for name in disk.listdir(data_path))
    return sorted(number for number in numbers if number is not None)


def recover(disk: Disk, data_path: str, journal: Journal) -> WriteBack:
    """Write the contents of journals back to their files, and delete the journals.

    Raises:
        DiskError: a journal cannot be read.
    """
    outcome = WriteBack()
    numbers = found(disk, data_path)
    # By file, so that each is opened and synced once, however many entries it has.
    files: dict[tuple[str, int], list[JournalEntry]] = {}
    for number in numbers:
        contents = block_file.read(disk, journal.path(number))
        for block in contents.blocks:
            for entry in decode(block):
                files.setdefault((entry.path, entry.salt), []).append(entry)
        if contents.damaged_bytes or (contents.header is None and contents.size > DATA_START):
            lost = contents.damaged_bytes or contents.size
            outcome.report.append(f"{journal.path(number)}: {lost} damaged bytes")
    for (path, salt), entries in files.items():
        try:
            outcome.batches += _put_back(disk, f"{data_path}/{path}", salt, entries)
        except DiskError as error:
            outcome.refused[path.rpartition("/")[0]] = error
    if outcome.batches:
        outcome.report.append(f"{outcome.batches} batches restored from the journal")
    if numbers and outcome.refused:
        outcome.report.append(
            f"{data_path}: journals kept, because some topics could not be opened"
        )
        # The next start writes them back again, also for topics that were opened and have grown
        # since: that is harmless, because an entry's place never gets other bytes.
        journal.number = journal.cleaned = numbers[-1]
        journal.first = numbers[-1] + 1
    elif numbers:
        journal.number = numbers[-1]
        journal.clean(numbers[-1])
    return outcome


def _put_back(disk: Disk, path: str, salt: int, entries: list[JournalEntry]) -> int:
    """Write all entries to the file and sync it; return how many batches it did not have."""
    file = _open_segment(disk, path, salt)
    if file is None:
        # Dropped since: every channel had finished it, or the topic was deleted.
        return 0
    missing = 0
    with closing(file):
        for entry in entries:
            missing += read_bytes(file, len(entry.data), entry.offset) != entry.data
            # Even data that can be read: it may be in memory only, and no sync would report that.
            file.overwrite(entry.data, entry.offset)
        file.sync()
    return missing


def _open_segment(disk: Disk, path: str, salt: int) -> File | None:
    """Open the segment with this salt: a crash may have undone its last renaming."""
    folder, _, name = path.rpartition("/")
    if not disk.exists(folder):
        return None
    # The path alone does not identify a file: a dropped segment's name may be used again.
    others = (other for other in disk.listdir(folder) if other.endswith((SUFFIX, NEXT)))
    for candidate in sorted(others, key=lambda other: other != name):
        file = disk.open(f"{folder}/{candidate}")
        header = decode_header(read_bytes(file, SEGMENT_DATA_START, 0), candidate)
        if header is not None and header.salt == salt:
            return file
        file.close()
    return None
