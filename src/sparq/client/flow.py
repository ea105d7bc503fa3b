"""The flow of a consumer: how many messages may come, over all its connections, and when.

Joins ``rdy`` (who may have how many) and ``backoff`` (whether anything may come at all) with the
event loop's timers. A consumer tells it of connections that come and go and of each answer.

1. What an answer changes is sent before the answer: ``RDY 0``, then the ``REQ`` of the failure.
2. A connection can be left while the others go on: its RDY goes to them, what it has in flight is
   waited for.
3. RDY that could not be given yet is tried again at most once a turn of the loop.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable

from sparq.client.backoff import Backoff, Outcome, State
from sparq.client.config import Config
from sparq.client.rdy import Distributor, Window
from sparq.client.subscription import Subscription


class Flow:
    """Decides what each subscription may receive.

    Attributes:
        subscriptions: the live ones, by their windows.
        drained: set while stopping, once nothing is in flight.
    """

    def __init__(self, config: Config, rng: random.Random) -> None:
        self.subscriptions: dict[Window, Subscription] = {}
        self.drained = asyncio.Event()
        self._left: dict[Window, asyncio.Event] = {}
        self._stopping = False
        self._plan_due = False
        self._redistribute_interval = config.rdy_redistribute_interval
        self._backoff = Backoff(
            config.backoff_strategy, config.backoff_multiplier, config.max_backoff_duration, rng
        )
        self._distributor = Distributor(
            config.max_in_flight,
            self._send,
            idle_timeout=config.low_rdy_idle_timeout,
            hold_timeout=config.low_rdy_timeout,
            rng=rng,
        )
        self._ticking: asyncio.TimerHandle | None = None
        self._block: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """The messages received and not answered for."""
        return sum(window.in_flight for window in self.subscriptions)

    @property
    def max_in_flight(self) -> int:
        """How many there may be."""
        return self._distributor.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self._distributor.max_in_flight = count
        self._plan()

    @property
    def backoff_level(self) -> int:
        """How many failures are not made good yet; 0: no backoff."""
        return self._backoff.level

    def start(self) -> None:
        """Begin to look after RDY every ``rdy_redistribute_interval`` seconds."""
        self._tick()

    def stop(self) -> None:
        """Give no more RDY; ``drained`` is set once nothing is in flight."""
        self._stopping = True
        for timer in (self._ticking, self._block):
            if timer is not None:
                timer.cancel()
        self._check_drained()

    def add(self, subscription: Subscription) -> None:
        """A connection has subscribed: it gets its share, the others' becomes smaller."""
        self.subscriptions[subscription.window] = subscription
        if not self._stopping:
            self._distributor.add(subscription.window, time.monotonic())

    def remove(self, subscription: Subscription) -> None:
        """A connection is gone: what it had goes to the others."""
        del self.subscriptions[subscription.window]
        self._check_left()
        if self._stopping:
            self._check_drained()
        else:
            self._distributor.remove(subscription.window, time.monotonic())

    def leave(self, subscription: Subscription) -> Awaitable[object]:
        """Give a connection no more RDY, at once; done when it is gone or has nothing in flight."""
        window = subscription.window
        left = self._left.setdefault(window, asyncio.Event())
        if not self._stopping:
            self._distributor.leave(window, time.monotonic())
        self._check_left()
        return left.wait()

    def expire(self, now: float) -> None:
        """Count no longer what nsqd has waited for too long: it delivers that again."""
        for subscription in self.subscriptions.values():
            subscription.expire(now)
        self._check_left()
        if self._stopping:
            self._check_drained()
        else:
            self._plan_soon()

    def answering(self, outcome: Outcome) -> None:
        """A message is about to be answered for."""
        if self._left:
            self._check_left()
        if self._stopping:
            self._check_drained()
            return
        if outcome is not Outcome.SUCCESS or self._backoff.state is not State.CLEAR:
            self._note(outcome)
        self._plan_soon()

    def _plan_soon(self) -> None:
        """Plan at the end of this turn of the loop, if there is RDY that could not be given."""
        if self._distributor.hungry and not self._plan_due:
            self._plan_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _note(self, outcome: Outcome) -> None:
        if not self._backoff.result(outcome):
            return
        if self._backoff.state is State.BLOCKED:
            loop = asyncio.get_running_loop()
            self._block = loop.call_later(self._backoff.duration(), self._block_over)
        self._distributor.state = self._backoff.state
        self._plan()

    def _block_over(self) -> None:
        self._backoff.block_over()
        self._distributor.state = self._backoff.state
        self._plan()

    def _plan(self) -> None:
        self._plan_due = False
        if not self._stopping:
            self._distributor.plan(time.monotonic())

    def _send(self, window: Window, count: int) -> None:
        self.subscriptions[window].ready(count)

    def _tick(self) -> None:
        now = time.monotonic()
        self.expire(now)
        self._distributor.rotate(now)
        if self._distributor.hungry:
            self._plan()
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(self._redistribute_interval, self._tick)

    def _check_drained(self) -> None:
        if not self.in_flight:
            self.drained.set()

    def _check_left(self) -> None:
        for window, left in list(self._left.items()):
            if window not in self.subscriptions or not window.in_flight:
                left.set()
                del self._left[window]
