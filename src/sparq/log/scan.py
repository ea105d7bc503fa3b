"""Finds batches in a file's bytes, also behind damage.

1. A batch is believed where its header's checksum holds for this place of this file. Behind bytes
   that are none, the next place is looked for at which one is (places are multiples of 8).
2. Damage costs what it touches: the batches before and behind it are found.
3. A page that cannot be read counts as zeros; the checksums tell which batches that costs. It is
   tried more than once before: a passing error must cost nothing, since what counts as damaged is
   not delivered again, and its file goes when the channels have finished the rest.
"""

import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from sparq.log.disk import DiskError, File
from sparq.protocol import batch
from sparq.protocol.batch import ALIGNMENT, HEADER_SIZE, MAGIC, Header

CHUNK_BYTES: Final = 1 << 20
SKIP_BYTES: Final = 64 << 10
"""Behind a batch of this size only the next header is read, not a chunk."""
PAGE_BYTES: Final = 4096
PAGE_TRIES: Final = 3
"""So often a page is read before it counts as bad."""

Buffer = bytes | bytearray | memoryview


class BatchKey(NamedTuple):
    """What ties a batch to its file."""

    salt: int
    log_id_short: int


class Damage(NamedTuple):
    """Stored messages that cannot be read any more.

    Attributes:
        first, end: their indexes are in [first, end).
        messages: how many there are; 0 where that is unknown.
        path, offset, size_bytes: the bytes in question.
        reason: what is wrong with them.
    """

    first: int
    end: int
    messages: int
    path: str
    offset: int
    size_bytes: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}, bytes {self.offset} to {self.offset + self.size_bytes}, "
            f"indexes {self.first} to {self.end}, {self.messages} messages lost"
        )


def read_header(buffer: Buffer, at: int, file_offset: int, key: BatchKey) -> Header | None:
    """The header at `at`, if it is one for this place of the file; else None."""
    header = batch.parse_header(buffer, at)
    if (
        header is None
        or header.log_id_short != key.log_id_short
        or not batch.check_header(buffer, at, file_offset, key.salt)
    ):
        return None
    return header


def find_header(buffer: bytes, at: int, base: int, key: BatchKey) -> int:
    """The first place from `at` on with a header; -1 if there is none.

    Args:
        buffer: a part of the file.
        at: a position in the buffer.
        base: the buffer's offset in the file, a multiple of 8.
        key: the file's.
    """
    while (at := buffer.find(MAGIC, at)) >= 0:
        if at % ALIGNMENT == 0 and read_header(buffer, at, base + at, key) is not None:
            return at
        at += 1
    return -1


def read_bytes(file: File, size: int, offset: int) -> bytes:
    """These bytes of the file; pages that fail to be read are zeros.

    Raises:
        DiskError: for another reason than a bad page.
    """
    try:
        return file.pread(size, offset)
    except DiskError as error:
        if error.number != errno.EIO:
            raise
    pages = bytearray()
    for at in range(offset, offset + size, PAGE_BYTES):
        pages += _read_page(file, min(PAGE_BYTES, offset + size - at), at)
    return bytes(pages)


def _read_page(file: File, size: int, offset: int) -> bytes:
    """These bytes, or as many zeros where they cannot be read."""
    for _ in range(PAGE_TRIES):
        try:
            return file.pread(size, offset)
        except DiskError as error:
            if error.number != errno.EIO:
                raise
    return bytes(size)


class Found(NamedTuple):
    """A batch, or what lies before the next one: header None."""

    offset: int
    size: int
    header: Header | None


def headers(file: File, start: int, size: int, key: BatchKey) -> Iterator[Found]:
    """The batches of a file by their headers, and the stretches between them that are none.

    Args:
        file: the file.
        start: where the first batch begins.
        size: the file's size. A batch that goes beyond it is none.
        key: the file's.
    """
    at, base, chunk, length = start, start, b"", CHUNK_BYTES
    while at + HEADER_SIZE <= size:
        if at + HEADER_SIZE > base + len(chunk):
            base, chunk = at, read_bytes(file, min(length, size - at), at)
        header = read_header(chunk, at - base, at, key)
        if header is None and batch.parse_header(chunk, at - base) is not None:
            # A later version's header is longer and may be cut off by the chunk.
            base, chunk = at, read_bytes(file, min(CHUNK_BYTES, size - at), at)
            header = read_header(chunk, 0, at, key)
        if header is None or at + header.total_size > size:
            found = _resync(file, at + ALIGNMENT, size, key)
            yield Found(at, found - at, None)
            at = found
            continue
        yield Found(at, header.total_size, header)
        at += header.total_size
        length = CHUNK_BYTES if header.total_size < SKIP_BYTES else PAGE_BYTES
    if at < size:
        yield Found(at, size - at, None)


def _resync(file: File, at: int, size: int, key: BatchKey) -> int:
    """Where the next batch begins; `size` if there is none."""
    while at + HEADER_SIZE <= size:
        chunk = read_bytes(file, min(CHUNK_BYTES, size - at), at)
        found = find_header(chunk, 0, at, key)
        if found >= 0:
            return at + found
        # A header may begin in this chunk and end in the next.
        at += max(ALIGNMENT, (len(chunk) - HEADER_SIZE) // ALIGNMENT * ALIGNMENT)
    return size
