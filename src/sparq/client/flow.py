"""The flow control of a consumer: how many messages its connections may deliver, and when.

Combines ``rdy`` (how ``max_in_flight`` is shared) and ``backoff`` (whether any messages may arrive)
with the event loop's timers. The consumer reports new and lost connections and each response.

1. RDY changes caused by a response are sent before the response: ``RDY 0``, then the failure's
   ``REQ``.
2. A connection can be left while the others go on: its RDY goes to them, and it stays open until
   its messages in flight have been responded to.
3. RDY that could not be granted yet is tried again at most once per loop iteration.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable

from sparq.client.backoff import Backoff, BackoffSignal, BackoffState
from sparq.client.config import Config
from sparq.client.rdy import Distributor, RdyWindow
from sparq.client.subscription import Subscription


class Flow:
    """Sets the RDY of each subscription.

    Attributes:
        subscriptions: the current subscriptions, by their windows.
        drained: set while stopping, once no message is in flight.
    """

    def __init__(self, config: Config, rng: random.Random) -> None:
        self.subscriptions: dict[RdyWindow, Subscription] = {}
        self.drained = asyncio.Event()
        self._left: dict[RdyWindow, asyncio.Event] = {}
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
        """The number of messages in flight."""
        return sum(window.in_flight for window in self.subscriptions)

    @property
    def max_in_flight(self) -> int:
        """The maximum number of messages in flight."""
        return self._distributor.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self._distributor.max_in_flight = count
        self._plan()

    @property
    def backoff_level(self) -> int:
        """The backoff level; 0: no backoff."""
        return self._backoff.level

    def start(self) -> None:
        """Start to check RDY every ``rdy_redistribute_interval`` seconds."""
        self._tick()

    def stop(self) -> None:
        """Stop changing RDY; ``drained`` is set once no message is in flight."""
        self._stopping = True
        for timer in (self._ticking, self._block):
            if timer is not None:
                timer.cancel()
        self._check_drained()

    def add(self, subscription: Subscription) -> None:
        """Add a subscribed connection: it gets its share of RDY, the others' shares shrink."""
        self.subscriptions[subscription.window] = subscription
        if not self._stopping:
            self._distributor.add(subscription.window, time.monotonic())

    def remove(self, subscription: Subscription) -> None:
        """Remove a lost connection: its share of RDY goes to the others."""
        del self.subscriptions[subscription.window]
        self._check_left()
        if self._stopping:
            self._check_drained()
        else:
            self._distributor.remove(subscription.window, time.monotonic())

    def leave(self, subscription: Subscription) -> Awaitable[object]:
        """Send a connection RDY 0; the result waits until it is lost or has nothing in flight."""
        window = subscription.window
        left = self._left.setdefault(window, asyncio.Event())
        if not self._stopping:
            self._distributor.leave(window, time.monotonic())
        self._check_left()
        return left.wait()

    def expire(self, now: float) -> None:
        """Drop messages whose timeout is over: nsqd redelivers them."""
        for subscription in self.subscriptions.values():
            subscription.expire(now)
        self._check_left()
        if self._stopping:
            self._check_drained()
        else:
            self._plan_soon()

    def answering(self, outcome: BackoffSignal) -> None:
        """Note a response that is about to be sent."""
        if self._left:
            self._check_left()
        if self._stopping:
            self._check_drained()
            return
        # A success changes nothing while there is no backoff: the usual case makes no call.
        if outcome is not BackoffSignal.SUCCESS or self._backoff.state is not BackoffState.CLEAR:
            self._note(outcome)
        self._plan_soon()

    def _plan_soon(self) -> None:
        """Plan at the end of this loop iteration, if some RDY could not be granted."""
        if self._distributor.needs_more_rdy and not self._plan_due:
            self._plan_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _note(self, outcome: BackoffSignal) -> None:
        if not self._backoff.result(outcome):
            return
        if self._backoff.state is BackoffState.BLOCKED:
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

    def _send(self, window: RdyWindow, count: int) -> None:
        self.subscriptions[window].ready(count)

    def _tick(self) -> None:
        now = time.monotonic()
        self.expire(now)
        self._distributor.rotate(now)
        if self._distributor.needs_more_rdy:
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
