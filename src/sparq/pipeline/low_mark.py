"""How far event time has come, told apart by nsqd: the low mark, kept in the state of each bucket.

Two nsqds do not run in step: one may be read minutes after the other. The low mark is therefore
the least of the nsqds' newest event times, not the newest of all.

1. The mark is a function of the batches alone (their marks and their times). So a replay repeats
   it, and all buckets of a query, which see the same marks, hold the same mark.
2. It never goes back.
3. An event time ahead of its message's publish time does not count (the marks come clamped): one
   click from a wrong clock must not close every window.
4. An nsqd that has sent no click for more than QUIET_S no longer holds the mark back, and is
   forgotten: an nsqd joins by its next click, like a new one. So the books do not grow.

The 30 seconds are counted while batches follow each other: the time between two batches counts for
at most STEP_S. With the plain difference of two batch times, the first batch after a pause of the
query found every nsqd quiet except those that it happened to contain, and closed all that the
others had still to send. It also makes jumps of the clock harmless.
"""

from __future__ import annotations

from typing import TypedDict

QUIET_S = 30
STEP_S = 10


class LowMarkBooks(TypedDict):
    """A low mark as JSON: what `LowMark` takes to go on."""

    low_s: int
    newest_s: dict[str, int]  # of each nsqd that is not quiet
    seen_ms: dict[str, int]  # when it last sent a click, on the clock below
    clock_ms: int  # time that passed in batches, each step at most STEP_S
    batch_ms: int  # time of the newest batch


class LowMark:
    """The low mark of event time.

    Attributes:
        low_s: seconds since 1970; 0 before the first click.
    """

    def __init__(self, books: LowMarkBooks | None = None) -> None:
        self._newest_s = dict(books["newest_s"]) if books else {}
        self._seen_ms = dict(books["seen_ms"]) if books else {}
        self._clock_ms = books["clock_ms"] if books else 0
        self._batch_ms = books["batch_ms"] if books else 0
        self.low_s = books["low_s"] if books else 0

    def advance(self, marks: dict[str, int], batch_ms: int) -> None:
        """Take in one batch.

        Args:
            marks: newest event time of each nsqd in the batch, clamped to its publish time, in
                seconds since 1970.
            batch_ms: the batch's time, in milliseconds since 1970, equal when the batch is
                replayed (Spark's `current_timestamp()` is).
        """
        self._clock_ms += min(max(batch_ms - self._batch_ms, 0), STEP_S * 1000)
        self._batch_ms = batch_ms
        for nsqd, newest in marks.items():
            self._newest_s[nsqd] = max(newest, self._newest_s.get(nsqd, 0))
            self._seen_ms[nsqd] = self._clock_ms
        self._forget_quiet()
        if self._newest_s:
            self.low_s = max(self.low_s, min(self._newest_s.values()))

    def _forget_quiet(self) -> None:
        quiet_before = self._clock_ms - QUIET_S * 1000
        for nsqd in [name for name, seen in self._seen_ms.items() if seen < quiet_before]:
            del self._seen_ms[nsqd], self._newest_s[nsqd]

    def books(self) -> LowMarkBooks:
        """What `LowMark` takes to go on from here."""
        return {
            "low_s": self.low_s,
            "newest_s": dict(self._newest_s),
            "seen_ms": dict(self._seen_ms),
            "clock_ms": self._clock_ms,
            "batch_ms": self._batch_ms,
        }
