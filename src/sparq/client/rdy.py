"""RDY: how a consumer's ``max_in_flight`` is shared among its connections.

RDY is a window: nsqd delivers to a connection while fewer than RDY of its messages are in flight.

1. The RDY counts of all connections never add up to more than ``max_in_flight``.
2. A connection is charged with what it may still have to answer: its RDY or its messages in
   flight, whichever is more. RDY is raised only out of what is not charged, so that shifting RDY
   from one connection to another never puts more than ``max_in_flight`` messages in hand.
3. Lowering comes before raising. What could not be raised yet leaves ``hungry`` set: plan again
   when a message was answered.
4. A connection that is to be left has RDY 0 from then on, but is charged until it is gone.
5. nsqd may send again what it waited for too long: twice the highest RDY, and some, may come. Who
   sends more (`Window.most`) counts nothing, and would fill the memory.
6. With fewer seats (RDY 1) than connections, seats go round: a connection that is idle or has
   had its seat for long yields to the one that has been without for longest.

No clock and no socket: times are arguments, ``send`` carries the command away.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sparq.client.backoff import State

STARVED_PART: Final = 0.85
"""As in NSQ's clients."""

SURPLUS: Final = 100
"""Messages that an nsqd may send beyond all reckoning."""


@dataclass(slots=True, eq=False)
class Window:
    """One connection's part: its RDY and what it has in flight. Times are monotonic seconds."""

    max_rdy_count: int
    ready: int = 0
    in_flight: int = 0
    ready_since: float = 0.0
    resting_since: float = float("-inf")
    last_message: float = float("-inf")
    leaving: bool = False
    most: int = SURPLUS

    @property
    def charge(self) -> int:
        """The messages of ``max_in_flight`` that are taken by this connection."""
        return max(self.ready, self.in_flight)

    @property
    def is_starved(self) -> bool:
        """Whether nearly all that it may have is unanswered, so that few more come."""
        return self.in_flight > 0 and self.in_flight >= STARVED_PART * self.ready


class Distributor:
    """Shares ``max_in_flight`` among windows, by the state of the backoff."""

    def __init__(
        self,
        max_in_flight: int,
        send: Callable[[Window, int], None],
        *,
        idle_timeout: float,
        hold_timeout: float,
        rng: random.Random,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.state = State.CLEAR
        self.windows: list[Window] = []
        self.hungry = False
        self._send = send
        self._idle_timeout = idle_timeout
        self._hold_timeout = hold_timeout
        self._rng = rng

    def add(self, window: Window, now: float) -> None:
        """A connection has subscribed."""
        self.windows.append(window)
        self.plan(now)

    def remove(self, window: Window, now: float) -> None:
        """A connection is gone, and what it had in flight with it."""
        self.windows.remove(window)
        self.plan(now)

    def leave(self, window: Window, now: float) -> None:
        """A connection is to be left: its RDY goes to the others."""
        window.leaving = True
        self.plan(now)

    def plan(self, now: float) -> None:
        """Send each connection the RDY that it should have now and has not."""
        targets = self._targets()
        for window, target in targets:
            if target < window.ready:
                self._set(window, target, now)
        spare = self.max_in_flight - sum(window.charge for window in self.windows)
        self.hungry = False
        for window, target in targets:
            if target > window.ready:
                charge = window.charge
                granted = min(target, charge + spare)
                self.hungry |= granted < target
                if granted > window.ready:
                    self._set(window, granted, now)
                    spare -= window.charge - charge

    def rotate(self, now: float) -> None:
        """Let the seats go round; to be called every few seconds."""
        staying = self._staying()
        seats = self._seats(len(staying))
        if seats is None or seats == len(staying):
            return
        for window in staying:
            idle = now - max(window.last_message, window.ready_since) > self._idle_timeout
            if window.ready and (idle or now - window.ready_since > self._hold_timeout):
                self._set(window, 0, now)
        self.plan(now)

    def _set(self, window: Window, ready: int, now: float) -> None:
        if ready == 0:
            window.resting_since = now
        elif window.ready == 0:
            window.ready_since = now
        window.ready = ready
        window.most = max(window.most, 2 * ready + SURPLUS)
        self._send(window, ready)

    def _staying(self) -> list[Window]:
        return [window for window in self.windows if not window.leaving]

    def _seats(self, count: int) -> int | None:
        """How many of so many connections may have RDY 1, the rest none; None: there is a share."""
        if self.state is State.BLOCKED:
            return 0
        if self.state is State.PROBING:
            return min(1, self.max_in_flight)
        return self.max_in_flight if count > self.max_in_flight else None

    def _targets(self) -> list[tuple[Window, int]]:
        staying = self._staying()
        targets = [(window, 0) for window in self.windows if window.leaving]
        seats = self._seats(len(staying))
        if seats is not None:
            seated = self._seated(staying, seats)
            return targets + [(window, int(window in seated)) for window in staying]
        return targets + self._shares(staying)

    def _shares(self, windows: list[Window]) -> list[tuple[Window, int]]:
        """Equal parts; what one's nsqd does not allow it goes to those that may have more."""
        left, shares = self.max_in_flight, []
        narrow_first = sorted(windows, key=lambda window: window.max_rdy_count)
        for place, window in enumerate(narrow_first):
            part = -(-left // (len(windows) - place))
            shares.append((window, min(part, window.max_rdy_count)))
            left -= shares[-1][1]
        return shares

    def _seated(self, windows: list[Window], seats: int) -> set[Window]:
        """Who has a seat: those who have one, then those who have waited longest."""
        holders = [window for window in windows if window.ready][:seats]
        waiting = [window for window in windows if not window.ready]
        waiting.sort(key=lambda window: (window.resting_since, self._rng.random()))
        return {*holders, *waiting[: seats - len(holders)]}
