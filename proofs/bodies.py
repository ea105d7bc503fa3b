"""The bodies that a witness publishes: each says who sent it, and proves that it is whole.

    run u32 | publisher u16 | number u32 | size u32 | random bytes | crc32 u32      (big-endian)

`size` counts the whole body; the checksum covers everything before it. So a checker can tell a
body that was cut, mixed up or made up from one that was published, without having kept any.
"""

import random
import struct
import zlib
from typing import NamedTuple

HEAD = struct.Struct(">IHII")
CHECKSUM = struct.Struct(">I")
SIZE_MIN = HEAD.size + CHECKSUM.size
# Mostly what clicks weigh; sometimes nearly nothing, sometimes more than one page.
SIZES = (SIZE_MIN, 40, 120, 200, 200, 201, 330, 5_000)


class Author(NamedTuple):
    """Who published a body: the run of the proof, the publisher in it, its number there."""

    run: int
    publisher: int
    number: int

    @property
    def key(self) -> int:
        """Publisher and number as one integer, the name of a message within its run."""
        return self.publisher << 32 | self.number


def write(author: Author, chance: random.Random) -> bytes:
    """A body of this author, its size and filling by chance."""
    size = chance.choice(SIZES)
    whole = HEAD.pack(*author, size) + chance.randbytes(size - SIZE_MIN)
    return whole + CHECKSUM.pack(zlib.crc32(whole))


def read(body: bytes) -> Author | None:
    """Who published this body; None when it is not as it was written."""
    if len(body) < SIZE_MIN:
        return None
    run, publisher, number, size = HEAD.unpack_from(body)
    (checksum,) = CHECKSUM.unpack_from(body, len(body) - CHECKSUM.size)
    if size != len(body) or checksum != zlib.crc32(memoryview(body)[: -CHECKSUM.size]):
        return None
    return Author(run, publisher, number)
