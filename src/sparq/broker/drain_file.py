"""Drains: publishes that this nsqd refuses so that producers use another one, and since when.

A drain applies to the whole nsqd or to one topic. `drain.json` in the data path lists the active
drains, so that they survive a restart; without the file there are none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_hexdigest

from sparq.protocol.names import is_valid_name

FORMAT: Final = 1
TOPICS_MAX: Final = 10_000
BY_MAX: Final = 256
"""Maximum length of the requester's name, in characters."""


class DrainError(ValueError):
    """Invalid contents of a drain file; the text says why."""


class Drain(NamedTuple):
    """One drain.

    Attributes:
        since_ns: when it began (wall ns).
        by: the requester's name.
        exit: whether the process exits once nothing is left; always False for a topic.
    """

    since_ns: int
    by: str
    exit: bool = False


class Draining(NamedTuple):
    """All drains of one nsqd.

    Attributes:
        node: the drain of the whole nsqd; None: there is none.
        topics: the drains of single topics, by name.
    """

    node: Drain | None
    topics: Mapping[str, Drain]

    @property
    def is_on(self) -> bool:
        """Whether there is any drain."""
        return self.node is not None or bool(self.topics)


NONE: Final = Draining(None, {})


def encode(draining: Draining) -> bytes:
    """The contents of `drain.json`.

    A flipped bit must neither end a drain nor begin one: the file carries a checksum, XXH3-64 with
    seed 0 over the JSON text of its drains.
    """
    drains = {
        "node": None if draining.node is None else _document(draining.node),
        "topics": {name: _document(drain) for name, drain in draining.topics.items()},
    }
    document = {"format": FORMAT, "checksum": _checksum(drains), "draining": drains}
    return json.dumps(document, indent=1).encode() + b"\n"


def _document(drain: Drain) -> dict[str, Any]:
    return {"since_ns": str(drain.since_ns), "by": drain.by, "exit": drain.exit}


def decode(text: bytes) -> Draining:
    """Read a `drain.json`; raises DrainError: it is damaged, or of a later format."""
    try:
        document = json.loads(text)
        if document["format"] != FORMAT:
            raise DrainError(
                f"it has format {document['format']}, but this version reads format {FORMAT}"
            )
        drains = document["draining"]
        if document["checksum"] != _checksum(drains):
            raise DrainError("checksum mismatch")
        node = None if drains["node"] is None else _read(drains["node"])
        topics = {str(name): _read(one) for name, one in drains["topics"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DrainError(str(error)) from error
    if not all(map(is_valid_name, topics)):
        raise DrainError("invalid topic name")
    return Draining(node, topics)


def _read(drains: Any) -> Drain:
    return Drain(int(drains["since_ns"]), str(drains["by"])[:BY_MAX], bool(drains["exit"]))


def _checksum(drains: Any) -> str:
    return xxh3_64_hexdigest(json.dumps(drains, sort_keys=True, separators=(",", ":")).encode())
