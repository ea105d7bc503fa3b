"""The low mark: the event time that all nsqds have reached; kept in the state of each bucket.

Two nsqds are not in step: one may be read minutes after the other. The low mark is therefore the
minimum of the nsqds' newest event times, not the newest of all.

1. The mark is a function of the batches only: a replay repeats it, and all buckets of a query have
   the same. It never goes back.
2. An nsqd that has sent no click for more than QUIET_S no longer holds the mark back, and is
   removed. It joins again with its next click, like a new nsqd. So the stored state stays small.
3. QUIET_S counts only time between batches, at most STEP_S for each pair: a pause of the query, or
   a jump of the clock, must not make every nsqd quiet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

QUIET_S = 30
STEP_S = 10


class LowMark(msgspec.Struct):
    """The low mark of event time; its fields are the whole state that it continues from.

    Attributes:
        low_s: seconds since 1970; 0 before the first click.
        newest_s, seen_ms: of each nsqd that is not quiet, its newest event time, and the time of
            its last click on the clock `clock_ms`.
        clock_ms: time that has passed in batches, each step at most STEP_S.
        batch_ms: time of the newest batch.
    """

    low_s: int = 0
    newest_s: dict[str, int] = {}
    seen_ms: dict[str, int] = {}
    clock_ms: int = 0
    batch_ms: int = 0

    def advance(self, marks: Iterable[Mapping[str, int]], batch_ms: int) -> None:
        """Process one batch of this time, with each partition's newest event time of each nsqd.

        These are clamped to the publish time: one click from a wrong clock must not close visits.
        """
        self.clock_ms += min(max(batch_ms - self.batch_ms, 0), STEP_S * 1000)
        self.batch_ms = batch_ms
        for nsqd, at in (pair for one in marks for pair in one.items()):
            self.newest_s[nsqd] = max(at, self.newest_s.get(nsqd, 0))
            self.seen_ms[nsqd] = self.clock_ms
        quiet_before = self.clock_ms - QUIET_S * 1000
        self.seen_ms = {nsqd: at for nsqd, at in self.seen_ms.items() if at >= quiet_before}
        self.newest_s = {nsqd: self.newest_s[nsqd] for nsqd in self.seen_ms}
        # With no nsqd left the mark stays where it is.
        self.low_s = max(self.low_s, min(self.newest_s.values(), default=0))
