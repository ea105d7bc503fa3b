"""The files of a log's folder: headers with a checksum, and checksummed blocks of records.

Every file begins with a header, little-endian::

    bytes   contents
        8   the kind's magic
        2   size of the header
        1   version, 1
        1   checksum algorithm: 1 is XXH3-64
        4   required flags: none is defined, and a reader refuses a file with one
       ..   the facts: fields of this kind of file
        8   checksum, seed 0, over everything before it

Segments and ledgers have a second copy of it, so far away that no torn write damages both.

Ledgers, checkpoints, journals and index files have blocks after it, at multiples of 8::

    offset  size  field
         0     4  magic "SPQL"
         4     4  size of the records
         8     8  checksum: XXH3-64, seed = the file's salt, over the block's offset (u64), the size
                  (u32) and the records
        16     -  records | zeros up to a multiple of 8

1. A block is one write: after a crash all of it is there, or none.
2. After damage, the next block is found in the same way as a batch (see `reading`).
"""

import struct
from collections.abc import Iterable
from contextlib import closing
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from sparq.log.disk import Disk, read_bytes

VERSION: Final = 1
ALGORITHM_XXH3: Final = 1
DATA_START: Final = 1024
"""Where the blocks of a ledger, checkpoint or journal begin."""
ALIGNMENT: Final = 8
BLOCK_MAGIC: Final = b"SPQL"

_KIND: Final = struct.Struct("<8sHBBI")
_CHECKSUM: Final = struct.Struct("<Q")
_BLOCK: Final = struct.Struct("<4sIQ")
_COVERED: Final = struct.Struct("<QI")


class HeaderForm:
    """The header of one kind of file.

    Args:
        magic: its first 8 bytes.
        facts: the `struct` format of the kind's facts, without the byte order.
        copy_offset: where its second copy begins; 0: there is none.
        data_start: where the file's data begins.

    Attributes:
        size: bytes of one copy.
        kind: the first bytes of each copy, up to the facts.
    """

    def __init__(self, magic: bytes, facts: str, copy_offset: int = 0, data_start: int = 0) -> None:
        self._facts = struct.Struct(f"<{facts}")
        self.size: Final = _KIND.size + self._facts.size + _CHECKSUM.size
        self.kind = _KIND.pack(magic, self.size, VERSION, ALGORITHM_XXH3, 0)
        self._copy_offset = copy_offset
        self._data_start = data_start

    def encode(self, facts: Iterable[Any]) -> bytes:
        """Encode the file up to its data: the header with these facts, and its copy."""
        fields = self.kind + self._facts.pack(*facts)
        header = fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))
        if not self._copy_offset:
            return header
        return (header.ljust(self._copy_offset, b"\0") + header).ljust(self._data_start, b"\0")

    def decode(self, data: bytes) -> list[tuple[Any, ...]]:
        """Decode the facts of each whole copy; none: damaged, or of a version not known here."""
        found: list[tuple[Any, ...]] = []
        for at in sorted({0, self._copy_offset}):
            copy = data[at : at + self.size]
            fields, checksum = copy[: -_CHECKSUM.size], copy[-_CHECKSUM.size :]
            # This also compares the flags with 0: a flag that is not known here must be refused.
            is_known = len(copy) == self.size and fields.startswith(self.kind)
            if is_known and checksum == _CHECKSUM.pack(xxh3_64_intdigest(fields)):
                found.append(self._facts.unpack(fields[_KIND.size :]))
        return found


class FileHeader(NamedTuple):
    """The facts about a ledger, a checkpoint or a journal.

    Attributes:
        salt: random; the seed of its blocks' checksums.
        log_id: the log's; zero in a journal.
        generation: the number in the file's name.
    """

    salt: int
    log_id: bytes
    generation: int


HEADER: Final = HeaderForm(b"SPARQLED", "Q16sI12x", 512, DATA_START)


def number_in(name: str, prefix: str, digits: int = 8) -> int | None:
    """Return the hexadecimal number of a file named `prefix` and `digits` digits; None: it is not.

    Journals, ledgers, checkpoints and segments have such names.
    """
    rest = name.removeprefix(prefix)
    if len(rest) != digits or not name.startswith(prefix):
        return None
    try:
        return int(rest, 16)
    except ValueError:
        return None


def encode_block(records: bytes, offset: int, salt: int) -> bytes:
    """Encode a block of these records for this offset of the file with this salt."""
    size = len(records)
    checksum = xxh3_64_intdigest(_COVERED.pack(offset, size) + records, salt)
    padding = bytes(-(_BLOCK.size + size) % ALIGNMENT)
    return b"".join((_BLOCK.pack(BLOCK_MAGIC, size, checksum), records, padding))


class Block(NamedTuple):
    """The records of a whole block, and where it ends in its file."""

    records: memoryview
    end: int


def block_at(data: bytes, at: int, salt: int) -> Block | None:
    """Return the whole block at this offset of the file; None: there is none."""
    if at % ALIGNMENT or at + _BLOCK.size > len(data):
        return None
    magic, size, checksum = _BLOCK.unpack_from(data, at)
    begin = at + _BLOCK.size
    end = begin + size
    if magic != BLOCK_MAGIC or end > len(data):
        return None
    if xxh3_64_intdigest(_COVERED.pack(at, size) + data[begin:end], salt) != checksum:
        return None
    return Block(memoryview(data)[begin:end], end + -end % ALIGNMENT)


class FileContents(NamedTuple):
    """The contents of a file.

    Attributes:
        header: None if both copies are damaged: then the rest cannot be read.
        blocks: the records of each whole block, in order.
        end: where the last whole block ends.
        size: the file's size.
        damaged_bytes: bytes before `end` that are in no whole block.
    """

    header: FileHeader | None
    blocks: list[memoryview]
    end: int
    size: int
    damaged_bytes: int


def read(disk: Disk, path: str) -> FileContents:
    """Read a ledger, checkpoint or journal, and find out which of its blocks are whole.

    Raises:
        DiskError: it cannot be opened, or its header cannot be read.
    """
    with closing(disk.open(path)) as file:
        data = read_bytes(file, file.size(), 0)
        # Without the header no block counts, and the topic would forget its channels for good. So
        # a header that cannot be read is no damage yet: a later start may be able to read it.
        copies = HEADER.decode(data) or HEADER.decode(file.pread(DATA_START, 0))
    if not copies:
        return FileContents(None, [], 0, len(data), 0)
    header = FileHeader(*copies[0])
    blocks: list[memoryview] = []
    at = end = DATA_START
    damaged = 0
    while 0 <= at < len(data):
        block = block_at(data, at, header.salt)
        if block is None:
            # A damaged size does not show where the next block begins.
            at = data.find(BLOCK_MAGIC, at + 1)
            continue
        damaged += at - end
        blocks.append(block.records)
        at = end = block.end
    return FileContents(header, blocks, end, len(data), damaged)
