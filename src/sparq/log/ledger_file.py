"""One file of a ledger: a header, then checksummed blocks of records.

Header, little-endian, 64 bytes at offset 0 and once more at 512::

    offset  size  field
         0     8  magic "SPARQLED"
         8     2  header size, 64
        10     1  version, 1
        11     1  checksum algorithm: 1 = XXH3-64
        12     4  required flags; a reader refuses a file with one that it does not know
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
2. Behind damage the next block is found as a batch is (see `scan`).
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from sparq.log.disk import Disk
from sparq.log.scan import read_bytes

MAGIC: Final = b"SPARQLED"
HEADER_SIZE: Final = 64
VERSION: Final = 1
ALGORITHM_XXH3: Final = 1
COPY_OFFSET: Final = 512
DATA_START: Final = 1024
BLOCK_MAGIC: Final = b"SPQL"
ALIGNMENT: Final = 8

_HEADER: Final = struct.Struct("<8sHBBIQ16sI12x")
_CHECKSUM: Final = struct.Struct("<Q")
_BLOCK: Final = struct.Struct("<4sIQ")
_COVERED: Final = struct.Struct("<QI")


class LedgerHeader(NamedTuple):
    """A file's header, less what every header has."""

    salt: int
    log_id: bytes
    generation: int


class Contents(NamedTuple):
    """A file, read.

    Attributes:
        header: None where both copies are damaged: then nothing is known of the rest.
        blocks: the records of each whole block, in order.
        end: where the last whole block ends.
        size: the file's size.
        damaged_bytes: what lies before `end` and is in no whole block.
    """

    header: LedgerHeader | None
    blocks: list[memoryview]
    end: int
    size: int
    damaged_bytes: int


def encode_header(header: LedgerHeader) -> bytes:
    """The bytes a file begins with, both copies: DATA_START of them."""
    fields = _HEADER.pack(MAGIC, HEADER_SIZE, VERSION, ALGORITHM_XXH3, 0, *header)
    whole = fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))
    return whole.ljust(COPY_OFFSET, b"\0") + whole.ljust(DATA_START - COPY_OFFSET, b"\0")


def decode_header(data: bytes) -> LedgerHeader | None:
    """The header, from the copy that is whole; None: neither is, or it is not for this version."""
    for at in (0, COPY_OFFSET):
        copy = data[at : at + HEADER_SIZE]
        if len(copy) == HEADER_SIZE and copy[-8:] == _CHECKSUM.pack(xxh3_64_intdigest(copy[:-8])):
            magic, size, version, algorithm, flags, *rest = _HEADER.unpack(copy[:-8])
            known = (magic, size, version, algorithm, flags)
            if known == (MAGIC, HEADER_SIZE, VERSION, ALGORITHM_XXH3, 0):
                return LedgerHeader(*rest)
    return None


def encode_block(records: bytes, offset: int, salt: int) -> bytes:
    """A block of these records, for this place of the file with this salt."""
    size = len(records)
    checksum = xxh3_64_intdigest(_COVERED.pack(offset, size) + records, salt)
    padding = bytes(-(_BLOCK.size + size) % ALIGNMENT)
    return b"".join((_BLOCK.pack(BLOCK_MAGIC, size, checksum), records, padding))


def block_at(data: bytes, at: int, salt: int) -> memoryview | None:
    """The records of the block at this offset of the file; None: there is none."""
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
    """(offset, records) of the whole blocks."""
    at = DATA_START
    while at < len(data):
        records = block_at(data, at, salt) if at % ALIGNMENT == 0 else None
        if records is not None:
            yield at, records
            at += _BLOCK.size + len(records)
            at += -at % ALIGNMENT
            continue
        at = data.find(BLOCK_MAGIC, at + 1)
        if at < 0:
            return


def read(disk: Disk, path: str) -> Contents:
    """Read a file and find out what of it is whole.

    Raises:
        DiskError: it cannot be opened or read at all.
    """
    file = disk.open(path)
    try:
        data = read_bytes(file, file.size(), 0)
    finally:
        file.close()
    header = decode_header(data[:DATA_START])
    if header is None:
        return Contents(None, [], 0, len(data), 0)
    blocks: list[memoryview] = []
    end, damaged = DATA_START, 0
    for offset, records in _blocks(data, header.salt):
        damaged += offset - end
        blocks.append(records)
        end = offset + _BLOCK.size + len(records)
        end += -end % ALIGNMENT
    return Contents(header, blocks, end, len(data), damaged)
