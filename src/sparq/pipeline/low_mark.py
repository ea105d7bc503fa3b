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

from dataclasses import dataclass, field

QUIET_S = 30
STEP_S = 10


@dataclass(slots=True)
class LowMark:
    """The low mark of event time; its fields, as JSON, are its books: all that it needs to go on.

    Attributes:
        low_s: seconds since 1970; 0 before the first click.
        newest_s: the newest event time of each nsqd that is not quiet.
        seen_ms: when each of these last sent a click, on the clock below.
        clock_ms: time that passed in batches, each step at most STEP_S.
        batch_ms: time of the newest batch.
    """

    low_s: int = 0
    newest_s: dict[str, int] = field(default_factory=dict)
    seen_ms: dict[str, int] = field(default_factory=dict)
    clock_ms: int = 0
    batch_ms: int = 0

    def __post_init__(self) -> None:
        # The books of a state stay as they are while this goes on from them.
        self.newest_s, self.seen_ms = dict(self.newest_s), dict(self.seen_ms)

    def advance(self, marks: dict[str, int], batch_ms: int) -> None:
        """Take in one batch.

        Args:
            marks: newest event time of each nsqd in the batch, clamped to its publish time, in
                seconds since 1970.
            batch_ms: the batch's time, in milliseconds since 1970, equal when the batch is
                replayed (Spark's `current_timestamp()` is).
        """
        self.clock_ms += min(max(batch_ms - self.batch_ms, 0), STEP_S * 1000)
        self.batch_ms = batch_ms
        for nsqd, newest in marks.items():
            self.newest_s[nsqd] = max(newest, self.newest_s.get(nsqd, 0))
            self.seen_ms[nsqd] = self.clock_ms
        quiet_before = self.clock_ms - QUIET_S * 1000
        for nsqd in [name for name, seen in self.seen_ms.items() if seen < quiet_before]:
            del self.seen_ms[nsqd], self.newest_s[nsqd]
        if self.newest_s:
            self.low_s = max(self.low_s, min(self.newest_s.values()))
