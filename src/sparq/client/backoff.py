"""Backoff: how a consumer steps back when its messages fail, and feels its way forward again.

```
            failure                      block over                    success at level 1
  CLEAR ───────────────▶ BLOCKED(level) ───────────▶ PROBING(level) ───────────────────▶ CLEAR
                               ▲                          │
                               └── failure: level + 1, success: level - 1, neutral: level
```
1. While blocked no connection has RDY; while probing a single one has RDY 1.
2. One result counts a block: what comes in while blocked is ignored, since those messages were
   on their way already when the trouble was seen.
3. A block at level n lasts multiplier x 2^n seconds, at most ``max_duration``; "full_jitter" draws
   from 0 to that, so that many consumers do not come back all at once. 0 switches backoff off.

No clock here: the consumer keeps the timer.
"""

from __future__ import annotations

import enum
import math
import random


class Outcome(enum.Enum):
    """What a message's response says about the state of things."""

    SUCCESS = enum.auto()
    FAILURE = enum.auto()
    NEUTRAL = enum.auto()


class State(enum.Enum):
    """Where a consumer stands in its backoff."""

    CLEAR = enum.auto()
    BLOCKED = enum.auto()
    PROBING = enum.auto()


class Backoff:
    """The state machine; ``level`` is how many failures are not made good yet."""

    def __init__(
        self, strategy: str, multiplier: float, max_duration: float, rng: random.Random
    ) -> None:
        self.state = State.CLEAR
        self.level = 0
        self._jittered = strategy == "full_jitter"
        self._multiplier = multiplier
        self._max_duration = max_duration if multiplier > 0 else 0.0
        self._level_max = _highest_useful_level(multiplier, self._max_duration)
        self._rng = rng

    def result(self, outcome: Outcome) -> bool:
        """Note one message's outcome; True when the state is not what it was before."""
        if self.state is State.BLOCKED or not self._max_duration:
            return False
        if outcome is Outcome.FAILURE:
            self.level = min(self.level + 1, self._level_max)
        elif self.state is State.CLEAR:
            return False
        elif outcome is Outcome.SUCCESS:
            self.level -= 1
        self.state = State.BLOCKED if self.level else State.CLEAR
        return True

    def block_over(self) -> None:
        """The block has lasted ``duration``: one message may test the waters."""
        assert self.state is State.BLOCKED, self.state
        self.state = State.PROBING

    def duration(self) -> float:
        """Seconds that a block at the present level lasts."""
        longest = min(self._multiplier * 2.0**self.level, self._max_duration)
        return self._rng.uniform(0, longest) if self._jittered else longest


def _highest_useful_level(multiplier: float, max_duration: float) -> int:
    """The first level whose block is as long as a block may be: beyond it nothing grows."""
    if max_duration <= 0 or max_duration <= multiplier:
        return 1
    return max(1, math.ceil(math.log2(max_duration / multiplier)))
