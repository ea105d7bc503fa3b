"""The bodies that proofs publish: each contains its author and a checksum.

    run u32 | publisher u16 | number u32 | size u32 | random bytes | crc32 u32      (big-endian)

`size` is the size of the whole body in bytes; the checksum covers everything before it. So the
checker recognises a body that was cut, mixed up or never published, without keeping any bodies.
"""

import random
import struct
import zlib
from typing import NamedTuple

HEAD = struct.Struct(">IHII")
CHECKSUM = struct.Struct(">I")
SIZE_MIN = HEAD.size + CHECKSUM.size
# Bytes. Most have the size of a click; a few are nearly empty, a few larger than a page.
SIZES = (SIZE_MIN, 40, 120, 200, 200, 201, 330, 5_000)


class Author(NamedTuple):
    """The author of a body: the run of the proof, its publisher, the publisher's message number."""

    run: int
    publisher: int
    number: int

    @property
    def key(self) -> int:
        """Publisher and number as one integer, which identifies a message within its run."""
        return self.publisher << 32 | self.number


def write(author: Author, chance: random.Random) -> bytes:
    """Return a body by this author, with random size and content."""
    size = chance.choice(SIZES)
    whole = HEAD.pack(*author, size) + chance.randbytes(size - SIZE_MIN)
    return whole + CHECKSUM.pack(zlib.crc32(whole))


def read(body: bytes) -> Author | None:
    """Return the author of this body; None if the body is damaged."""
    if len(body) < SIZE_MIN:
        return None
    run, publisher, number, size = HEAD.unpack_from(body)
    (checksum,) = CHECKSUM.unpack_from(body, len(body) - CHECKSUM.size)
    if size != len(body) or checksum != zlib.crc32(memoryview(body)[: -CHECKSUM.size]):
        return None
    return Author(run, publisher, number)
