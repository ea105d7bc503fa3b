"""How far event time has come, told apart by nsqd.

Two nsqds do not run in step: one may be read three batches behind the other. The low mark is
therefore the least of the nsqds' newest event times, not the newest of all.

1. An event time ahead of the message's own publish time does not count (`newest` comes clamped):
   one click from a wrong clock must not close every window.
2. An nsqd that gave nothing for QUIET_BATCHES batches no longer holds the mark back.
3. The mark never goes back. It is a function of the batches alone, so a replay repeats it.
"""

from __future__ import annotations

from typing import TypedDict

QUIET_BATCHES = 20


class WatermarkBooks(TypedDict):
    """A watermark as JSON."""

    newest_s: dict[str, int]
    seen: dict[str, int]
    low_s: int


class Watermark:
    """The low mark of event time, in seconds since 1970; 0 before the first click."""

    def __init__(self, books: WatermarkBooks | None = None) -> None:
        self._newest_s = dict(books["newest_s"]) if books else {}
        self._seen = dict(books["seen"]) if books else {}
        self.low_s = books["low_s"] if books else 0

    def advance(self, batch_id: int, newest_s: dict[str, int]) -> None:
        """Note each nsqd's newest event time of one batch, clamped to its publish time."""
        for nsqd, newest in newest_s.items():
            self._newest_s[nsqd] = max(newest, self._newest_s.get(nsqd, 0))
            self._seen[nsqd] = batch_id
        current = [
            newest
            for nsqd, newest in self._newest_s.items()
            if batch_id - self._seen[nsqd] < QUIET_BATCHES
        ]
        if current:
            self.low_s = max(self.low_s, min(current))

    def books(self) -> WatermarkBooks:
        """What `Watermark` takes to go on from here."""
        return {"newest_s": self._newest_s, "seen": self._seen, "low_s": self.low_s}
