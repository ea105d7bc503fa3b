"""The header of every file of a log: the kind of file, and facts about it, with a checksum.

| bytes | contents |
|---|---|
| 8 | the kind's magic |
| 2 | size of the header |
| 1 | version |
| 1 | checksum algorithm: 1 is XXH3 |
| 4 | flags: none is defined |
| .. | the facts: fields of this kind of file |
| 8 | checksum over everything before it |

Numbers are little-endian. Files with two copies of the header have them so far apart that no torn
write damages both.
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
    """The header of one kind of file.

    Args:
        magic: its first 8 bytes.
        facts: the `struct` format of the kind's facts, without the byte order.

    Attributes:
        size: bytes of the header.
        kind: the first bytes of the header, up to the facts.
    """

    def __init__(self, magic: bytes, facts: str) -> None:
        self._facts = struct.Struct(f"<{facts}")
        self.size: Final = _KIND.size + self._facts.size + _CHECKSUM.size
        self.kind: bytes = _KIND.pack(magic, self.size, VERSION, ALGORITHM_XXH3, 0)

    def pack(self, facts: Iterable[Any]) -> bytes:
        """Encode a header with these facts."""
        fields = self.kind + self._facts.pack(*facts)
        return fields + _CHECKSUM.pack(xxh3_64_intdigest(fields))

    def unpack(self, data: bytes, at: int = 0) -> tuple[Any, ...] | None:
        """Decode a header's facts; None: it is damaged, or of a version not known here."""
        copy = data[at : at + self.size]
        fields, checksum = copy[: -_CHECKSUM.size], copy[-_CHECKSUM.size :]
        is_whole = len(copy) == self.size and checksum == _CHECKSUM.pack(xxh3_64_intdigest(fields))
        # This also compares the flags with 0: a flag that is not known here must be refused.
        if not is_whole or not fields.startswith(self.kind):
            return None
        return self._facts.unpack(fields[_KIND.size :])
