"""Hand messages to one of several hosts: choose it by mode, time it, fail over where that is safe.

1. Messages are handed on in batches, each to one host. A message that certainly has not
   reached it (`NotSentError`) is offered to the next host. If no host could be reached, all are
   tried again, a few times within two seconds: a restarting host is back by then, and a requeue
   would take far longer.
2. After any other failure the message may have arrived, and is requeued at once.
3. While a message is under way or waits for its turn, it is kept alive with TOUCH at half of its
   timeout. One timer serves all messages; nsqd's `--max-msg-timeout` is still the upper limit.
4. If a batch is refused because of one message, it is unknown which one: the caller hands on each
   by itself.
5. A host that failed is skipped for 30 s; it is then tried with one message, and after each further
   failure the time doubles, up to 15 min. One success ends that. When every host has failed, they
   are still tried in turn: not trying any host would only delay the message.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from array import array
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sparq.client.consumer import Consumer
from sparq.client.subscription import Batch
from sparq.tools import common

logger = logging.getLogger(__name__)

PAUSES: Final = (0.25, 0.5, 1.0)
"""Seconds between the rounds in which all hosts are tried."""

NAMED_SECONDS: Final = 60.0
"""How often a host that cannot be reached is named while others take its messages."""

EVERY_UNEASY: Final = 100
"""Percentiles of fewer messages are not meaningful, and there are many lines."""

KEPT_MAX: Final = 100_000
"""Maximum number of times kept for one line, the first ones: memory must be bounded."""

TICK_SECONDS: Final = 0.2
"""Less than half a second, which is half of the shortest timeout that nsqd gives a message."""

FIRST_RETRY_SECONDS: Final = 30.0
RETRY_SECONDS_MAX: Final = 900.0
DECAY_SECONDS: Final = 300.0
"""How fast measured response times are forgotten: after this time they weigh a third."""

EXPLORE_FIRST: Final = 0.3
EXPLORE_LAST: Final = 0.01
EXPLORE_DECAY: Final = 0.9
"""The share of choices that ignore response times: it falls with each of them."""

QUICKEST_SECONDS: Final = 0.0001
"""A faster answer gains nothing: below this, only the clock is measured."""


class NotAcceptedError(Exception):
    """A host did not accept a message, or did not confirm it."""


class NotSentError(NotAcceptedError):
    """A message certainly did not reach its host."""


class BatchRefusedError(Exception):
    """A host refuses several messages because of one of them."""


Send = Callable[[str], Awaitable[None]]


@dataclass(slots=True)
class Host:
    """The state of one host.

    Attributes:
        retry_at: when it may be tried again, if it has failed; None while it is healthy.
        retry_seconds: how long it is skipped after the next failure.
        weight: the number of measurements, decaying with time.
        seconds: the sum of the measured times, decaying likewise; divided by ``weight``, the mean.
        measured_at: when it was last measured.
    """

    retry_at: float | None = None
    retry_seconds: float = FIRST_RETRY_SECONDS
    weight: float = 0.0
    seconds: float = 0.0
    measured_at: float = 0.0


class HostPool:
    """Chooses a host: the caller tries it and reports the outcome.

    `round-robin` takes the hosts in turn, regardless of outcomes. `hostpool` skips those that have
    failed. `epsilon-greedy` chooses mostly by speed, else as `hostpool`; a host that was never
    measured counts as the fastest, so that it is soon measured.

    Time is an argument, in seconds of any one clock.

    Args:
        mode: `--mode`.
        names: the hosts, at least one.
        rng: for `epsilon-greedy`.
    """

    def __init__(self, mode: str, names: Iterable[str], rng: random.Random) -> None:
        self._mode = mode
        self._hosts = {name: Host() for name in names}  # in the order of their turns
        self.names = self._hosts.keys()
        self._rng = rng
        self._explore = EXPLORE_FIRST

    def choose(self, now: float, tried: Collection[str] = ()) -> str:
        """Return a host that is not in ``tried``; there must be one.

        ``tried`` names the hosts that have failed with this message.
        """
        left = [name for name in self._hosts if name not in tried]
        ready = [name for name in left if (self._hosts[name].retry_at or 0.0) <= now]
        by_speed = bool(ready) and self._mode == "epsilon-greedy"
        if by_speed and self._rng.random() < self._explore:
            self._explore = max(self._explore * EXPLORE_DECAY, EXPLORE_LAST)
            by_speed = False
        name = self._by_speed(ready) if by_speed else (ready or left)[0]
        host = self._hosts[name]
        if not by_speed:
            self._hosts[name] = self._hosts.pop(name)  # its next turn comes after all others
        if host.retry_at is not None and host.retry_at <= now:
            # Set now and not when the outcome is known: until then further messages are handed on,
            # and only one of them may risk this host. A success ends it (`succeeded`).
            host.retry_seconds = min(2 * host.retry_seconds, RETRY_SECONDS_MAX)
            host.retry_at = now + host.retry_seconds
        return name

    def _by_speed(self, names: Sequence[str]) -> str:
        """Return a random one of the hosts, in proportion to its messages per second."""
        hosts = [self._hosts[name] for name in names]
        speeds = [
            1 / max(host.seconds / host.weight, QUICKEST_SECONDS) if host.weight else 0.0
            for host in hosts
        ]
        quickest = max(speeds) or 1.0
        return self._rng.choices(names, [speed or quickest for speed in speeds])[0]

    def succeeded(self, name: str, now: float, seconds: float) -> None:
        """Report that a host accepted a message, in this time."""
        host = self._hosts[name]
        # Decayed sums instead of a list of recent times: the same mean with two numbers for each
        # host.
        faded = math.exp((host.measured_at - now) / DECAY_SECONDS) if host.weight else 0.0
        host.weight = host.weight * faded + 1
        host.seconds = host.seconds * faded + seconds
        host.measured_at = now
        host.retry_at = None

    def failed(self, name: str, now: float) -> None:
        """Report that a host did not accept a message.

        Further failures before the next retry do not count again: messages that were under way
        together fail together.
        """
        host = self._hosts[name]
        if self._mode != "round-robin" and host.retry_at is None:
            host.retry_seconds = FIRST_RETRY_SECONDS
            host.retry_at = now + host.retry_seconds


class Timings:
    """Counts messages, and reports after every N how long the last N took.

    Args:
        every: messages per line; 0: no lines.
        prefix: the beginning of a line.
        say: writes a line.
    """

    def __init__(self, every: int, prefix: str, say: Callable[[str], None] = logger.info) -> None:
        self.count = 0
        self._every = every
        self._prefix = prefix
        self._say = say
        self._seconds = array("d")

    def note(self, seconds: float) -> None:
        """Record that one message was finished, after this time."""
        if not self._every:
            return
        self.count += 1
        if len(self._seconds) < KEPT_MAX:
            self._seconds.append(seconds)
        if self.count % self._every:
            return
        times = sorted(self._seconds)
        # The smallest time that 99 or 95 per cent of the times do not exceed.
        p99, p95 = (times[math.ceil(len(times) * share / 100) - 1] * 1000 for share in (99, 95))
        average = sum(times) / len(times) * 1000
        self._say(
            f"{self._prefix} finished {self.count}"
            f" - 99th: {p99:.2f}ms - 95th: {p95:.2f}ms - avg: {average:.2f}ms"
        )
        del self._seconds[:]


class Relay:
    """Hands messages on, and finishes or requeues them.

    Args:
        hosts: chooses among the hosts.
        status_every: messages per line with response times, over all hosts and, if there are
            several, for each.
        at_a_time: how many ``forward`` may have under way at a time.
    """

    def __init__(self, hosts: HostPool, status_every: int, at_a_time: int) -> None:
        self._turns = asyncio.Semaphore(at_a_time)
        self._tasks: set[asyncio.Task[None]] = set()
        self._hosts = hosts
        self._named: dict[str, float] = {}
        self._touch_at: dict[Batch, float] = {}
        if 0 < status_every < EVERY_UNEASY:
            logger.warning(
                "--status-every=%d: percentiles of so few messages are not meaningful", status_every
            )
        self._all = Timings(status_every, "[aggregate]:")
        each = status_every if len(hosts.names) > 1 else 0
        self._timings = {name: Timings(each, f"[{name}]:") for name in hosts.names}

    async def serve(
        self,
        consumers: Sequence[Consumer],
        stop: asyncio.Event,
        wait_ns: int,
        follow: Callable[[Consumer], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Run the consumers, as `common.consume` does."""
        self.spawn(self._touch())
        try:
            await common.consume(consumers, stop, wait_ns, follow)
        finally:
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run the work in a task that ends with `serve`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def forward(self, batch: Batch, send: Send) -> None:
        """Send messages to one host; finish them when it has accepted them, otherwise requeue them.

        Args:
            batch: the messages.
            send: sends them to the host of that name; raises ``NotAcceptedError``.

        Raises:
            BatchRefusedError: raised by ``send``; the messages are not answered.
        """
        # Touch already while it waits for its turn: nsqd's timeout runs from the delivery.
        self._touch_at[batch] = _halfway(batch)
        try:
            async with self._turns:
                began = time.monotonic()
                host = await self._until_sent(send)
        except NotAcceptedError as error:
            which = f"message {batch[0].id}, attempt {batch[0].attempts}"
            if len(batch) > 1:
                which = f"{len(batch)} messages, highest attempt {batch.attempts_max}"
            logger.warning("%s; %s", error, which)
            await batch.requeue()
            return
        finally:
            del self._touch_at[batch]
        seconds = time.monotonic() - began
        for _ in range(len(batch)):
            self._timings[host].note(seconds)
            self._all.note(seconds)
        await batch.finish()

    async def _until_sent(self, send: Send) -> str:
        """Send to one host after the other, in rounds; return the host that has accepted."""
        pauses = iter(PAUSES)
        tried: set[str] = set()
        while True:
            began = time.monotonic()
            host = self._hosts.choose(began, tried)
            try:
                await send(host)
            except NotAcceptedError as error:
                now = time.monotonic()
                self._hosts.failed(host, now)
                tried.add(host)
                if not isinstance(error, NotSentError):
                    raise
                # The host is named: no message that another host takes is logged.
                others = len(self._hosts.names) - 1
                if others and now - self._named.get(host, -NAMED_SECONDS) >= NAMED_SECONDS:
                    self._named[host] = now
                    logger.warning(
                        "%s; its messages are offered to the other hosts (%d)", error, others
                    )
                if tried == self._hosts.names:
                    if (pause := next(pauses, None)) is None:
                        raise
                    tried.clear()
                    await asyncio.sleep(pause)
            else:
                now = time.monotonic()
                self._hosts.succeeded(host, now, now - began)
                return host

    async def _touch(self) -> None:
        """Touch every message for which half of the time has passed, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            for batch, due in list(self._touch_at.items()):
                # nsqd refuses a TOUCH for a message that has timed out: it is not in flight.
                if due <= now < batch.expires_at and not batch.responded:
                    batch.touch()
                    self._touch_at[batch] = _halfway(batch)


def _halfway(batch: Batch) -> float:
    """Return the time halfway from now to the messages' timeout; infinite if that is unknown."""
    now = time.monotonic()
    return now + (batch.expires_at - now) / 2
