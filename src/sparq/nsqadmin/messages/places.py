"""Where the next page of each node begins: one token for a list that several nodes fill.

1. A token is what an earlier answer gave, and is not trusted when it comes back: it names nodes,
   but only those that have the topic now are asked, and its size is bounded.
2. Of a node it keeps `after`, the node's own token of the page that is being shown, and `last`, the
   last message of that page that was shown: the page is asked for again, and what comes up to
   `last` is left out. Messages that went meanwhile neither hide nor repeat others.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from dataclasses import dataclass
from typing import Any, Final

TOKEN_MAX: Final = 64 << 10
JSON_MAX: Final = 256 << 10
TEXT_MAX: Final = 512

Order = tuple[int, int]
"""Where a message stands in its node's list: when it is due (0 in the log's order), its index."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node's list goes on.

    Attributes:
        after: the node's token of the page; "": its first one.
        last: the last message of it that was shown; None: none.
        progress: of a search, from 0 to 1.
        is_done: nothing more comes.
        total: how many there were in all; only of one that is done.
    """

    after: str = ""
    last: Order | None = None
    progress: float = 0.0
    is_done: bool = False
    total: int | None = None


Places = dict[str, Place]


def token_of(places: Places) -> str | None:
    """The token of places by node; None when all are done."""
    if all(place.is_done for place in places.values()):
        return None
    told = {
        node: [1, place.total]
        if place.is_done
        else [0, place.after, place.last, round(place.progress, 4)]
        for node, place in places.items()
    }
    packed = zlib.compress(json.dumps(told, separators=(",", ":")).encode())
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def places_in(token: str) -> Places:
    """The places of a token.

    Raises:
        ValueError: it is none.
    """
    if len(token) > TOKEN_MAX:
        raise ValueError("after is no token")
    try:
        packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        text = zlib.decompressobj().decompress(packed, JSON_MAX)
        told = json.loads(text)
        return {str(node): _place(*parts) for node, parts in told.items()}
    except (binascii.Error, zlib.error, ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError("after is no token") from None


def _place(is_done: Any, after: Any = "", last: Any = None, progress: Any = 0.0) -> Place:
    if is_done:
        return Place(progress=1.0, is_done=True, total=after if type(after) is int else None)
    if not isinstance(after, str) or len(after) > TEXT_MAX:
        raise ValueError(after)
    if last is not None:
        due, index = last
        last = int(due), int(index)
    return Place(after, last, min(1.0, max(0.0, float(progress))))
