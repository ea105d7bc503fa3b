"""`POST /channel/seek`: the places that it accepts, and its answer (docs/http.md, "Replay").

1. A place is `earliest`, `latest`, an index, a date or a time, a duration back from now, or a
   number of messages back from the end.
2. The answer says where the channel's cursor is now, how many messages come again, and how far back
   the log reaches, so that "older ones are deleted" is not mistaken for "there were none".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sparq.daemon.http import HttpError
from sparq.protocol.instant import rfc3339, wall_ns_of
from sparq.protocol.layout import INDEX_LIMIT

if TYPE_CHECKING:
    from sparq.broker.channel import SeekTarget
    from sparq.broker.seeking import Landing

FORMS = (
    "earliest, latest, an index, a date or time such as 2026-01-31 or 2026-01-31T08:00:00Z,"
    " a duration back from now such as -1h, or last:100 for the last 100 messages"
)

_INDEX = re.compile(r"[0-9]{1,17}")
_LAST = re.compile(r"last:([0-9]{1,17})")
_NANOSECONDS = re.compile(r"[+-]?[0-9]{1,19}")
_NANOSECONDS_MAX = (1 << 63) - 1


def target_of(text: str | None, now_ns: int, name: str = "TO") -> SeekTarget:
    """Parse the target of a seek.

    Args:
        text: one of `FORMS`; `time:` may precede a date, a time, or nanoseconds since 1970. A time
            without a zone is UTC. None: the request has no `to`.
        now_ns: the wall clock (ns since 1970).
        name: the parameter's name in the error.
    Raises:
        HttpError: 400 MISSING_ARG_<name> or INVALID_ARG_<name>, with the accepted forms.
    """
    if text is None:
        raise HttpError(400, f"MISSING_ARG_{name}: use {FORMS}")
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    # A bare number is always an index; nanoseconds since 1970 need `time:`.
    if _INDEX.fullmatch(text) and int(text) <= INDEX_LIMIT:
        return int(text)
    if last := _LAST.fullmatch(text):
        return "last", int(last[1])
    try:
        return "time", _wall_ns(text.removeprefix("time:"), now_ns, text.startswith("time:"))
    except (ValueError, OverflowError):
        raise HttpError(400, f"INVALID_ARG_{name}: use {FORMS}") from None


def _wall_ns(text: str, now_ns: int, may_be_number: bool) -> int:
    if may_be_number and _NANOSECONDS.fullmatch(text):
        return int(text)
    # An unescaped plus sign in a query arrives as a blank.
    text = text[:11] + text[11:].replace(" ", "+")
    return min(_NANOSECONDS_MAX, wall_ns_of(text, now_ns))


def answer_of(landing: Landing) -> dict[str, Any]:
    """Return `/channel/seek`'s answer: indexes as strings, times as RFC 3339 in UTC, or null."""
    return {
        "index": str(landing.index),
        "time": shown_time(landing.time_ns),
        "again": landing.again,
        "waiting": landing.waiting,
        "skipped": landing.skipped,
        "oldest_index": None if landing.oldest_index is None else str(landing.oldest_index),
        "oldest_time": shown_time(landing.oldest_time_ns),
        "older_are_gone": landing.older_are_gone,
    }


def shown_time(wall_ns: int | None) -> str | None:
    """Format a time (ns since 1970) as RFC 3339 in UTC; None stays None."""
    return None if wall_ns is None else rfc3339(wall_ns)
