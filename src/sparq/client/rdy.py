"""RDY and backoff: how much a consumer's connections may deliver.

No clock and no socket: times are arguments, and a window's ``send`` sends the command.

Backoff: a consumer pauses when its messages fail, and resumes step by step.

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

RDY: how a consumer's ``max_in_flight`` is shared among its connections.

RDY is a window: nsqd delivers to a connection while fewer than RDY of its messages are in flight.

1. The RDY counts of all connections never add up to more than ``max_in_flight``.
2. A connection is charged with its RDY or its messages in flight, whichever is more. RDY is raised
   only by the part of ``max_in_flight`` that is not charged. So moving RDY from one connection to
   another never puts more than ``max_in_flight`` messages in flight.
3. RDY is lowered first, then raised. If some RDY could not be raised yet, ``needs_more_rdy`` is
   set: plan again after a message was responded to.
4. A connection being left has RDY 0, but is charged until it is closed.
5. nsqd may redeliver messages that timed out, so up to twice the highest RDY, plus `SURPLUS`, may
   arrive. An nsqd that sends more (`RdyWindow.most`) ignores RDY and would fill the memory.
6. If there are fewer seats (RDY 1) than connections, because ``max_in_flight`` is lower or because
   backoff probes, the seats rotate: a connection that is idle, or has had its seat for long, passes
   it to the one that has waited longest.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


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


STARVED_PART: Final = 0.85
"""As in NSQ's clients."""

SURPLUS: Final = 100
"""Messages tolerated beyond twice the highest RDY."""


@dataclass(slots=True, eq=False)
class RdyWindow:
    """One connection's RDY and number of messages in flight; times are monotonic seconds."""

    max_rdy_count: int
    send: Callable[[int], None]
    ready: int = 0
    in_flight: int = 0
    ready_since: float = 0.0
    resting_since: float = float("-inf")
    last_message: float = float("-inf")
    leaving: bool = False
    most: int = SURPLUS

    @property
    def charge(self) -> int:
        """The part of ``max_in_flight`` that this connection uses."""
        return max(self.ready, self.in_flight)

    @property
    def is_starved(self) -> bool:
        """Whether at least `STARVED_PART` of its RDY is in flight, so that few more arrive."""
        return self.in_flight > 0 and self.in_flight >= STARVED_PART * self.ready


class Distributor:
    """Shares ``max_in_flight`` among ``windows``, subject to the backoff ``state``.

    Call ``plan`` after each change of these, or of a window's ``leaving``.
    """

    def __init__(
        self, max_in_flight: int, *, idle_timeout: float, hold_timeout: float, rng: random.Random
    ) -> None:
        self.max_in_flight = max_in_flight
        self.state = BackoffState.CLEAR
        self.windows: list[RdyWindow] = []
        self.needs_more_rdy = False
        self._idle_timeout = idle_timeout
        self._hold_timeout = hold_timeout
        self._rng = rng

    def plan(self, now: float) -> None:
        """Send a new RDY to each connection whose share has changed."""
        targets = self._targets()
        for window, target in targets:
            if target < window.ready:
                self._set(window, target, now)
        spare = self.max_in_flight - sum(window.charge for window in self.windows)
        self.needs_more_rdy = False
        for window, target in targets:
            if target > window.ready:
                charge = window.charge
                granted = min(target, charge + spare)
                self.needs_more_rdy |= granted < target
                if granted > window.ready:
                    self._set(window, granted, now)
                    spare -= window.charge - charge

    def rotate(self, now: float) -> None:
        """Rotate the seats; call it every few seconds."""
        staying = [window for window in self.windows if not window.leaving]
        if self._seats(len(staying)) in (None, len(staying)):
            return
        for window in staying:
            # Idle since its seat began at the earliest: before that, RDY 0 kept messages away.
            idle = now - max(window.last_message, window.ready_since) > self._idle_timeout
            if window.ready and (idle or now - window.ready_since > self._hold_timeout):
                self._set(window, 0, now)
        self.plan(now)

    def _set(self, window: RdyWindow, ready: int, now: float) -> None:
        if ready == 0:
            window.resting_since = now
        elif window.ready == 0:
            window.ready_since = now
        window.ready = ready
        window.most = max(window.most, 2 * ready + SURPLUS)
        window.send(ready)

    def _seats(self, count: int) -> int | None:
        """Return the number of seats (RDY 1) for ``count`` connections; None: share equally."""
        if self.state is BackoffState.BLOCKED:
            return 0
        if self.state is BackoffState.PROBING:
            return min(1, self.max_in_flight)
        return self.max_in_flight if count > self.max_in_flight else None

    def _targets(self) -> list[tuple[RdyWindow, int]]:
        """Return each window with the RDY that it should have."""
        targets = [(window, 0) for window in self.windows if window.leaving]
        staying = [window for window in self.windows if not window.leaving]
        seats = self._seats(len(staying))
        if seats is not None:
            # Current holders first, then the longest waiting.
            waiting = [window for window in staying if not window.ready]
            waiting.sort(key=lambda window: (window.resting_since, self._rng.random()))
            in_line = [window for window in staying if window.ready] + waiting
            return targets + [(window, int(at < seats)) for at, window in enumerate(in_line)]
        # Equal shares. Those with the lowest limit first: what they cannot use is then known before
        # the shares of the others are set.
        left = self.max_in_flight
        staying.sort(key=lambda window: window.max_rdy_count)
        for place, window in enumerate(staying):
            share = min(-(-left // (len(staying) - place)), window.max_rdy_count)
            targets.append((window, share))
            left -= share
        return targets
