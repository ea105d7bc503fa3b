"""The consumer: receives a channel's messages from every nsqd that has its topic.

Iterate over it or over its ``batches``, or give it a ``handler``: each delivery is handed out once.

1. There is no task and no timer per message: received messages wait in one `inbox`, which
   ``max_in_flight`` bounds, and are taken from there one by one or in batches.
2. A message whose connection is lost, or whose message timeout is over, is not handed out: nsqd
   redelivers it, and a response to this delivery would have no effect.
3. `rdy` decides how many messages each connection may deliver: the consumer reports new and lost
   connections and each response to it, and runs its timers. A connection can be left while the
   others go on: its RDY goes to them, and it stays open until its messages in flight have been
   responded to. RDY that could not be granted yet is tried again at most once per loop iteration.
4. A message that was delivered too often is published as a dead letter, and finished after nsqd's
   OK; without an OK it is requeued. So it is in at least one of the two topics at any time. In a
   topic whose name ends with ``.dead``, it has its history in the format of sparq's nsqd, which
   delivers only the body to consumers. Any other nsqd delivers both; a ``Consumer`` separates them.
5. A handler is a coroutine function or an ordinary function. FIN is sent when it returns, REQ when
   it raises or returns False; neither if it has responded itself or has turned ``auto_respond``
   off. If it returns a future, of asyncio or of an executor, that is awaited; any result but False
   is ignored. A ``CancelledError`` raised inside a handler is a failure like any other exception:
   only a cancellation of the task that runs the handler ends that task.
6. While the event loop is blocked, no heartbeat is answered and no response sent. After two missed
   heartbeats nsqd closes the connection and redelivers the messages in flight. So a late tick of
   the timer that redistributes RDY is logged: something has blocked the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
)
from functools import partial
from types import CoroutineType
from typing import Any, Final, Self

from sparq.client.arguments import check_name, parse_nsqd, require_callable
from sparq.client.config import Config
from sparq.client.connection import open_connection
from sparq.client.discovery import Connecting, Filter, background
from sparq.client.errors import ClosedError, ConnectionLostError, SparqClientError
from sparq.client.log_fields import FieldLogger, about, of_message
from sparq.client.message import Message
from sparq.client.producer import Producer
from sparq.client.rdy import Backoff, BackoffSignal, BackoffState, Distributor
from sparq.client.subscription import Batch, Counters, Inbox, Subscription
from sparq.protocol import commands
from sparq.protocol.dead_letters import DeadLetterHistory
from sparq.protocol.errors import RemoteError
from sparq.protocol.names import is_dead_letter_topic
from sparq.wire.layer_options import check_option

Handler = Callable[[Message], object]


def name_of(handler: Handler | None) -> str:
    """Return the name of the message-handling code for warnings."""
    if handler is None:
        return "the code that iterates over a consumer"
    name = getattr(handler, "__qualname__", repr(handler))
    return f"the handler {getattr(handler, '__module__', '')}.{name}"


async def handle(handler: Handler, message: Message, log: FieldLogger) -> None:
    """Call a handler and respond to the message according to the outcome.

    Raises:
        asyncio.CancelledError: the current task was cancelled; no response was sent.
    """
    try:
        result = handler(message)
        if result is not None:
            # Checking for a coroutine is faster than checking for any awaitable.
            result = await (result if isinstance(result, CoroutineType) else _settled(result))
    except (Exception, asyncio.CancelledError) as error:
        # A handler may raise anything: each exception is a failure of that message only.
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        log.exception("handler failed on %r", message, extra=of_message(message))
        result = False
    else:
        if result is False:
            log.warning("handler returned False on %r", message, extra=of_message(message))
    if message.auto_respond and not message.responded:
        await (message.requeue() if result is False else message.finish())


async def _settled(result: object) -> object:
    """Await a handler's result if it is a future or another awaitable, and return the outcome.

    Raises:
        TypeError: the result is a generator: the handler has a ``yield``, and nothing of it ran.
    """
    if inspect.isawaitable(result):
        return await result
    if isinstance(result, concurrent.futures.Future):
        return await asyncio.wrap_future(result)
    if isinstance(result, (Generator, AsyncGenerator)):
        raise TypeError(
            "the handler is a generator function (it contains yield), so calling it runs nothing"
        )
    return result


CLOSE_WAIT_SECONDS: Final = 2.0
"""Timeout for the response to CLS. nsqd responds at once; one that hangs must not delay stop."""

ATTEMPTS_MAX: Final = 65_535
"""The largest number of attempts that a message can carry."""

CONCURRENCY_MAX: Final = 1_000_000
"""An upper limit, since each concurrent call of the handler has a task."""

TURN_SECONDS: Final = 0.01
"""A consumer that never awaits yields to the event loop this often."""

GIVEN_UP: Final = "given up by the client"
"""The ``reason`` field of a dead letter."""

LATE_SECONDS: Final = 1.0
"""A timer that fires this much too late means that something blocked the event loop."""


class Consumer(Connecting):
    """Consumes one channel of a topic.

    Iteration::

        async with Consumer("clicks", "archive", nsqd_tcp_addresses="127.0.0.1:4150") as consumer:
            async for message in consumer:
                await message.finish()

    Handler: ``Consumer(..., handler=handle, concurrency=10)`` runs up to 10 calls of
    ``await handle(message)`` at a time. Unless the handler has responded itself, the consumer sends
    FIN when the handler returns, and REQ with backoff when it raises or returns False.
    ``await consumer.join()`` waits until the consumer has stopped.

    Leaving the ``async with`` block stops the consumer. Without a handler, messages not yet handed
    out are requeued at once; a handler gets ``stop_timeout`` seconds to process those already
    received.

    Args:
        topic: the topic.
        channel: the channel; created when it does not exist.
        nsqd_tcp_addresses: nsqds, each as ``host:port`` or the path of a unix socket; a list, or
            one string with commas.
        lookupd_http_addresses: nsqlookupds to find nsqds with, each as ``host:port`` or URL.
        handler: called for each message; a coroutine function or an ordinary function, which may
            return a future (asyncio's or an executor's).
        concurrency: how many calls of the handler may run at the same time.
        on_giving_up: called with a message that was delivered more than ``max_attempts`` times;
            the message is finished when the call returns and requeued when it raises or returns
            False.
        dead_letter: a topic to which such a message is published instead, before it is finished;
            it is requeued when that fails. A ``.dead`` topic gets its history too.
        discovery_filter: called with the sorted addresses that the nsqlookupds list; returns the
            addresses to connect to, which need not be among those listed.
        config: base options.
        **options: options of ``Config``; they override those in ``config``.

    Attributes:
        topic, channel: the topic and channel it consumes.
        config: the options in use.
        counters: counts of deliveries and responses since the start.

    Raises:
        ValueError: a name, an address or an option is not valid, or no address is given.
        TypeError: an option does not exist, or an argument has the wrong type.
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
        dead_letter: str = "",
        discovery_filter: Filter | None = None,
        config: Config | None = None,
        **options: Any,
    ) -> None:
        check_name("topic", topic)
        check_name("channel", channel)
        require_callable(handler=handler, on_giving_up=on_giving_up)
        check_option("concurrency", 1, concurrency, 1, CONCURRENCY_MAX)
        if on_giving_up is not None and dead_letter:
            raise ValueError("give on_giving_up or dead_letter, not both")
        if dead_letter == topic:
            raise ValueError(f"dead_letter is the consumed topic itself, {topic}: choose another")
        self.topic = topic
        self.channel = channel
        config = Config.of(config, options)
        super().__init__(
            nsqd_tcp_addresses, lookupd_http_addresses, topic, config, discovery_filter
        )
        self.counters = Counters()
        self._log = FieldLogger(__name__, topic=topic, channel=channel)
        self._handler = handler
        self._concurrency = concurrency
        self._on_giving_up = on_giving_up
        self._attempts_max = config.max_attempts or ATTEMPTS_MAX
        self._turn_ends = 0.0
        # How another thread responds to a message; see `blocking.consumer`.
        self._through: Callable[..., Awaitable[None]] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopper: asyncio.Task[None] | None = None
        self._paused = False
        self._stopping = False
        self._stopped = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._backoff = Backoff(
            config.backoff_strategy,
            config.backoff_multiplier,
            config.max_backoff_duration,
            self._rng,
        )
        self._distributor = Distributor(
            config.max_in_flight,
            idle_timeout=config.low_rdy_idle_timeout,
            hold_timeout=config.low_rdy_timeout,
            rng=self._rng,
        )
        self._plan_due = False
        self._answered = asyncio.Event()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._inbox = Inbox(self._expire)
        self._dead_letter = dead_letter
        self._dead_letter_producer: Producer | None = None
        if dead_letter:
            check_name("dead_letter topic", dead_letter)
            self._on_giving_up = self._publish_dead_letter
            nsqds, lookupds = self._sources
            self._dead_letter_producer = Producer(
                nsqds,
                lookupd_http_addresses=lookupds,
                discovery_filter=discovery_filter,
                config=config,
            )

    def __repr__(self) -> str:
        return f"<Consumer of {self.topic}/{self.channel}>"

    # State

    @property
    def connections(self) -> list[str]:
        """The connected and subscribed nsqds, as ``host:port``."""
        return [each.address for each in self._subscriptions]

    @property
    def in_flight(self) -> int:
        """The number of messages received and not yet responded to, handed out or not."""
        return sum(each.window.in_flight for each in self._subscriptions)

    @property
    def is_starved(self) -> bool:
        """Whether some connection has at least 85 % of its RDY in flight.

        Few more messages arrive then: a program that collects messages should respond to some.
        """
        return any(each.window.is_starved for each in self._subscriptions)

    @property
    def is_paused(self) -> bool:
        """Whether ``pause`` was called without a later ``resume``."""
        return self._paused

    @property
    def backoff_level(self) -> int:
        """The backoff level: rises with a failure, falls with a success; 0: no backoff."""
        return self._backoff.level

    @property
    def max_in_flight(self) -> int:
        """The maximum number of messages in flight; can be changed at any time; 0 pauses."""
        return self.config.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self.config = Config.of(self.config, {"max_in_flight": count})
        self._share()

    def _share(self) -> None:
        self._distributor.max_in_flight = 0 if self._paused else self.config.max_in_flight
        self._plan()

    def _is_full(self) -> bool:
        """Whether no message arrives until some of those in flight are responded to."""
        windows = [each.window for each in self._subscriptions]
        return all(window.in_flight >= window.ready for window in windows)

    # Life cycle

    async def __aenter__(self) -> Self:
        """Start; connections are made in the background."""
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop(0.0 if self._handler is None else None)

    def start(self) -> None:
        """Start to connect and receive.

        Raises:
            ClosedError: the consumer was started or stopped before.
        """
        if self._is_connecting or self._stopping:
            raise ClosedError("a consumer can be started only once: make a new one")
        asyncio.get_running_loop()  # raises before anything is started if no loop runs
        with about(topic=self.topic, channel=self.channel):
            self._connect()
            self._redistribute(asyncio.get_running_loop().time())
            if self._handler is not None:
                for number in range(self._concurrency):
                    self._tasks.append(background(self._work(self._handler), f"handler {number}"))

    def pause(self) -> None:
        """Stop receiving until ``resume``; received messages and connections are kept."""
        self._paused = True
        self._share()

    def resume(self) -> None:
        """Receive again."""
        self._paused = False
        self._share()

    async def join(self) -> None:
        """Wait until the consumer has stopped."""
        await self._stopped.wait()

    async def stop(self, wait_seconds: float | None = None) -> None:
        """Stop receiving, wait for responses to the messages in flight, and close the connections.

        Each nsqd gets CLS and has two seconds to confirm it. A handler goes on with the messages
        already received; without a handler, those not handed out are requeued. Then ``stop`` waits
        for messages in flight: ``wait_seconds``, or ``stop_timeout`` if that is None. nsqd
        redelivers those still without a response.

        Cancelling ``stop`` ends the wait and closes the consumer. When a handler calls ``stop``, it
        returns at once, since the consumer waits for the handler.
        """
        if asyncio.current_task() in self._tasks:
            self._stopper = self._stopper or background(self.stop(wait_seconds), "stop")
            return
        if self._stopping:
            await self.join()
            return
        self._stopping = True
        seconds = self.config.stop_timeout if wait_seconds is None else wait_seconds
        try:
            self._is_retired = True
            # CLS first: with RDY still open, nsqd would deliver what is given back here once more.
            closing = [each.start_closing() for each in self._subscriptions]
            if self._handler is None:
                self._inbox.give_back()
            self._inbox.hurry()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WAIT_SECONDS):
                    await asyncio.gather(*closing)
            # Again: messages may have arrived before nsqd received CLS.
            if self._handler is None:
                self._inbox.give_back()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied(self._subscriptions)
        finally:
            # In a task of its own: cancelling stop a second time must not leave it half done.
            await asyncio.shield(background(self._end(), "stopping a consumer"))

    async def _end(self) -> None:
        self._inbox.give_back()
        if self.in_flight:
            self._log.info("stopped with %d messages unanswered", self.in_flight)
        self._inbox.end()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closings = [each.connection.close() for each in self._subscriptions]
        await asyncio.gather(*closings)
        await self._disconnect()
        if self._dead_letter_producer is not None:
            await self._dead_letter_producer.close()
        self._stopped.set()

    # Connections

    def connect_to_nsqd(self, address: str) -> None:
        """Consume from this nsqd as well, as if it had been given to the constructor.

        Raises:
            ValueError: the address is neither ``host:port`` nor the path of a unix socket.
            ClosedError: the consumer is stopped.
        """
        self._change_sources()
        with about(topic=self.topic, channel=self.channel):
            self._add(str(parse_nsqd(address)))

    async def disconnect_from_nsqd(self, address: str) -> None:
        """Stop consuming from this nsqd, even if an nsqlookupd lists it.

        Returns when its messages in flight have been responded to, or after ``stop_timeout``
        seconds; it redelivers the rest. ``connect_to_nsqd`` connects to it again.

        Raises:
            ValueError: the nsqd is not among the addresses, or is the only source.
            ClosedError: the consumer is stopped.
        """
        self._change_sources()
        place = str(parse_nsqd(address))
        if self._given == {place} and not self._lookups.polls:
            raise ValueError(f"nsqd {address} is the last source: stop the consumer instead")
        self._remove(place)
        for each in list(self._subscriptions):
            if each.address == place:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.config.stop_timeout):
                        # RDY 0 is sent first: only then do the other connections get its share.
                        each.window.leaving = True
                        self._plan()
                        await each.start_closing()
                        await self._emptied([each])
                await each.connection.close()
        await self._drop(place)

    def connect_to_nsqlookupd(self, address: str) -> None:
        """Query this nsqlookupd as well.

        Raises:
            ValueError: the address is neither ``host:port`` nor a URL.
            ClosedError: the consumer is stopped.
        """
        self._change_sources()
        self._lookups.add(address)

    def disconnect_from_nsqlookupd(self, address: str) -> None:
        """Stop querying this nsqlookupd; connections to nsqds that it listed stay until lost.

        Raises:
            ValueError: the nsqlookupd is not queried, or is the only source.
            ClosedError: the consumer is stopped.
        """
        self._change_sources()
        if len(self._lookups.polls) == 1 and not self._given:
            raise ValueError(f"nsqlookupd {address} is the last source: stop the consumer instead")
        self._lookups.remove(address)

    def _change_sources(self) -> None:
        if self._stopping:
            raise ClosedError("the consumer is stopped: make a new one")

    async def _serve(self, address: str) -> ConnectionLostError:
        connection = await open_connection(address, self.config)
        self._note_connected(address, connection.facts)
        try:
            subscription = Subscription(
                connection, self.config, self.counters, self._inbox.put, self._answering
            )
            if self._through is not None:
                subscription.respond_from_anywhere = partial(self._through, subscription.respond)
            subscription.has_letters = is_dead_letter_topic(self.topic)
            # Before RDY, which nsqd refuses without a channel.
            await connection.request(commands.sub(self.topic, self.channel))
            self._failures.pop(address, None)
            self._subscriptions.append(subscription)
            self._distributor.windows.append(subscription.window)
            self._plan()
            try:
                return await connection.ended()
            finally:
                subscription.forget()
                self._subscriptions.remove(subscription)
                self._distributor.windows.remove(subscription.window)
                self._answered.set()
                self._plan()
        finally:
            connection.fail(ClosedError("closed by the consumer"))

    # RDY and backoff

    def _redistribute(self, due: float) -> None:
        """Check RDY now, and again every ``rdy_redistribute_interval`` seconds."""
        loop = asyncio.get_running_loop()
        if (late := loop.time() - due) > LATE_SECONDS:
            self._log.warning(
                "the event loop was blocked for %.1f s, probably by %s (%s/%s); heartbeats were "
                "not answered. Await instead of computing or blocking there, or move the work to "
                "asyncio.to_thread",
                late,
                name_of(self._handler),
                self.topic,
                self.channel,
            )
        now = time.monotonic()
        self._expire(now)
        self._distributor.rotate(now)
        if self._distributor.needs_more_rdy:
            self._plan()
        if not self._stopping:
            due = loop.time() + self.config.rdy_redistribute_interval
            self._timers["redistribute"] = loop.call_at(due, self._redistribute, due)

    async def _emptied(self, subscriptions: Iterable[Subscription]) -> None:
        """Wait until these connections are lost or have nothing in flight."""
        while any(each.window.in_flight for each in subscriptions):
            self._answered.clear()
            await self._answered.wait()

    def _expire(self, now: float) -> None:
        """Drop messages whose timeout is over: nsqd redelivers them."""
        for subscription in self._subscriptions:
            subscription.expire(now)
        self._answered.set()
        if self._distributor.needs_more_rdy:
            self._plan_soon()

    def _answering(self, outcome: BackoffSignal) -> None:
        """Note a response that is about to be sent."""
        self._answered.set()
        if not self._stopping and self._backoff.result(outcome):
            if self._backoff.state is BackoffState.BLOCKED:
                later = asyncio.get_running_loop().call_later
                self._timers["block"] = later(self._backoff.duration(), self._probe)
            self._plan()
        if self._distributor.needs_more_rdy:
            self._plan_soon()

    def _probe(self) -> None:
        self._backoff.block_over()
        self._plan()

    def _plan_soon(self) -> None:
        """Plan at the end of this loop iteration."""
        if not self._plan_due:
            self._plan_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        self._plan_due = False
        if not self._stopping:
            self._distributor.state = self._backoff.state
            self._distributor.plan(time.monotonic())

    # Messages

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages; several tasks may iterate at the same time."""
        return self

    async def __anext__(self) -> Message:
        """Return the next message; the iteration ends when the consumer is stopped.

        Raises:
            ClosedError: the consumer was not started.
        """
        inbox = self._inbox
        while True:
            now = time.monotonic()
            if now > self._turn_ends:
                await asyncio.sleep(0)
                now = time.monotonic()
                self._turn_ends = now + TURN_SECONDS
            if (message := inbox.take(now)) is None:
                self._require_started()
                if not await inbox.filled():
                    raise StopAsyncIteration
            elif message.attempts > self._attempts_max:
                await self._give_up(message)
            else:
                return message

    def _require_started(self) -> None:
        if not self._is_connecting and not self._stopping:
            raise ClosedError(
                "the consumer is not started: use 'async with consumer', or call start()"
            )

    async def batches(self, size: int = 1_000, wait: float = 0.1) -> AsyncIterator[Batch]:
        """Iterate over batches of messages; the fastest way to consume.

        ::

            async for batch in consumer.batches(500, wait=1.0):
                store(batch.bodies)
                await batch.finish()

        A batch is yielded when it has ``size`` messages, when ``wait`` seconds have passed since
        its first one, or when ``max_in_flight`` allows no further deliveries. It is never empty.
        Its messages are in flight until it is finished or requeued.

        Args:
            size: maximum number of messages in a batch.
            wait: seconds that the first message of a batch may wait for others.

        Raises:
            ValueError: ``size`` is below 1 or ``wait`` negative.
            ClosedError: the consumer was not started.
        """
        check_batch(size, wait)
        self._require_started()
        while (batch := await self._next_batch(size, wait)) is not None:
            yield batch

    async def _next_batch(self, size: int, wait: float) -> Batch | None:
        """Wait for the next batch; None: the consumer is stopped."""
        while await self._inbox.filled():
            batch = Batch(await self._inbox.gather(size, wait, self._is_full))
            if batch.attempts_max > self._attempts_max:
                kept = []
                for message in batch:
                    if message.attempts > self._attempts_max:
                        await self._give_up(message)
                    else:
                        kept.append(message)
                batch = Batch(kept)
            if len(batch):
                return batch
        return None

    async def _work(self, handler: Handler) -> None:
        async for message in self:
            await handle(handler, message, self._log)

    async def _give_up(self, message: Message) -> None:
        self.counters.given_up += 1
        text = "giving up after %d attempts: %r"
        self._log.warning(text, message.attempts - 1, message, extra=of_message(message))
        if self._on_giving_up is None:
            await message.finish()
        else:
            await handle(self._on_giving_up, message, self._log)

    async def _publish_dead_letter(self, message: Message) -> None:
        assert self._dead_letter_producer is not None
        body = message.body
        if is_dead_letter_topic(self._dead_letter):
            history = DeadLetterHistory(
                topic=self.topic,
                channel=self.channel,
                id=message.id,
                attempts=message.attempts,
                published_ns=message.timestamp_ns,
                returned_ns=time.time_ns(),
                consumer=f"{self.config.client_id}@{self.config.hostname}",
                reason=GIVEN_UP,
            )
            body = history.seal(body)
        try:
            await self._dead_letter_producer.publish(self._dead_letter, body)
        except (SparqClientError, RemoteError) as error:
            text = "publishing a dead letter to %s failed, %r is requeued: %s"
            self._log.warning(text, self._dead_letter, message, error, extra=of_message(message))
            message.requeue(backoff=False)
        else:
            await message.finish()


def check_batch(size: int, wait: float) -> None:
    """Check the arguments of ``batches``.

    Raises:
        ValueError: ``size`` is below 1 or ``wait`` negative.
    """
    if size < 1 or not wait >= 0:
        raise ValueError(f"size must be at least 1 and wait at least 0, not {size} and {wait}")
