"""The contents of `sparq.json`: format, node id, and the index below which none may be assigned.

With a wrong node id every FIN of a stored message would fail, and with a wrong index ids could be
assigned twice. One flipped bit can turn a digit into another digit, so the file carries a checksum:
XXH3-64 with seed 0 over "<format> <node id> <retired index>" in decimal. A file without a checksum
is from a version that did not write one, and is accepted.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from xxhash import xxh3_64_hexdigest

FACTS: Final = "sparq.json"
FORMAT: Final = 1


class MetadataError(Exception):
    """The bytes are not a valid `sparq.json`; the text says why."""


class DataPathMetadata(NamedTuple):
    """The contents of a data path's `sparq.json`."""

    format: int
    node_id: int
    retired_index: int

    def encode(self) -> bytes:
        """Encode the contents of `sparq.json`."""
        facts = {
            "format": self.format,
            "node_id": self.node_id,
            "retired_index": str(self.retired_index),  # a string: JavaScript's integers end at 2^53
            "checksum": self.checksum(),
        }
        return json.dumps(facts).encode() + b"\n"

    def checksum(self) -> str:
        """Return the checksum as 16 hex digits."""
        return xxh3_64_hexdigest(f"{self.format} {self.node_id} {self.retired_index}".encode())


def decode(text: bytes) -> DataPathMetadata:
    """Decode a `sparq.json` of any format.

    Raises:
        MetadataError: it is damaged.
    """
    try:
        found = json.loads(text)
        facts = DataPathMetadata(
            int(found["format"]), int(found["node_id"]), int(found["retired_index"])
        )
        checksum = found.get("checksum")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise MetadataError(str(error)) from error
    # Of a newer format, this version understands only the number.
    if checksum is not None and facts.format == FORMAT and checksum != facts.checksum():
        raise MetadataError("checksum mismatch")
    return facts
