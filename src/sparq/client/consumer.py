"""The consumer: receives a channel's messages from every nsqd that has its topic.

Iterate over it, or give it a ``handler``; both see each delivery once.

1. No task and no timer per message: frames become messages as they arrive and wait in one queue,
   which ``max_in_flight`` bounds.
2. A message whose connection is gone, or whose time with nsqd is over, is not handed out: nsqd
   delivers it again, and the answer to this delivery would go nowhere.
3. How many messages come, and from where, is decided in ``flow``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self

from sparq.client.address import parse_addresses, split_texts
from sparq.client.config import Config
from sparq.client.connection import open_connection
from sparq.client.discovery import Discovery
from sparq.client.errors import ClosedError
from sparq.client.flow import Flow
from sparq.client.message import Message
from sparq.client.pool import Pool, background
from sparq.client.subscription import Counters, Subscription
from sparq.protocol import commands
from sparq.protocol.names import is_valid_name, quote

log = logging.getLogger(__name__)

CLOSE_WAIT_SECONDS: Final = 2.0
"""For nsqd's answer to CLS, which it gives at once; one that hangs must not hold up the stop."""

Handler = Callable[[Message], Awaitable[None] | None]


class Consumer:
    """Consumes one channel of a topic.

    Iteration::

        async with Consumer("clicks", "archive", nsqd_tcp_addresses="127.0.0.1:4150") as consumer:
            async for message in consumer:
                await message.finish()

    Handler: ``Consumer(..., handler=handle, concurrency=10)`` calls ``await handle(message)``,
    so many at a time, and answers by the outcome unless the handler has: FIN when it returns, REQ
    with backoff when it raises. ``await consumer.join()`` waits for the consumer's end.

    Leaving the ``async with`` block stops it. While iterating, messages not handed out are given
    back to nsqd at once then; a handler gets ``stop_timeout`` seconds to finish what is there.

    Args:
        topic: the topic.
        channel: the channel; created when it does not exist.
        nsqd_tcp_addresses: nsqds as ``host:port`` or as paths of unix sockets, in a list or in
            one text with commas.
        lookupd_http_addresses: nsqlookupds that know the nsqds, ``host:port`` or URL.
        handler: called for each message; may be a coroutine function or an ordinary function.
        concurrency: how many calls of the handler may run at the same time.
        on_giving_up: called with a message that was delivered more than ``max_attempts`` times;
            it is finished when the call returns and requeued when it raises.
        config: options to start from.
        **options: single options of ``Config``, which replace those of ``config``.

    Raises:
        ValueError: a name, an address or an option is not valid, or no address is given.
        TypeError: an option does not exist or has the wrong type.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        lookupd_http_addresses: str | Iterable[str] = (),
        handler: Handler | None = None,
        concurrency: int = 1,
        on_giving_up: Handler | None = None,
        config: Config | None = None,
        **options: Any,
    ) -> None:
        for kind, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name):
                raise ValueError(f"{kind} name {quote(name)} is not valid")
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}, not 1 or more")
        self.topic = topic
        self.channel = channel
        self.config = Config.of(config, options)
        self.counters = Counters()
        self._handler = handler
        self._concurrency = concurrency
        self._on_giving_up = on_giving_up
        self._queue: deque[Message] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._ended = False
        self._stopped = asyncio.Event()
        rng = random.Random()  # noqa: S311 - spreads load in time, guards nothing
        self._flow = Flow(self.config, rng)
        given, lookupds = parse_addresses(nsqd_tcp_addresses), split_texts(lookupd_http_addresses)
        if not given and not lookupds:
            raise ValueError("give nsqd_tcp_addresses or lookupd_http_addresses")
        self._discovery = Discovery(lookupds, topic, self.config, rng)
        self._pool = Pool(
            given,
            self._serve,
            self._discovery.recheck,
            max_delay=self.config.max_reconnect_delay,
            rng=rng,
        )

    # What is known

    @property
    def connections(self) -> list[str]:
        """The nsqds that are connected and subscribed, as ``host:port``."""
        return [each.address for each in self._flow.subscriptions.values()]

    @property
    def errors(self) -> dict[str, str]:
        """Why there is no connection to an nsqd, for each that should have one and has none."""
        return dict(self._pool.errors)

    @property
    def in_flight(self) -> int:
        """The messages received and not answered for, handed out or not."""
        return self._flow.in_flight

    @property
    def backoff_level(self) -> int:
        """How many failures are not made good yet; 0: no backoff."""
        return self._flow.backoff_level

    @property
    def max_in_flight(self) -> int:
        """How many messages may be unanswered; may be changed at any time, 0 pauses."""
        return self._flow.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self.config = Config.of(self.config, {"max_in_flight": count})
        self._flow.max_in_flight = count

    # Life

    async def __aenter__(self) -> Self:
        """Start; connections are made in the background."""
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        await self.stop(0.0 if self._handler is None else None)

    def start(self) -> None:
        """Begin to connect and receive.

        Raises:
            ClosedError: it was started or stopped before.
        """
        if self._tasks or self._stopping:
            raise ClosedError("a consumer is started once")
        self._tasks.append(background(self._discovery.run(self._pool.update), "discovery"))
        self._pool.start()
        self._flow.start()
        if self._handler is not None:
            for number in range(self._concurrency):
                self._tasks.append(background(self._work(self._handler), f"handler {number}"))

    async def join(self) -> None:
        """Wait until the consumer has stopped."""
        await self._stopped.wait()

    async def stop(self, wait_seconds: float | None = None) -> None:
        """Stop receiving, let what is in hand be answered, and close the connections.

        nsqd is told to send no more (CLS). A handler goes on with the messages that are here;
        without one, those not handed out are given back. Then unanswered messages are waited for,
        ``wait_seconds`` or ``stop_timeout``. What is unanswered after that, nsqd delivers again.
        Called from a handler it would wait for that handler: start a task for it there.
        """
        if self._stopping:
            await self.join()
            return
        self._stopping = True
        seconds = self.config.stop_timeout if wait_seconds is None else wait_seconds
        try:
            await self._wind_down(seconds)
        finally:
            await self._end()

    async def _wind_down(self, seconds: float) -> None:
        self._pool.retire()
        closing = [each.start_closing() for each in self._flow.subscriptions.values()]
        self._flow.stop()
        if self._handler is None:
            self._give_back()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WAIT_SECONDS):
                await asyncio.gather(*closing)
        if self._handler is None:
            self._give_back()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._flow.drained.wait()

    async def _end(self) -> None:
        self._give_back()
        if self.in_flight:
            log.info("stopped with %d messages unanswered", self.in_flight)
        self._ended = True
        self._wake(len(self._takers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closings = [each.connection.close() for each in self._flow.subscriptions.values()]
        await asyncio.gather(*closings)
        await self._pool.close()
        self._stopped.set()

    def _give_back(self) -> None:
        """REQ what was not handed out: another consumer may have it at once."""
        while self._queue:
            message = self._queue.popleft()
            if not message.stale:
                message.requeue(0, backoff=False)

    # Connections

    async def _serve(self, address: str) -> None:
        connection = await open_connection(address, self.config)
        try:
            subscription = Subscription(
                connection, self.config, self.counters, self._received, self._flow.answering
            )
            await connection.request(commands.sub(self.topic, self.channel))
            self._pool.errors.pop(address, None)
            self._flow.add(subscription)
            try:
                await connection.ended()
            finally:
                self._flow.remove(subscription)
                subscription.forget()
        finally:
            connection.fail(ClosedError("closed by the consumer"))

    # Messages

    def __aiter__(self) -> Self:
        """Iterate over messages; several tasks may do so at the same time."""
        return self

    async def __anext__(self) -> Message:
        """The next message; the iteration ends when the consumer is stopped."""
        while (message := await self._take()) is not None:
            if not message.attempts > self.config.max_attempts > 0:
                return message
            await self._give_up(message)
        raise StopAsyncIteration

    def _received(self, messages: list[Message]) -> None:
        self._queue.extend(messages)
        self._wake(len(messages))

    def _wake(self, count: int) -> None:
        """Let so many waiting tasks look at the queue."""
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1

    async def _take(self) -> Message | None:
        """The next message that is worth handling; None when the consumer has ended."""
        while True:
            while self._queue:
                message = self._queue.popleft()
                if not message.stale:
                    return message
            if self._ended:
                return None
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                if taker.cancelled():
                    self._takers.remove(taker)
                else:
                    self._wake(1)
                raise

    async def _work(self, handler: Handler) -> None:
        async for message in self:
            await self._run(handler, message)

    async def _run(self, handler: Handler, message: Message) -> None:
        """Call a handler and answer for the message by the outcome."""
        try:
            result = handler(message)
            if inspect.isawaitable(result):
                await result
        except Exception:
            # A handler may raise anything: that is how it says that it has failed.
            log.exception("handler failed on %r", message)
            if message.auto_respond and not message.responded:
                message.requeue()
        else:
            if message.auto_respond and not message.responded:
                await message.finish()

    async def _give_up(self, message: Message) -> None:
        """What to do with a message that was delivered too often."""
        self.counters.given_up += 1
        log.warning("giving up after %d attempts: %r", message.attempts - 1, message)
        if self._on_giving_up is None:
            await message.finish()
        else:
            await self._run(self._on_giving_up, message)
