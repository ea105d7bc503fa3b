"""Backoff: a consumer pauses when its messages fail, and resumes step by step.

```
            failure                      block over                    success at level 1
  CLEAR ───────────────▶ BLOCKED(level) ───────────▶ PROBING(level) ───────────────────▶ CLEAR
                               ▲                          │
                               └── failure: level + 1, success: level - 1, neutral: level
```
1. While blocked, no connection has RDY; while probing, a single one has RDY 1.
2. One result counts per block: results during a block are ignored, since those messages were
   delivered before the failure was seen.
3. A block at level n lasts multiplier x 2^n seconds, at most ``max_duration``. "full_jitter" draws
   the duration at random between 0 and that, so that many consumers do not resume at the same time.
   If multiplier or ``max_duration`` is 0, backoff is off.

No clock here: ``flow`` keeps the timer.
"""

from __future__ import annotations

import enum
import math
import random


class BackoffSignal(enum.Enum):
    """The meaning of a response for the backoff."""

    SUCCESS = enum.auto()
    FAILURE = enum.auto()
    NEUTRAL = enum.auto()


class BackoffState(enum.Enum):
    """The backoff state of a consumer."""

    CLEAR = enum.auto()
    BLOCKED = enum.auto()
    PROBING = enum.auto()


class Backoff:
    """The state machine; ``level`` rises with each counted failure and falls with a success."""

    def __init__(
        self, strategy: str, multiplier: float, max_duration: float, rng: random.Random
    ) -> None:
        self.state = BackoffState.CLEAR
        self.level = 0
        self._jittered = strategy == "full_jitter"
        self._multiplier = multiplier
        self._max_duration = max_duration if multiplier > 0 else 0.0
        # The first level whose block has the maximum length. A success lowers the level by one
        # only: without a limit, a long run of failures would need as many successes before the
        # consumer is out of backoff.
        self._level_max = 1
        if self._max_duration > multiplier:
            self._level_max = max(1, math.ceil(math.log2(self._max_duration / multiplier)))
        self._rng = rng

    def result(self, outcome: BackoffSignal) -> bool:
        """Note a message's outcome; return True if the state has changed."""
        if self.state is BackoffState.BLOCKED or not self._max_duration:
            return False
        if outcome is BackoffSignal.FAILURE:
            self.level = min(self.level + 1, self._level_max)
        elif self.state is BackoffState.CLEAR:
            return False
        elif outcome is BackoffSignal.SUCCESS:
            self.level -= 1
        self.state = BackoffState.BLOCKED if self.level else BackoffState.CLEAR
        return True

    def block_over(self) -> None:
        """End a block after ``duration``: start to probe with one message."""
        assert self.state is BackoffState.BLOCKED, self.state
        self.state = BackoffState.PROBING

    def duration(self) -> float:
        """Return the length in seconds of a block at the current level."""
        longest = min(self._multiplier * 2.0**self.level, self._max_duration)
        return self._rng.uniform(0, longest) if self._jittered else longest
