"""What every file of a log begins with: its kind, and facts of it under a checksum.

| bytes | what |
|---|---|
| 8 | the kind's magic |
| 2 | size of the header |
| 1 | version |
| 1 | algorithm of the checksum: 1 is XXH3 |
| 4 | flags: none is known |
| .. | the kind's facts |
| 8 | checksum of all that stands before it |

Numbers are little-endian. Who keeps two copies has them so far apart that no torn write has both.
"""

import struct
from collections.abc import Iterable
from typing import Any, Final

from xxhash import xxh3_64_intdigest

VERSION: Final = 1
ALGORITHM_XXH3: Final = 1

_KIND: Final = struct.Struct("<8sHBBI")
_CHECKSUM: Final = struct.Struct("<Q")


class HeaderForm:
    """The header of one kind of files.

    Args:
        magic: its first 8 bytes.
        facts: the format of the kind's facts, as `struct` has it.

    Attributes:
        size: bytes of the header.
        kind: what it begins with, up to the facts.
    """

    def __init__(self, magic: bytes, facts: str) -> None:
        self._facts = struct.Struct(f"<{facts}")
        self.size: Final = _KIND.size + self._facts.size + _CHECKSUM.size
        self.kind: bytes = _KIND.pack(magic, self.size, VERSION, ALGORITHM_XXH3, 0)

    def pack(self, facts: Iterable[Any]) -> bytes:
        """The header with these facts."""
        fields = self.kind + self._facts.pack(*facts)
        return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))

    def unpack(self, data: bytes, at: int = 0) -> tuple[Any, ...] | None:
        """The facts of a header; None: it is damaged, or of a version that is not known here."""
        copy = data[at : at + self.size]
        fields, checksum = copy[: -_CHECKSUM.size], copy[-_CHECKSUM.size :]
        is_whole = len(copy) == self.size and checksum == _CHECKSUM.pack(xxh3_64_intdigest(fields))
        if not is_whole or not fields.startswith(self.kind):
            return None
        return self._facts.unpack(fields[_KIND.size :])
