"""Page tokens for lists that several nodes fill: one token has each node's place in its list.

1. A token comes from an earlier answer and is not trusted when the client sends it back: of the
   nodes in it, only those that have the topic now are queried, and its size is limited.
2. For each node it has `after`, the node's own token of the page being shown, and `last`, the last
   message of that page that was shown. The page is fetched again, and the messages up to `last` are
   skipped. So messages that have left the list since then neither hide nor repeat others.
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
"""Position of a message in its node's list: its due time in ns (0 in a log), then its index."""


@dataclass(frozen=True, slots=True)
class ListPosition:
    """Where one node's list continues.

    Attributes:
        after: the node's token of the page; "" for its first page.
        last: the last message of the page that was shown; None if none was.
        progress: of a search, from 0 to 1.
        is_done: whether the list has ended.
        total: number of messages in all; only if the list has ended.
    """

    after: str = ""
    last: Order | None = None
    progress: float = 0.0
    is_done: bool = False
    total: int | None = None


Places = dict[str, ListPosition]


def token_of(places: Places) -> str | None:
    """Encode the places of all nodes as a token; None if all lists have ended."""
    if all(place.is_done for place in places.values()):
        return None
    parts = {
        node: [1, place.total]
        if place.is_done
        else [0, place.after, place.last, round(place.progress, 4)]
        for node, place in places.items()
    }
    packed = zlib.compress(json.dumps(parts, separators=(",", ":")).encode())
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def places_in(token: str) -> Places:
    """Decode a token.

    Raises:
        ValueError: the text is no token.
    """
    if len(token) > TOKEN_MAX:
        raise ValueError("use the `next` of an earlier answer")
    try:
        packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        # Not zlib.decompress: it has no limit, and a token may be forged. A text that is cut here
        # is no valid JSON.
        text = zlib.decompressobj().decompress(packed, JSON_MAX)
        parts_by_node = json.loads(text)
        return {str(node): _place(*parts) for node, parts in parts_by_node.items()}
    except (binascii.Error, zlib.error, ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError("use the `next` of an earlier answer") from None


def _place(is_done: Any, after: Any = "", last: Any = None, progress: Any = 0.0) -> ListPosition:
    if is_done:
        return ListPosition(progress=1.0, is_done=True, total=after if type(after) is int else None)
    if not isinstance(after, str) or len(after) > TEXT_MAX:
        raise ValueError(after)
    if last is not None:
        due, index = last
        last = int(due), int(index)
    return ListPosition(after, last, min(1.0, max(0.0, float(progress))))
