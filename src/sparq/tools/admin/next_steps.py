"""What to do about a daemon that did not do its part, in a sentence and a command.

Reasons are those of `sparq.cluster`: what the system says of a connection, or what the daemon
answered, with its code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sparq.tools.admin.job import Job

NOT_THERE: Final = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")
"""Codes of a daemon that has nothing to be changed: that is no failure."""

NO_ROUTE: Final = "it cannot do this: Go's nsqd, or an older one (404 NOT_FOUND)"
"""Of an nsqd that does not know the path."""

UNREACHABLE: Final = (
    *("refused", "no answer in time", "unreachable", "reset", "disconnected", "timed out"),
    *("no route", "not known", "no address", "not resolve"),
)


def has_nothing(reason: str) -> bool:
    """Whether the daemon says that it has no such topic or channel."""
    return any(code in reason for code in NOT_THERE)


def in_words(reason: str) -> str:
    """A reason, where it is that the daemon does not know the path in words that say so."""
    is_route = "404" in reason and "NOT_FOUND" in reason and not has_nothing(reason)
    return NO_ROUTE if is_route else reason


def is_unreachable(reason: str) -> bool:
    """Whether nothing is known of the daemon but that it did not answer."""
    return any(words in reason.lower() for words in UNREACHABLE)


def next_steps(
    job: Job,
    errors: Mapping[str, str],
    *,
    lookupds: Iterable[str] = (),
    hint: str = "",
    words: Sequence[str] | None = None,
) -> list[str]:
    """What to do next, line by line; none where nothing is wrong.

    Args:
        job: what was asked for.
        errors: why each daemon did not do it, by address.
        lookupds: which of these are nsqlookupds.
        hint: what else there is to know about an nsqd that is started again.
        words: the words of the command that does it again; None: those of the job.
    """
    at_lookupds = set(lookupds)
    lines = []
    for address, reason in errors.items():
        kind = "nsqlookupd" if address in at_lookupds else "nsqd"
        lines.append(f"{kind} {address}: {_advice(kind, reason)}")
        if kind == "nsqd" and lines[-1].endswith(":"):
            lines.append(f"  {job.again_at(address, words=words)}")
    if hint and any(is_unreachable(why) for at, why in errors.items() if at not in at_lookupds):
        lines.append(hint)
    return lines


def _advice(kind: str, reason: str) -> str:
    if is_unreachable(reason):
        return f"start the {kind}, or see why it cannot be reached; then do it again there:"
    if "401" in reason:
        return "it wants a token: do it again with its --token=@FILE:"
    if in_words(reason) == NO_ROUTE:
        return "use sparq's nsqd there, or do without what it has"
    if "503" in reason:
        return "its disk or its state does not let it: ask GET /ping there, then do it again:"
    return "see its log, then do it again there:"
