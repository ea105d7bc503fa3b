"""One sync for the commits of many topics: the data path's journal.

Commits of more than a few topics that wait together are written to their own files, as ever, and
once more, all in one block, to ``journal-<number>`` in the data path, which alone is synced before
their OKs. Their own files are synced later, many commits at once (see `broker.checkpoints`).

1. A journal is a redo log of bytes: which file, where in it, what. What it holds is there for good
   once its block is synced; a start puts it back before anybody reads the files (`recover`).
2. A file is named by path and salt: one that was dropped since, or another of the same name, is
   left alone. No place of a file is ever written twice with different bytes: a commit that could
   not be written is in no journal, and behind a failed sync the file is given up.
3. Up to the number `cleaned` all that journals hold is also in synced files: those are of no more
   use. Only the newest is appended to. While one before it is not clean, none is begun.
4. Where the journal fails, each file is synced by itself, and its journal is used no more.

The format is a ledger's (see `ledger_file`); a block's records are entries, little-endian::

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
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from sparq.log import ledger_file
from sparq.log.commit import Commit
from sparq.log.disk import Disk, DiskError, File
from sparq.log.ledger_file import DATA_START, LedgerHeader
from sparq.log.task import TaskKind, Work

SHARE_MIN: Final = 5
"""Fewer commits sync their own files: a journal's sync is not cheaper than four of those."""
SHARE_BYTES: Final = 1 << 20
"""Of one block. Larger commits sync their own files: writing twice would cost more than that."""
FILE_BYTES: Final = 8 << 20
"""Of one journal. What it holds is kept in memory, too."""
PAUSE: Final = 64
"""After a failure so many groups of commits do without a journal."""
PREFIX: Final = "journal-"

_ENTRY: Final = struct.Struct("<HQQI")
_NO_LOG: Final = bytes(16)


class Entry(NamedTuple):
    """Bytes of one file.

    Attributes:
        path: relative to the data path.
        salt: of the segment that has that path.
    """

    path: str
    salt: int
    offset: int
    data: bytes


def encode(entries: Iterable[Entry]) -> bytes:
    """A block's records."""
    parts: list[bytes] = []
    for entry in entries:
        path = entry.path.encode()
        parts += _ENTRY.pack(len(path), entry.salt, entry.offset, len(entry.data)), path, entry.data
    return b"".join(parts)


def decode(records: memoryview) -> Iterator[Entry]:
    """The entries of a whole block."""
    at = 0
    while at < len(records):
        path_size, salt, offset, size = _ENTRY.unpack_from(records, at)
        at += _ENTRY.size
        path = bytes(records[at : at + path_size]).decode()
        at += path_size
        yield Entry(path, salt, offset, bytes(records[at : at + size]))
        at += size


def number_of(name: str) -> int | None:
    """The number in a journal's name; None: it is not one's."""
    digits = name.removeprefix(PREFIX)
    if digits == name or len(digits) != 8:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


class Journal:
    """The journal of a data path. `run` belongs to the thread that commits, `clean` to another.

    Attributes:
        number: of the newest journal; 0: there is none.
        cleaned: see the module's text.
        share_min: so many commits share a sync.
        file_bytes: a journal of this size is followed by a new one.
    """

    def __init__(self, disk: Disk, data_path: str) -> None:
        self.number = 0
        self.cleaned = 0
        self.share_min = SHARE_MIN
        self.file_bytes = FILE_BYTES
        self._disk = disk
        self._data_path = data_path
        self._first = 1
        self._file: File | None = None
        self._salt = 0
        self._size = 0
        self._pause = 0

    def continue_from(self, number: int) -> None:
        """Journals up to this number are an earlier run's: they stay as they are."""
        self.number = self.cleaned = number
        self._first = number + 1

    def path(self, number: int) -> str:
        """Where the journal of this number is."""
        return f"{self._data_path}/{PREFIX}{number:08x}"

    def run(self, works: list[Work]) -> Iterator[list[Work]]:
        """Run works that wait together, in any order; yields those that have run."""
        while shared := self._shared(works):
            self._commit(shared)
            yield list(shared)
            done = set(map(id, shared))
            works = [work for work in works if id(work) not in done]
        for work in works:
            work.run()
            yield [work]

    def _shared(self, works: list[Work]) -> list[Commit]:
        """The commits that are to have one sync next; none, if it is not worth it."""
        if len(works) < self.share_min:
            return []
        shared: list[Commit] = []
        size = 0
        for work in works:
            if isinstance(work, Commit) and work.may_share_sync:
                assert work.batch is not None
                if size + work.batch.size <= SHARE_BYTES:
                    size += work.batch.size
                    shared.append(work)
        return shared if len(shared) >= self.share_min and self._is_usable() else []

    def _is_usable(self) -> bool:
        if self._pause:
            self._pause -= 1
            return False
        has_room = self._file is not None and self._size < self.file_bytes
        return has_room or self.number - self.cleaned <= 1

    def _commit(self, commits: list[Commit]) -> None:
        written = [commit for commit in commits if commit.write()]
        if not written:
            return
        try:
            self._append(encode(map(self._entry, written)))
        except DiskError as error:
            self._give_up()
            written[0].notes.append(f"{error}: each topic's file is synced by itself")
            for commit in written:
                commit.journals_ended = self.number
                commit.sync_alone()
            return
        for commit in written:
            commit.journal = self.number
            commit.journals_ended = self.number - 1

    def _entry(self, commit: Commit) -> Entry:
        target = commit.target
        assert target is not None
        path = target.path.removeprefix(f"{self._data_path}/")
        return Entry(path, target.header.salt, target.size, commit.data)

    def _append(self, entries: bytes) -> None:
        if self._file is None or self._size >= self.file_bytes:
            self._begin()
        assert self._file is not None
        block = ledger_file.encode_block(entries, self._size, self._salt)
        self._file.append([block], self._size)
        self._size += len(block)
        self._file.sync()

    def _begin(self) -> None:
        """Begin the next journal, which is there for good when this returns."""
        self._give_up()
        self._pause = 0
        number = self.number + 1
        while self._disk.exists(self.path(number)):
            number += 1
        header = LedgerHeader(secrets.randbits(64), _NO_LOG, number)
        file = self._disk.create(self.path(number))
        try:
            file.append([ledger_file.encode_header(header)], 0)
            file.sync()
            self._disk.sync_directory(self._data_path)
        except DiskError:
            file.close()
            self._unlink(number)
            raise
        self._file, self._salt, self._size = file, header.salt, DATA_START
        self.number = number

    def end(self) -> None:
        """Let the next commits that share a sync begin a new journal."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self) -> None:
        """Append no more to the journal that there is."""
        self._pause = PAUSE
        self.end()

    def _unlink(self, number: int) -> None:
        """Delete a journal, if the disk lets us: putting one back too many changes nothing."""
        try:
            self._disk.unlink(self.path(number))
        except DiskError:
            return

    def clean(self, number: int) -> None:
        """All that journals up to this number hold is in synced files: delete them."""
        for old in range(max(self._first, self.cleaned + 1), number + 1):
            self._unlink(old)
        self.cleaned = max(self.cleaned, number)

    def close(self, *, is_clean: bool) -> None:
        """nsqd stops, no work is under way; `is_clean`: all is in synced files."""
        self._give_up()
        if is_clean:
            self.clean(self.number)


class End:
    """Work: nothing more is added to the journal that there is.

    Attributes:
        number: of the journal that has ended.
    """

    kind: Final = TaskKind.COMMIT
    error: DiskError | None = None

    def __init__(self, journal: Journal) -> None:
        self.number = 0
        self._journal = journal

    def run(self) -> None:
        """End it; in the thread that commits."""
        self._journal.end()
        self.number = self._journal.number


class Cleaning:
    """Work: journals are of no more use."""

    kind: Final = TaskKind.HOUSEKEEPING
    error: DiskError | None = None

    def __init__(self, journal: Journal, number: int) -> None:
        self._journal = journal
        self._number = number

    def run(self) -> None:
        """Delete them."""
        self._journal.clean(self._number)
