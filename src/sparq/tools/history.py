"""What `sparq top` remembers from one look at the cluster to the next.

1. An nsqd that answered once and answers no more keeps its last figures, until it answers again or
   somebody has it forgotten; also when no nsqlookupd lists it any more. At most `GONE_MAX` do.
2. A channel has been idle since the last look at which it had finished something, or at which
   nothing waited, or no rate was known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sparq.tools.overview import Key, Look, Overview, Row, overview, row_of
from sparq.tools.state import STUCK_SECONDS

GONE_MAX: Final = 1000


class Part(NamedTuple):
    """One nsqd's part of a channel; ``is_gone``: by its last figures."""

    address: str
    row: Row
    is_gone: bool


class History:
    """The looks so far.

    Args:
        patience_seconds: for how long a channel may finish nothing before it is called stuck.
    """

    def __init__(self, patience_seconds: float = STUCK_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._before: dict[str, Look] = {}
        self._now: dict[str, Look] = {}
        self._gone: dict[str, Look] = {}
        self._busy_at: dict[Key, float] = {}

    def add(self, now: Mapping[str, Look], at_seconds: float) -> Overview:
        """Take what the nsqds said now; what that shows, with rates since their last answer.

        Args:
            now: each nsqd that answered, by its address.
            at_seconds: the time now, on the monotonic clock.
        """
        before = {**self._gone, **self._now}
        gone = {address: last for address, last in before.items() if address not in now}
        latest = sorted(gone, key=lambda address: gone[address].at_seconds)[-GONE_MAX:]
        self._before, self._now = before, dict(now)
        self._gone = {address: gone[address] for address in sorted(latest)}
        seen = overview(before, now, self._gone, at_seconds)
        self._note_idle(seen, at_seconds)
        return seen

    def forget_gone(self) -> None:
        """Keep no figures of nsqds that do not answer now."""
        self._gone.clear()

    def parts(self, key: Key) -> list[Part]:
        """A channel's row for each nsqd that has it, by address; those that are gone marked."""
        found = []
        for address, now in self._now.items():
            row = row_of(key, self._before.get(address), now)
            if row is not None:
                found.append(Part(address, row, False))
        for address, last in self._gone.items():
            row = row_of(key, None, last)
            if row is not None:
                found.append(Part(address, row, True))
        return sorted(found)

    @property
    def answering(self) -> list[str]:
        """The nsqds that answered the last time."""
        return sorted(self._now)

    def _note_idle(self, seen: Overview, at_seconds: float) -> None:
        busy_at = {}
        for row in seen.rows:
            earlier = self._busy_at.get(row.key)
            if row.out_rate is None or row.out_rate > 0 or not row.waiting or earlier is None:
                earlier = at_seconds
            busy_at[row.key] = earlier
            row.patience_seconds = self._patience_seconds
            row.idle_seconds = at_seconds - earlier or None
        self._busy_at = busy_at
