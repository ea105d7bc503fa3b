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
from collections.abc import Iterable

from sparq.client.backoff import Backoff, BackoffSignal, BackoffState
from sparq.client.config import Config
from sparq.client.rdy import Distributor
from sparq.client.subscription import Subscription


class Flow:
    """Sets the RDY of each subscription.

    Attributes:
        subscriptions: the current subscriptions.
        backoff: the state of the backoff.
    """

    def __init__(self, config: Config, rng: random.Random) -> None:
        self.subscriptions: list[Subscription] = []
        self.backoff = Backoff(
            config.backoff_strategy, config.backoff_multiplier, config.max_backoff_duration, rng
        )
        self._distributor = Distributor(
            config.max_in_flight,
            idle_timeout=config.low_rdy_idle_timeout,
            hold_timeout=config.low_rdy_timeout,
            rng=rng,
        )
        self._redistribute_interval = config.rdy_redistribute_interval
        self._stopping = False
        self._plan_due = False
        self._answered = asyncio.Event()
        self._waiting = 0
        self._ticking: asyncio.TimerHandle | None = None
        self._block: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """The number of messages in flight."""
        return sum(each.window.in_flight for each in self.subscriptions)

    def start(self) -> None:
        """Check RDY now, and again every ``rdy_redistribute_interval`` seconds."""
        now = time.monotonic()
        self.expire(now)
        self._distributor.rotate(now)
        if self._distributor.needs_more_rdy:
            self._plan()
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(self._redistribute_interval, self.start)

    def stop(self) -> None:
        """Stop changing RDY."""
        self._stopping = True
        for timer in (self._ticking, self._block):
            if timer is not None:
                timer.cancel()

    def share(self, max_in_flight: int) -> None:
        """Set the maximum number of messages in flight."""
        self._distributor.max_in_flight = max_in_flight
        self._plan()

    def add(self, subscription: Subscription) -> None:
        """Add a subscribed connection: it gets its share of RDY, the others' shares shrink."""
        self.subscriptions.append(subscription)
        self._distributor.windows.append(subscription.window)
        self._plan()

    def remove(self, subscription: Subscription) -> None:
        """Remove a lost connection: its share of RDY goes to the others."""
        subscription.forget()
        self.subscriptions.remove(subscription)
        self._distributor.windows.remove(subscription.window)
        self._answered.set()
        self._plan()

    def leave(self, subscription: Subscription) -> None:
        """Set a connection's RDY to 0 permanently; its share goes to the others."""
        subscription.window.leaving = True
        self._plan()

    async def emptied(self, subscriptions: Iterable[Subscription]) -> None:
        """Wait until these connections are lost or have nothing in flight."""
        self._waiting += 1
        try:
            while any(each.window.in_flight for each in subscriptions):
                self._answered.clear()
                await self._answered.wait()
        finally:
            self._waiting -= 1

    def expire(self, now: float) -> None:
        """Drop messages whose timeout is over: nsqd redelivers them."""
        for subscription in self.subscriptions:
            subscription.expire(now)
        self._answered.set()
        if self._distributor.needs_more_rdy:
            self._plan_soon()

    def answering(self, outcome: BackoffSignal) -> None:
        """Note a response that is about to be sent."""
        if self._waiting:
            self._answered.set()
        # A success changes nothing while there is no backoff: the usual case makes no call.
        if outcome is not BackoffSignal.SUCCESS or self.backoff.state is not BackoffState.CLEAR:
            self._note(outcome)
        if self._distributor.needs_more_rdy:
            self._plan_soon()

    def _note(self, outcome: BackoffSignal) -> None:
        if self._stopping or not self.backoff.result(outcome):
            return
        if self.backoff.state is BackoffState.BLOCKED:
            loop = asyncio.get_running_loop()
            self._block = loop.call_later(self.backoff.duration(), self._block_over)
        self._plan()

    def _block_over(self) -> None:
        self.backoff.block_over()
        self._plan()

    def _plan_soon(self) -> None:
        """Plan at the end of this loop iteration."""
        if not self._plan_due:
            self._plan_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        self._plan_due = False
        if not self._stopping:
            self._distributor.state = self.backoff.state
            self._distributor.plan(time.monotonic())
