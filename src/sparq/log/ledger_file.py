"""One file of a ledger: a header, then checksummed blocks of records.

Header, little-endian, 64 bytes at offset 0 and once more at 512::

    offset  size  field
         0     8  magic "SPARQLED"
         8     2  header size, 64
        10     1  version, 1
        11     1  checksum algorithm: 1 = XXH3-64
        12     4  required flags; a reader refuses a file with an unknown one
        16     8  salt, random
        24    16  log id
        40     4  generation
        44    12  zero
        56     8  checksum: XXH3-64, seed 0, over bytes [0, 56)

Blocks begin at 1,024 and at multiples of 8::

    offset  size  field
         0     4  magic "SPQL"
         4     4  size of the records
         8     8  checksum: XXH3-64, seed = salt, over the block's offset (u64), the size (u32) and
                  the records
        16     -  records | zeros up to a multiple of 8

1. A block is one flush: after a crash all of it is there, or none.
2. After damage, the next block is found in the same way as a batch (see `reading`).
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from sparq.log.bad_pages import read_bytes
from sparq.log.disk import Disk, DiskError, File
from sparq.log.file_header import HeaderForm
from sparq.log.reserve import BLOCK_BYTES, Purpose, Reserve, with_reserve
from sparq.log.task import TaskKind

COPY_OFFSET: Final = 512
DATA_START: Final = 1024
BLOCK_MAGIC: Final = b"SPQL"
ALIGNMENT: Final = 8

_HEADER: Final = HeaderForm(b"SPARQLED", "Q16sI12x")
_BLOCK: Final = struct.Struct("<4sIQ")
_COVERED: Final = struct.Struct("<QI")


class LedgerHeader(NamedTuple):
    """A file's header, without the fields that every file header has."""

    salt: int
    log_id: bytes
    generation: int


class LedgerContents(NamedTuple):
    """The contents of a file.

    Attributes:
        header: None if both copies are damaged: then the rest cannot be read.
        blocks: the records of each whole block, in order.
        end: where the last whole block ends.
        size: the file's size.
        damaged_bytes: bytes before `end` that are in no whole block.
    """

    header: LedgerHeader | None
    blocks: list[memoryview]
    end: int
    size: int
    damaged_bytes: int


def encode_header(header: LedgerHeader) -> bytes:
    """Return the first DATA_START bytes of a file: both copies of the header."""
    whole = _HEADER.pack(header)
    return whole.ljust(COPY_OFFSET, b"\0") + whole.ljust(DATA_START - COPY_OFFSET, b"\0")


def decode_header(data: bytes) -> LedgerHeader | None:
    """Decode a whole copy of the header; None: there is none, or none for this version."""
    copies = (_HEADER.unpack(data, at) for at in (0, COPY_OFFSET))
    return next((LedgerHeader(*facts) for facts in copies if facts is not None), None)


def encode_block(records: bytes, offset: int, salt: int) -> bytes:
    """Encode a block of these records for this offset of the file with this salt."""
    size = len(records)
    checksum = xxh3_64_intdigest(_COVERED.pack(offset, size) + records, salt)
    padding = bytes(-(_BLOCK.size + size) % ALIGNMENT)
    return b"".join((_BLOCK.pack(BLOCK_MAGIC, size, checksum), records, padding))


def block_at(data: bytes, at: int, salt: int) -> memoryview | None:
    """Return the records of the whole block at this offset of the file; None: there is none."""
    if at + _BLOCK.size > len(data):
        return None
    magic, size, checksum = _BLOCK.unpack_from(data, at)
    begin = at + _BLOCK.size
    if magic != BLOCK_MAGIC or begin + size > len(data):
        return None
    covered = _COVERED.pack(at, size) + data[begin : begin + size]
    whole = xxh3_64_intdigest(covered, salt) == checksum
    return memoryview(data)[begin : begin + size] if whole else None


def _blocks(data: bytes, salt: int) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, records) of the whole blocks."""
    at = DATA_START
    while at < len(data):
        records = block_at(data, at, salt) if at % ALIGNMENT == 0 else None
        if records is not None:
            yield at, records
            at += _BLOCK.size + len(records)
            at += -at % ALIGNMENT
            continue
        # A damaged size does not show where the next block begins.
        at = data.find(BLOCK_MAGIC, at + 1)
        if at < 0:
            return


def read(disk: Disk, path: str) -> LedgerContents:
    """Read a file and find out which of its blocks are whole.

    Raises:
        DiskError: it cannot be opened, or its header cannot be read.
    """
    file = disk.open(path)
    try:
        data = read_bytes(file, file.size(), 0)
        # Without the header no block counts, and the topic would forget its channels for good. So
        # a header that cannot be read is no damage yet: a later start may be able to read it.
        header = decode_header(data[:DATA_START]) or decode_header(file.pread(DATA_START, 0))
    finally:
        file.close()
    if header is None:
        return LedgerContents(None, [], 0, len(data), 0)
    blocks: list[memoryview] = []
    end, damaged = DATA_START, 0
    for offset, records in _blocks(data, header.salt):
        damaged += offset - end
        blocks.append(records)
        end = offset + _BLOCK.size + len(records)
        end += -end % ALIGNMENT
    return LedgerContents(header, blocks, end, len(data), damaged)


# File names, and tasks, which run outside the event loop


BESIDE: Final = ".tmp"
"""Suffix of a checkpoint that is being written."""


def ledger_path(directory: str, generation: int) -> str:
    """Return the path of the file to which this generation's records are appended."""
    return f"{directory}/ledger-{generation:08x}"


def checkpoint_path(directory: str, generation: int) -> str:
    """Return the path of the checkpoint: the state before this generation's first record."""
    return f"{directory}/checkpoint-{generation:08x}"


def parse_name(name: str) -> tuple[str, int] | None:
    """Return ("ledger" or "checkpoint", generation) of a file's name; None: it is neither."""
    kind, _, digits = name.partition("-")
    if kind not in ("ledger", "checkpoint") or len(digits) != 8:
        return None
    try:
        return kind, int(digits, 16)
    except ValueError:
        return None


class LedgerSync:
    """A task that syncs a ledger's files."""

    __slots__ = ("_disk", "_folder", "error", "files", "mark")

    def __init__(self, disk: Disk, files: list[File], folder: str | None, mark: int) -> None:
        """Prepare the task.

        Args:
            disk: the disk.
            files: files that were appended to since the last sync, the newest last.
            folder: a folder to sync too, since it has a new file; None: it has none.
            mark: the number of records that are written.
        """
        self._disk = disk
        self.files = files
        self._folder = folder
        self.mark = mark
        self.error: DiskError | None = None

    @property
    def kind(self) -> TaskKind:
        """COMMIT: replies may wait for it, as for a commit."""
        return TaskKind.COMMIT

    def run(self) -> None:
        """Sync the files and the folder."""
        try:
            for file in self.files:
                file.sync()
            if self._folder is not None:
                self._disk.sync_directory(self._folder)
        except DiskError as error:
            self.error = error


class Checkpoint:
    """A task that writes a checkpoint, and deletes the files that it replaces."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        header: LedgerHeader,
        state: bytes,
        *,
        fresh: File,
        replaced: list[File],
        mark: int,
        reserve: Reserve | None,
        purpose: Purpose = Purpose.APPEND,
    ) -> None:
        """Prepare the task.

        Args:
            disk: the disk.
            directory: the topic's folder.
            header: the checkpoint's header, with its generation.
            state: the encoded records.
            fresh: the ledger of the same generation, just begun.
            replaced: older ledgers, still open, but not appended to any more.
            mark: the number of records that the state includes.
            reserve: space for a full disk.
            purpose: CHECKPOINT: the state is stored once, and the floor of the reserve may be used.
        """
        self._disk = disk
        self._directory = directory
        self._header = header
        self._fresh = fresh
        self._replaced = replaced
        self._reserve = reserve
        self._purpose = purpose
        block = encode_block(state, DATA_START, header.salt)
        # Stored twice: one bad sector must not cost all channels. On a full disk it is stored once,
        # because the reserve sets space aside for one copy only.
        copy = b""
        if purpose is not Purpose.CHECKPOINT:
            copy = encode_block(state, DATA_START + len(block), header.salt)
        self._data = b"".join((encode_header(header), block, copy))
        self.mark = mark
        self.state_bytes = len(state)
        self.size_bytes = len(self._data)
        self.error: DiskError | None = None
        self.fresh_failed = False
        """Whether the new ledger could not be synced."""

    @property
    def kind(self) -> TaskKind:
        """HOUSEKEEPING: a checkpoint may be large."""
        return TaskKind.HOUSEKEEPING

    def run(self) -> None:
        """Write a temporary file, sync, rename, sync the folder; only then delete."""
        try:
            self._write()
        except DiskError as error:
            self.error = error
            return
        self._tidy()

    def _write(self) -> None:
        path = checkpoint_path(self._directory, self._header.generation)
        beside = path + BESIDE
        if self._disk.exists(beside):
            self._disk.unlink(beside)
        # First the ledger that continues from this state: if it cannot be synced, nothing that was
        # written to it can be acknowledged, and the files before it must stay.
        self.fresh_failed = True
        self._fresh.sync()
        self.fresh_failed = False
        reserve, purpose = self._reserve, self._purpose
        file = with_reserve(lambda: self._disk.create(beside), reserve, BLOCK_BYTES, purpose)
        try:
            try:
                with_reserve(
                    lambda: file.append([self._data], 0), reserve, self.size_bytes, purpose
                )
                file.sync()
            finally:
                file.close()
            with_reserve(lambda: self._disk.rename(beside, path), reserve, BLOCK_BYTES, purpose)
        except DiskError:
            self._forget(beside)
            raise
        self._disk.sync_directory(self._directory)

    def _forget(self, path: str) -> None:
        """Delete an incomplete file to free its space, if the disk allows it."""
        try:
            self._disk.unlink(path)
        except DiskError:
            return

    def _tidy(self) -> None:
        """Delete older files; if the reserve was used, it gets their space back.

        Files that cannot be deleted are deleted at the next start.
        """
        try:
            for name in self._disk.listdir(self._directory):
                known = parse_name(name)
                if known is not None and known[1] < self._header.generation:
                    self._disk.unlink(f"{self._directory}/{name}")
            for file in self._replaced:
                # An open file keeps its disk space even after it was deleted. It is not closed
                # here, since a sync of it may run in another thread. A quota refuses to truncate;
                # then the space is free once the ledger closes the file.
                with suppress(DiskError):
                    file.truncate(0)
            if self._reserve is not None and self._reserve.is_low:
                self._reserve.restore()
        except DiskError:
            return
