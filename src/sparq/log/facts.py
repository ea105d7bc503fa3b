"""What `sparq.json` says of a data path: format, node id, the index below which none may be given.

A wrong node id would make every FIN of a stored message fail, a wrong index could give ids twice,
and one flipped bit makes another digit of a digit: so the file carries a checksum, XXH3-64 with
seed 0 over "<format> <node id> <retired index>" in decimal. A file without one is of a version
that did not write it, and is believed.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from xxhash import xxh3_64_hexdigest

FACTS: Final = "sparq.json"
FORMAT: Final = 1


class FactsError(Exception):
    """The bytes are not a data path's facts; the text says why."""


class Facts(NamedTuple):
    """A data path's facts."""

    format: int
    node_id: int
    retired_index: int

    def encode(self) -> bytes:
        """The contents of `sparq.json`."""
        facts = {
            "format": self.format,
            "node_id": self.node_id,
            "retired_index": str(self.retired_index),
            "checksum": self.checksum(),
        }
        return json.dumps(facts).encode() + b"\n"

    def checksum(self) -> str:
        """16 hex digits."""
        return xxh3_64_hexdigest(f"{self.format} {self.node_id} {self.retired_index}".encode())


def decode(text: bytes) -> Facts:
    """The facts of a `sparq.json`, of whatever format.

    Raises:
        FactsError: they are damaged.
    """
    try:
        found = json.loads(text)
        facts = Facts(int(found["format"]), int(found["node_id"]), int(found["retired_index"]))
        checksum = found.get("checksum")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise FactsError(str(error)) from error
    # Of a newer format only the number is known.
    if checksum is not None and facts.format == FORMAT and checksum != facts.checksum():
        raise FactsError("its checksum does not hold")
    return facts
