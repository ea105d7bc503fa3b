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
import inspect
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Final, cast

from sparq.client.batch import Batch
from sparq.client.blocking.crossing import BlockingBatch, cross
from sparq.client.blocking.feed import Feed, seconds_until
from sparq.client.blocking.loop_thread import CLOSED, LoopThread
from sparq.client.blocking.member import Member, asked, awaited, close_all
from sparq.client.consumer import Consumer
from sparq.client.errors import ClosedError
from sparq.client.handling import Handler, require_callable
from sparq.client.message import Message
from sparq.client.subscription import Counters

FETCHED_MAX: Final = 1_000
"""So many messages cross at a time, at most; ``max_in_flight`` bounds them too."""

NOTHING_CAME: Final = "no message has come in time"

Cross = Callable[[Sequence[Message]], list[Message]]


class BlockingConsumer(Member):
    """Consumes one channel of a topic; ``Session.consumer`` makes it, and it receives at once.

    ::

        with session.consumer("clicks", "archive", max_in_flight=100) as consumer:
            for message in consumer:
                print(message.body)
                message.finish()

    The iteration waits for ever; ``messages(idle_timeout=5)`` ends when nothing comes for so long,
    and ``receive(timeout_seconds=5)`` gets one message. Leaving the block stops the consumer, and
    gives messages back that were not handed out. What changes the consumer is a method of
    ``Consumer`` that waits; it raises ``ClosedError`` when the session is closed, too.

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
        on_giving_up: Handler | None = None,
        **arguments: Any,
    ) -> None:
        if taken := sorted(arguments.keys() & {"handler", "concurrency"}):
            raise TypeError(f"no such option: {', '.join(taken)}: iterate over the consumer")
        self.topic = topic
        self.channel = channel
        require_callable(on_giving_up=on_giving_up)
        cross_there = _crossing(thread)
        if on_giving_up is not None:
            arguments["on_giving_up"] = _on_a_thread(cross_there, on_giving_up)
        self._consumer = thread.ask(lambda: Consumer(topic, channel, **arguments))
        super().__init__(thread, self._consumer)
        self.counters: Counters = self._consumer.counters
        self._ready: deque[Message] = deque()
        self._refilling = Lock()
        self._feed = Feed(thread, _fetched(self._consumer, self._ready, cross_there))
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
        if self.closed:
            return
        batches = self._consumer.batches(size, wait)
        feed = Feed(self._thread, cast(AsyncGenerator[Batch, None], batches))
        try:
            while (batch := self._next_batch(feed, size, _deadline(idle_timeout))) is not None:
                yield BlockingBatch(self._thread, batch)
        finally:
            self._leave(feed)

    def _next_batch(self, feed: Feed[Batch], size: int, deadline: float | None) -> Batch | None:
        """What crossed for a loop over messages that was left comes first; None at the end."""
        try:
            self._thread.check()
            crossed = self._take_ready(size)
            return Batch(crossed) if crossed else feed.next(deadline)
        except TimeoutError:
            return None
        except ClosedError:
            if not self.closed:
                raise
            return None

    def _leave(self, feed: Feed[Batch]) -> None:
        with contextlib.suppress(ClosedError):
            leaving = self._thread.submit(_give_back, feed)
            # The collector of garbage may leave an iteration anywhere, there as well.
            if not self._thread.is_current():
                self._thread.wait(leaving)

    def _take(self, deadline: float | None) -> Message | None:
        """The next message; None when the consumer is closed."""
        try:
            while not self.closed:
                self._thread.check()  # a forked child has a copy of what crossed, and of the lock
                if (message := self._pop()) is not None:
                    return message
                if not self._refill(deadline):
                    break
        except ClosedError:
            if not self.closed:
                raise
        return None

    def _refill(self, deadline: float | None) -> bool:
        """Wait for more to cross, which others may have taken since; whether there is more."""
        seconds = seconds_until(deadline)
        if not self._refilling.acquire(timeout=-1 if seconds is None else seconds):
            raise TimeoutError(NOTHING_CAME)
        try:
            return bool(self._ready) or self._feed.next(deadline) is not None
        except TimeoutError:
            raise TimeoutError(NOTHING_CAME) from None
        finally:
            self._refilling.release()

    def _pop(self) -> Message | None:
        """The first that crossed and that nsqd still waits for; None: there is none."""
        with contextlib.suppress(IndexError):  # another thread may be faster
            while self._ready:
                message = self._ready.popleft()
                if not message.stale and message.expires_at > time.monotonic():
                    return message
        return None

    def _take_ready(self, count: int) -> list[Message]:
        found: list[Message] = []
        while len(found) < count and (message := self._pop()) is not None:
            found.append(message)
        return found

    # What is known

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

    until_connected = awaited(Consumer.until_connected)
    connect_to_nsqd = asked(Consumer.connect_to_nsqd)
    disconnect_from_nsqd = awaited(Consumer.disconnect_from_nsqd)
    connect_to_nsqlookupd = asked(Consumer.connect_to_nsqlookupd)
    disconnect_from_nsqlookupd = asked(Consumer.disconnect_from_nsqlookupd)

    # Life

    pause = asked(Consumer.pause)
    resume = asked(Consumer.resume)

    def close(self, wait_seconds: float = 0.0) -> None:
        """Stop receiving, and end every iteration.

        What was not handed out is given back to nsqd. What is handed out may be answered for during
        ``wait_seconds``, by other threads; what is unanswered then, nsqd delivers again. Harmless
        when it is closed; in a forked process it does nothing.
        """
        close_all(self._thread, [self], wait_seconds)

    async def _end(self, wait_seconds: float = 0.0) -> None:
        await self._feed.end()
        # Together with CLS, or they would come back at once.
        for message in self._take_ready(len(self._ready)):
            message.requeue(0, backoff=False)
        await self._consumer.stop(wait_seconds)


# What runs on the session's thread keeps neither the session nor the consumer alive: both may be
# forgotten without being closed, and are ended then.


def _crossing(thread: LoopThread) -> Cross:
    known = weakref.ref(thread)

    def cross_there(messages: Sequence[Message]) -> list[Message]:
        there = known()
        if there is None:
            raise ClosedError(CLOSED)
        return cross(there, messages)

    return cross_there


async def _fetched(
    consumer: Consumer, ready: deque[Message], cross_there: Cross
) -> AsyncGenerator[bool, None]:
    """What there is crosses as soon as there is something."""
    async for batch in consumer.batches(FETCHED_MAX, 0):
        ready.extend(cross_there(batch))
        yield True


async def _give_back(feed: Feed[Batch]) -> None:
    """End a feed; what it has fetched and nobody has seen comes again at once."""
    if (unseen := await feed.end()) is not None:
        unseen.requeue(0, backoff=False)


def _on_a_thread(cross_there: Cross, handler: Handler) -> Handler:
    async def give_up(message: Message) -> object:
        cross_there([message])
        result = await asyncio.to_thread(handler, message)
        return await result if inspect.isawaitable(result) else result

    return give_up


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds
