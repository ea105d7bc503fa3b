"""Hand messages to one of several hosts: choose it by mode, time it, fail over where that is safe.

1. Messages are handed on singly or several together, to one host. A message that certainly has not
   reached it (`NotSentError`) is offered to the next host. If no host could be reached, all are
   tried again, a few times within two seconds: a restarting host is back by then, and a requeue
   would take far longer.
2. After any other failure the message may have arrived, and is requeued at once.
3. While a message is under way or waits for its turn, it is kept alive with TOUCH.
4. If a batch is refused because of one message, it is unknown which one: each is handed on by
   itself.
5. ``forward`` needs a task of its own. ``start`` needs none, except after a first failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from sparq.client.batch import Batch
from sparq.client.consumer import Consumer
from sparq.client.handling import Handler
from sparq.client.message import Message
from sparq.tools import common
from sparq.tools.command_line import ConsumeOptions, UsageError
from sparq.tools.hostpool import RoundRobin
from sparq.tools.touching import Touching

logger = logging.getLogger(__name__)

AGGREGATE: Final = "[aggregate]:"
PAUSES: Final = (0.25, 0.5, 1.0)
"""Seconds between the rounds in which all hosts are tried."""
HANDLED_MAX: Final = 10_000
"""Maximum number of a consumer's messages handled at a time; each costs a task."""

NAMED_SECONDS: Final = 60.0
"""How often a host that cannot be reached is named while others take its messages."""

EVERY_UNEASY: Final = 100
"""Percentiles of fewer messages are not meaningful, and there are many lines."""

KEPT_MAX: Final = 100_000
"""Maximum number of times kept for one line, the first ones: memory must be bounded."""


class NotAcceptedError(Exception):
    """A host did not accept a message, or did not confirm it."""


class NotSentError(NotAcceptedError):
    """A message certainly did not reach its host."""


class BatchRefusedError(Exception):
    """A host refuses several messages because of one of them."""


Send = Callable[[str], Awaitable[None]]
Follow = Callable[[Consumer], Coroutine[Any, Any, None]]
Refusal = NotAcceptedError | BatchRefusedError
OnResult = Callable[[Refusal | None], None]
"""Called once: with None if the host has accepted what it was offered, else with the refusal."""


class RelayedBatch(Protocol):
    """Messages that are handed on together, and answered together."""

    @property
    def batch(self) -> Batch:
        """The messages; the consumer must not answer them itself."""
        ...

    def offer(self, host: str, on_result: OnResult) -> bool:
        """Hand the messages to a host if that is possible without waiting; else return False."""
        ...

    async def send(self, host: str) -> None:
        """Hand the messages to a host; raises ``NotAcceptedError`` or ``BatchRefusedError``."""

    def singly(self) -> Iterable[RelayedBatch]:
        """Return each message on its own."""
        ...


def _requeue(held: Message | Batch, error: NotAcceptedError) -> Awaitable[None]:
    if isinstance(held, Batch) and len(held) > 1:
        count, attempts_max = len(held), held.attempts_max
        logger.warning("%s; %d messages, highest attempt %d", error, count, attempts_max)
    else:
        message = held if isinstance(held, Message) else held[0]
        logger.warning("%s; message %s, attempt %d", error, message.id, message.attempts)
    return held.requeue()


def consumer_of(
    program: str,
    sources: ConsumeOptions,
    topic: str,
    channel: str,
    handler: Handler | None = None,
    *,
    max_in_flight: int,
) -> Consumer:
    """Return a consumer that never gives up a message, unless ``--consumer-opt`` asks for that.

    A handler may run for all messages in flight at once: one that waited for a free handler could
    time out.

    Raises:
        UsageError: a name, an address or an option is not valid.
    """
    common.check_sources(sources.nsqd_tcp_addresses, sources.lookupd_http_addresses)
    common.check_names((topic,), channel)
    config = common.consumer_config(program, sources, max_in_flight)
    return Consumer(
        topic,
        channel,
        nsqd_tcp_addresses=sources.nsqd_tcp_addresses,
        lookupd_http_addresses=sources.lookupd_http_addresses,
        handler=handler,
        concurrency=min(config.max_in_flight, HANDLED_MAX) if handler else 1,
        config=config,
    )


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
        if self.count % self._every == 0:
            self._say(self._line(sorted(self._seconds)))
            del self._seconds[:]

    def _line(self, ascending: Sequence[float]) -> str:
        average = sum(ascending) / len(ascending)
        return (
            f"{self._prefix} finished {self.count}"
            f" - 99th: {_percentile(ascending, 99) * 1000:.2f}ms"
            f" - 95th: {_percentile(ascending, 95) * 1000:.2f}ms"
            f" - avg: {average * 1000:.2f}ms"
        )


def _percentile(ascending: Sequence[float], per_cent: int) -> float:
    """Return the smallest value that this percentage of values does not exceed."""
    return ascending[math.ceil(len(ascending) * per_cent / 100) - 1]


def check_every(every: int) -> None:
    """Check ``--status-every``; warn if the lines will not be meaningful.

    Raises:
        UsageError: it is negative.
    """
    if every < 0:
        raise UsageError(f"--status-every is {every}: use 0 or more")
    if 0 < every < EVERY_UNEASY:
        logger.warning(
            "--status-every=%d: percentiles of so few messages are not meaningful", every
        )


class Relay:
    """Hands messages on, and finishes or requeues them.

    Args:
        names: the hosts.
        hosts: chooses among them.
        status_every: messages per line with response times, over all hosts and, if there are
            several, for each.
        at_a_time: parcels, or messages, that ``forward`` may have under way at a time.
    """

    def __init__(
        self, names: Iterable[str], hosts: RoundRobin, status_every: int, at_a_time: int
    ) -> None:
        self._names = frozenset(names)
        self._turns = asyncio.Semaphore(at_a_time)
        self._tasks: set[asyncio.Task[None]] = set()
        self._hosts = hosts
        self._named: dict[str, float] = {}
        self._touching = Touching()
        self._all = Timings(status_every, AGGREGATE)
        each = status_every if len(self._names) > 1 else 0
        self._timings = {name: Timings(each, f"[{name}]:") for name in self._names}

    async def serve(
        self,
        consumers: Sequence[Consumer],
        stop: asyncio.Event,
        wait_ns: int,
        follow: Follow | None = None,
    ) -> None:
        """Run the consumers until the event is set; then let them finish their messages.

        Args:
            consumers: not started yet.
            stop: the event.
            wait_ns: how long an nsqd given by address may be down at the start.
            follow: processes a consumer that has no handler, until it is stopped.

        Raises:
            ToolError: an nsqd given by address cannot be reached; messages in flight have been
                finished.
        """
        self._tasks.add(asyncio.create_task(self._touching.run()))
        stopping = asyncio.create_task(stop.wait())
        following: list[asyncio.Task[None]] = []
        try:
            for consumer in consumers:
                consumer.start()
                if follow is not None:
                    following.append(asyncio.create_task(follow(consumer)))
            reaching = asyncio.create_task(common.missing(consumers, wait_ns))
            self._tasks.add(reaching)
            ends = [stopping, reaching, *following]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*(consumer.stop() for consumer in consumers))
            await asyncio.gather(*following)
            # `missing` ends only by raising: an nsqd was not reached.
            if reaching.done():
                await reaching
        finally:
            for task in (stopping, *following, *self._tasks):
                task.cancel()
            await asyncio.gather(*following, *self._tasks, return_exceptions=True)

    async def forward(self, held: Message | Batch, send: Send) -> None:
        """Send messages to one host; finish them when it has accepted them, otherwise requeue them.

        Args:
            held: the message, or several.
            send: sends it to the host of that name; raises ``NotAcceptedError``.

        Raises:
            BatchRefusedError: raised by ``send``; the messages are not answered.
        """
        try:
            # Touch already while it waits for its turn: nsqd's timeout runs from the delivery.
            with self._touching.holding(held):
                async with self._turns:
                    began = time.monotonic()
                    host = await self._until_sent(send)
        except NotAcceptedError as error:
            await _requeue(held, error)
            return
        await self._finish(held, host, time.monotonic() - began)

    def start(self, parcel: RelayedBatch) -> None:
        """Do the same as ``forward``, without waiting for it."""
        # The usual case needs no task for the parcel: a callback gets the answer. Only a parcel
        # that has to wait or is offered again gets one (`_forward_later`).
        now = time.monotonic()
        host = self._hosts.choose(now)
        self._touching.add(parcel.batch)
        if not parcel.offer(host, partial(self._log_outcome, parcel, host, now)):
            self._forward_later(parcel)

    def _log_outcome(
        self, parcel: RelayedBatch, host: str, began: float, error: Refusal | None
    ) -> None:
        # This callback cannot await `_finish` and `_requeue`, and need not: FIN and REQ take effect
        # when called, awaiting them only applies back-pressure.
        self._touching.release(parcel.batch)
        now = time.monotonic()
        if error is None:
            self._hosts.succeeded(host, now, now - began)
            self._finish(parcel.batch, host, now - began)
        elif isinstance(error, BatchRefusedError):
            self._start_singly(parcel)
        else:
            self._failed(host, error, now)
            if isinstance(error, NotSentError):
                self._forward_later(parcel)
            else:
                _requeue(parcel.batch, error)

    def _failed(self, host: str, error: NotAcceptedError, now: float) -> None:
        """Have the host avoided, and name it: no message that another host takes is logged."""
        self._hosts.failed(host, now)
        others = len(self._names) - 1
        is_due = now - self._named.get(host, -NAMED_SECONDS) >= NAMED_SECONDS
        if others and is_due and isinstance(error, NotSentError):
            self._named[host] = now
            logger.warning("%s; its messages are offered to the other hosts (%d)", error, others)

    def _start_singly(self, parcel: RelayedBatch) -> None:
        for each in parcel.singly():
            self.start(each)

    def _forward_later(self, parcel: RelayedBatch) -> None:
        async def forward() -> None:
            try:
                await self.forward(parcel.batch, parcel.send)
            except BatchRefusedError:
                self._start_singly(parcel)

        task = asyncio.create_task(forward())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, held: Message | Batch, host: str, seconds: float) -> Awaitable[None]:
        for _ in range(1 if isinstance(held, Message) else len(held)):
            self._timings[host].note(seconds)
            self._all.note(seconds)
        return held.finish()

    async def _until_sent(self, send: Send) -> str:
        for pause in PAUSES:
            try:
                return await self._one_round(send)
            except NotSentError:
                await asyncio.sleep(pause)
        return await self._one_round(send)

    async def _one_round(self, send: Send) -> str:
        tried: set[str] = set()
        while True:
            began = time.monotonic()
            host = self._hosts.choose(began, tried)
            try:
                await send(host)
            except NotAcceptedError as error:
                self._failed(host, error, time.monotonic())
                tried.add(host)
                if not isinstance(error, NotSentError) or tried == self._names:
                    raise
            else:
                now = time.monotonic()
                self._hosts.succeeded(host, now, now - began)
                return host
