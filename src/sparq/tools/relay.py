"""One message to one of several hosts: chosen by a mode, timed, and failed over where it is safe.

1. A message that certainly has not reached its host (`NotSentError`) is offered to the next one.
   When no host could be reached they are all asked again, a few times within two seconds: what
   starts anew is back by then, and a requeue would take far longer.
2. After any other failure it may have arrived, and is requeued at once.
3. While a message is on its way, or waits for its turn, its nsqd is kept waiting.
4. ``hand_on`` takes a task a message. ``start`` takes none, but for messages that failed at first.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from sparq.client.consumer import Consumer
from sparq.client.handling import Handler
from sparq.client.message import Message
from sparq.tools import common
from sparq.tools.common import SourceOptions
from sparq.tools.hostpool import Hosts
from sparq.tools.timings import Timings
from sparq.tools.touching import Touching

logger = logging.getLogger(__name__)

AGGREGATE: Final = "[aggregate]:"
PAUSES: Final = (0.25, 0.5, 1.0)
"""Seconds between the rounds in which all hosts are asked."""
HANDLED_MAX: Final = 10_000
"""Messages of a consumer that are handled at a time, at most; each costs a task."""


class NotTakenError(Exception):
    """A host did not take a message, or has not said that it did."""


class NotSentError(NotTakenError):
    """A message certainly did not reach its host."""


Send = Callable[[str], Awaitable[None]]
Told = Callable[[NotTakenError | None], None]
"""Called once: with None when the host has taken the message."""

Offer = Callable[[str, Told], bool]


def _requeue(message: Message, error: NotTakenError) -> Awaitable[None]:
    logger.warning("%s; message %s, attempt %d", error, message.id, message.attempts)
    return message.requeue()


def consumer_of(
    program: str,
    sources: SourceOptions,
    topic: str,
    channel: str,
    handler: Handler,
    *,
    max_in_flight: int,
) -> Consumer:
    """A consumer that never gives a message up, unless ``--consumer-opt`` asks for that.

    A handler that waits is called for all that is in flight: what waited elsewhere would time out.

    Raises:
        UsageError: a name, an address or an option is not valid.
    """
    common.check_sources(sources.nsqd_tcp_addresses, sources.lookupd_http_addresses)
    common.check_names((topic,), channel)
    waits = inspect.iscoroutinefunction(handler)
    config = common.consumer_config(program, sources, max_in_flight)
    return Consumer(
        topic,
        channel,
        nsqd_tcp_addresses=sources.nsqd_tcp_addresses,
        lookupd_http_addresses=sources.lookupd_http_addresses,
        handler=handler,
        concurrency=min(config.max_in_flight, HANDLED_MAX) if waits else 1,
        config=config,
    )


class Relay:
    """Hands messages on and answers for them.

    Args:
        names: the hosts.
        hosts: the way to choose among them.
        status_every: a line with response times for every so many messages, of all hosts and, if
            there are several, of each.
        at_a_time: messages that may be on their way at a time.
    """

    def __init__(
        self, names: Iterable[str], hosts: Hosts, status_every: int, at_a_time: int
    ) -> None:
        self._names = frozenset(names)
        self._turns = asyncio.Semaphore(at_a_time)
        self._tasks: set[asyncio.Task[None]] = set()
        self._hosts = hosts
        self._touching = Touching()
        self._all = Timings(status_every, AGGREGATE)
        each = status_every if len(self._names) > 1 else 0
        self._timings = {name: Timings(each, f"[{name}]:") for name in self._names}

    async def serve(self, consumers: Sequence[Consumer], stop: asyncio.Event) -> None:
        """Let consumers work until the event is set; then let them finish what is in hand."""
        tasks = self._tasks
        tasks.add(asyncio.create_task(self._touching.run()))
        try:
            for consumer in consumers:
                consumer.start()
            await stop.wait()
            await asyncio.gather(*(consumer.stop() for consumer in consumers))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def hand_on(self, message: Message, send: Send) -> None:
        """Send a message to one host: finish it when that has taken it, requeue it otherwise.

        Args:
            message: the message.
            send: sends it to the host of that name; raises ``NotTakenError``.
        """
        try:
            with self._touching.holding(message):
                async with self._turns:
                    began = time.monotonic()
                    host = await self._until_sent(send)
        except NotTakenError as error:
            await _requeue(message, error)
            return
        await self._finish(message, host, time.monotonic() - began)

    def start(self, message: Message, offer: Offer, send: Send) -> None:
        """Do as ``hand_on`` does, and go on at once.

        Args:
            message: the message; the consumer must not answer for it.
            offer: hands it to the host of that name, if that can be done without waiting, and
                has the function called with the outcome; else it returns False.
            send: as for ``hand_on``.
        """
        now = time.monotonic()
        host = self._hosts.choose(now)
        self._touching.hold(message)
        if not offer(host, partial(self._told, message, send, host, now)):
            self._hand_on_later(message, send)

    def _told(
        self,
        message: Message,
        send: Send,
        host: str,
        began: float,
        error: NotTakenError | None,
    ) -> None:
        self._touching.release(message)
        now = time.monotonic()
        if error is None:
            self._hosts.succeeded(host, now, now - began)
            self._finish(message, host, now - began)
            return
        self._hosts.failed(host, now)
        if isinstance(error, NotSentError):
            self._hand_on_later(message, send)
        else:
            _requeue(message, error)

    def _hand_on_later(self, message: Message, send: Send) -> None:
        task = asyncio.create_task(self.hand_on(message, send))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, message: Message, host: str, seconds: float) -> Awaitable[None]:
        self._timings[host].note(seconds)
        self._all.note(seconds)
        return message.finish()

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
            except NotTakenError as error:
                self._hosts.failed(host, time.monotonic())
                tried.add(host)
                if not isinstance(error, NotSentError) or tried == self._names:
                    raise
            else:
                now = time.monotonic()
                self._hosts.succeeded(host, now, now - began)
                return host
