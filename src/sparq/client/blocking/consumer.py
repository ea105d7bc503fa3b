"""The consumer of a session: messages for a program that waits for them.

1. Messages cross from the session's thread many at a time; a ``for`` loop that finds one here takes
   it without waking anybody. Heartbeats are answered there while the program computes here.
2. An interrupted or timed-out wait loses nothing: what arrives is kept for who asks next.
3. What is stale by the time it would be handed out (nsqd delivers it again) is left out.
4. Any number of threads may take messages at the same time; each message goes to one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self, cast

from sparq.client.batch import Batch
from sparq.client.blocking.batch import BlockingBatch
from sparq.client.blocking.crossing import cross
from sparq.client.blocking.feed import Feed, seconds_until
from sparq.client.blocking.loop_thread import LoopThread
from sparq.client.config import Config
from sparq.client.consumer import Consumer
from sparq.client.errors import ClosedError
from sparq.client.message import Message
from sparq.client.subscription import Counters

FETCHED_MAX: Final = 1_000
"""So many messages cross at a time, at most; ``max_in_flight`` bounds them too."""

GivingUp = Callable[[Message], None]


class BlockingConsumer:
    """Consumes one channel of a topic; ``Session.consumer`` makes it, and it receives at once.

    ::

        with session.consumer("clicks", "archive", max_in_flight=100) as consumer:
            for message in consumer:
                print(message.body)
                message.finish()

    The iteration waits for ever; ``messages(idle_timeout=5)`` ends when nothing comes for so long,
    and ``receive(timeout_seconds=5)`` gets one message. Leaving the block stops the consumer, and
    gives messages back that were not handed out.

    Attributes:
        topic: the topic.
        channel: the channel.
        counters: what it has seen since its start.
        closed: whether it is closed.
    """

    def __init__(
        self,
        thread: LoopThread,
        topic: str,
        channel: str,
        *,
        on_giving_up: GivingUp | None = None,
        **arguments: Any,
    ) -> None:
        if taken := sorted(arguments.keys() & {"handler", "concurrency"}):
            raise TypeError(f"no such option: {', '.join(taken)}: iterate over the consumer")
        self.topic = topic
        self.channel = channel
        self.closed = False
        self._thread = thread
        if on_giving_up is not None:
            arguments["on_giving_up"] = _on_a_thread(thread, on_giving_up)
        self._consumer = thread.ask(lambda: Consumer(topic, channel, **arguments))
        self.counters: Counters = self._consumer.counters
        self._ready: deque[Message] = deque()
        self._refilling = Lock()
        self._feed = Feed(thread, self._fetched())
        self._start()

    def _start(self) -> None:
        try:
            self._thread.ask(self._consumer.start)
        except BaseException:  # Ctrl-C: it may have started, and nobody would take its messages
            with contextlib.suppress(ClosedError):
                self._thread.submit(self._consumer.stop, 0.0)
            raise

    # Taking

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until the consumer is closed; several threads may do so."""
        return self

    def __next__(self) -> Message:
        """The next message; ``StopIteration`` when the consumer is closed."""
        message = self._take(None)
        if message is None:
            raise StopIteration
        return message

    def messages(self, *, idle_timeout: float | None = None) -> Iterator[Message]:
        """Iterate over messages until nothing has come for ``idle_timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            while (message := self._take(_deadline(idle_timeout))) is not None:
                yield message

    def receive(self, timeout_seconds: float | None = None) -> Message:
        """One message.

        Raises:
            TimeoutError: none has come in time.
            ClosedError: the consumer or its session is closed.
        """
        message = self._take(_deadline(timeout_seconds))
        if message is None:
            raise ClosedError("the consumer is closed")
        return message

    def batches(
        self, size: int = 1_000, wait: float = 0.1, *, idle_timeout: float | None = None
    ) -> Iterator[BlockingBatch]:
        """Iterate over batches of messages; the fastest way to consume.

        ::

            for batch in consumer.batches(500, wait=1.0):
                store(batch.bodies)
                batch.finish()

        Args:
            size: how many messages a batch has at most; it has one at least.
            wait: seconds for which its first message may wait for others.
            idle_timeout: the iteration ends when nothing has come for so many seconds.

        Raises:
            ValueError: ``size`` is below 1 or ``wait`` negative.
        """
        batches = self._consumer.batches(size, wait)
        feed = Feed(self._thread, cast(AsyncGenerator[Batch, None], batches))
        try:
            while fetched := self._take_ready(size):
                yield BlockingBatch(self._thread, Batch(fetched))
            with contextlib.suppress(TimeoutError):
                while (batch := feed.next(_deadline(idle_timeout))) is not None:
                    yield BlockingBatch(self._thread, batch)
        finally:
            if (left := feed.close()) is not None:
                BlockingBatch(self._thread, left).requeue(0, backoff=False)

    def _take(self, deadline: float | None) -> Message | None:
        """The next message; None when the consumer is closed."""
        while not self.closed:
            self._thread.check()  # a forked child has a copy of what crossed, and of the lock
            with contextlib.suppress(IndexError):
                while True:
                    message = self._ready.popleft()
                    if not message.stale:
                        return message
            if not self._refill(deadline):
                break
        return None

    def _refill(self, deadline: float | None) -> bool:
        seconds = seconds_until(deadline)
        if not self._refilling.acquire(timeout=-1 if seconds is None else seconds):
            raise TimeoutError("no message has come in time")
        try:
            if not self._ready:
                self._ready.extend(self._feed.next(deadline) or ())
            return bool(self._ready)
        except ClosedError:
            if self.closed:
                return False
            raise
        finally:
            self._refilling.release()

    def _take_ready(self, count: int) -> list[Message]:
        """What crossed for a loop over messages that was left."""
        found: list[Message] = []
        with contextlib.suppress(IndexError):
            while len(found) < count:
                message = self._ready.popleft()
                if not message.stale:
                    found.append(message)
        return found

    async def _fetched(self) -> AsyncGenerator[list[Message], None]:
        """On the session's thread: what there is, as soon as there is something."""
        async for batch in self._consumer.batches(FETCHED_MAX, 0):
            yield cross(self._thread, list(batch))

    # What is known

    @property
    def config(self) -> Config:
        """The options in use."""
        return self._consumer.config

    @property
    def connections(self) -> list[str]:
        """The nsqds that are connected and subscribed, as ``host:port``."""
        return self._thread.ask(lambda: self._consumer.connections)

    @property
    def errors(self) -> dict[str, str]:
        """Why an nsqd is not connected, or an nsqlookupd has no answer, for each that should be."""
        return self._thread.ask(lambda: self._consumer.errors)

    @property
    def in_flight(self) -> int:
        """The messages received and not answered for, handed out or not."""
        return self._thread.ask(lambda: self._consumer.in_flight)

    @property
    def is_starved(self) -> bool:
        """Whether some connection has nearly all that it may have unanswered."""
        return self._thread.ask(lambda: self._consumer.is_starved)

    @property
    def is_paused(self) -> bool:
        """Whether ``pause`` was called, and ``resume`` not since."""
        return self._consumer.is_paused

    @property
    def backoff_level(self) -> int:
        """How many failures are not made good yet; 0: no backoff."""
        return self._consumer.backoff_level

    @property
    def max_in_flight(self) -> int:
        """How many messages may be unanswered; may be changed at any time, 0 pauses."""
        return self._consumer.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self._thread.ask(lambda: setattr(self._consumer, "max_in_flight", count))

    # Sources

    def connect_to_nsqd(self, address: str) -> None:
        """Consume from this nsqd as well, as if it had been given from the beginning.

        Raises:
            ValueError: it is neither ``host:port`` nor the path of a unix socket.
            ClosedError: the consumer is closed.
        """
        self._thread.ask(lambda: self._consumer.connect_to_nsqd(address))

    def disconnect_from_nsqd(self, address: str) -> None:
        """Consume from this nsqd no more; its unanswered messages are waited for.

        Raises:
            ValueError: it is not among the addresses, or is the last source there is.
            ClosedError: the consumer is closed.
        """
        self._thread.call(self._consumer.disconnect_from_nsqd, address)

    def connect_to_nsqlookupd(self, address: str) -> None:
        """Ask this nsqlookupd as well.

        Raises:
            ValueError: it is neither ``host:port`` nor a URL.
            ClosedError: the consumer is closed.
        """
        self._thread.ask(lambda: self._consumer.connect_to_nsqlookupd(address))

    def disconnect_from_nsqlookupd(self, address: str) -> None:
        """Ask this nsqlookupd no more; nsqds that it listed stay until they are lost.

        Raises:
            ValueError: it is not asked, or is the last source there is.
            ClosedError: the consumer is closed.
        """
        self._thread.ask(lambda: self._consumer.disconnect_from_nsqlookupd(address))

    # Life

    def pause(self) -> None:
        """Receive no more until ``resume``; what is here stays to be handled."""
        self._thread.ask(self._consumer.pause)

    def resume(self) -> None:
        """Receive again."""
        self._thread.ask(self._consumer.resume)

    def __enter__(self) -> Self:
        """The consumer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self, wait_seconds: float = 0.0) -> None:
        """Stop receiving, and end every iteration.

        What was not handed out is given back to nsqd. What is handed out may be answered for during
        ``wait_seconds``, by other threads; what is unanswered then, nsqd delivers again. Harmless
        when it is closed; in a forked process it does nothing.
        """
        if self.closed:
            return
        self.closed = True
        with contextlib.suppress(ClosedError):
            unseen = [*(self._feed.close() or ()), *self._take_ready(len(self._ready))]
            self._thread.call(self._stop, unseen, wait_seconds)

    async def _stop(self, unseen: list[Message], wait_seconds: float) -> None:
        # Together with CLS, or they would come back at once.
        for message in unseen:
            message.requeue(0, backoff=False)
        await self._consumer.stop(wait_seconds)


def _on_a_thread(thread: LoopThread, function: GivingUp) -> Callable[[Message], Any]:
    async def give_up(message: Message) -> None:
        cross(thread, [message])
        await asyncio.to_thread(function, message)

    return give_up


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds
