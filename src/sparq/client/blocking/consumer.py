"""The consumer of a session: blocking access to a channel's messages.

1. Messages are passed from the session's thread many at a time, as soon as a thread waits for one.
   While some are left, a ``for`` loop takes the next one without a thread switch. The session's
   thread answers heartbeats while the program computes.
2. An interrupted or timed-out wait loses no message: messages that arrive are kept for the next
   call.
3. Messages that are stale before they are handed out are dropped: nsqd redelivers them.
4. Any number of threads may take messages at the same time; each message goes to one of them.
5. Both threads use the same `Message` and `Batch`. A response is recorded on the calling thread,
   where a second one raises, and is sent from the session's thread soon after.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
import weakref

# Not from `queue`, whose SimpleQueue gevent replaces with one that must not be used by two threads.
from _queue import Empty, SimpleQueue
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from sparq.client.arguments import require_callable
from sparq.client.blocking.handle import SessionHandle, Shown, awaited, close_all, on_session_thread
from sparq.client.blocking.loop_thread import CLOSED, LoopThread
from sparq.client.connection import DONE
from sparq.client.consumer import Consumer, Handler, check_batch
from sparq.client.discovery import background
from sparq.client.errors import ClosedError
from sparq.client.message import Message, Respond
from sparq.client.subscription import Batch, Counters

FETCHED_MAX: Final = 1_000
"""Maximum number of messages passed to the program at a time, besides ``max_in_flight``."""


class BlockingBatch(Batch):
    """A `Batch` of the blocking API: nothing is awaited; responses are sent soon after the call.

    Attributes:
        responded: whether the batch was finished or requeued as a whole.
    """

    __slots__ = ("_thread",)

    def __init__(self, thread: LoopThread, batch: Batch) -> None:
        super().__init__(batch._parts)
        self._thread = thread

    def _opened(self) -> list[Message]:
        if self._messages is None:
            self._thread.call(super()._opened)
        return super()._opened()


class ReadyMessages:
    """Messages for the program's threads, as many as they have asked for, and some more.

    Its methods run on the session's thread; any thread may take from ``queue``, where None marks
    the end. It does not refer to the `BlockingConsumer`, which may be dropped without being closed.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.queue: SimpleQueue[Message | None] = SimpleQueue()
        self._consumer = consumer
        self._wanted = 0
        self._moving: asyncio.Task[None] | None = None

    def want(self) -> None:
        """Note that a thread waits for a message."""
        self._wanted += 1
        if self._moving is None:
            self._moving = background(self._move(), "moving messages to the program")

    async def _move(self) -> None:
        has_ended = True
        try:
            while (batch := await self._consumer._next_batch(FETCHED_MAX, 0)) is not None:
                for message in batch:
                    self.queue.put(message)
                self._wanted -= len(batch)
                if self._wanted <= 0:
                    has_ended, self._wanted = False, 0
                    return
        finally:
            self._moving = None
            if has_ended:
                self.queue.put(None)

    async def give_back(self) -> None:
        """Requeue what no thread has taken, and end the waits."""
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait([self._moving])
        # Sent together with CLS: with RDY still open, nsqd would redeliver them here at once.
        with contextlib.suppress(Empty):
            while (message := self.queue.get_nowait()) is not None:
                message.requeue(0, backoff=False)
        self.queue.put(None)


class BlockingConsumer(SessionHandle):
    """Consumes one channel of a topic; made and started by ``Session.consumer``.

    ::

        with session.consumer("clicks", "archive", max_in_flight=100) as consumer:
            for message in consumer:
                print(message.body)
                message.finish()

    The iteration waits forever; ``messages(idle_timeout=5)`` ends when nothing arrives for 5 s, and
    ``receive(timeout_seconds=5)`` returns one message. Leaving the block stops the consumer and
    requeues messages that were not handed out. The other methods are those of ``Consumer``, but
    they block. They also raise ``ClosedError`` if the session is closed.

    Attributes:
        topic, channel: the topic and channel it consumes.
        counters: counts of deliveries and responses since the start.
        in_flight: the number of messages received and not yet responded to, handed out or not.
        is_starved: whether some connection has at least 85 % of its RDY in flight.
        is_paused: whether ``pause`` was called without a later ``resume``.
        backoff_level: rises with a failure, falls with a success; 0: no backoff.
    """

    topic = Shown[str]()
    channel = Shown[str]()
    counters = Shown[Counters]()
    in_flight = Shown[int]()
    is_starved = Shown[bool]()
    is_paused = Shown[bool]()
    backoff_level = Shown[int]()

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
            names = ", ".join(taken)
            raise TypeError(f"no such option: {names}: iterate over the consumer instead")
        require_callable(on_giving_up=on_giving_up)
        if on_giving_up is not None:
            arguments["on_giving_up"] = _on_a_thread(on_giving_up)
        self._consumer: Consumer = thread.call(Consumer, topic, channel, **arguments)
        self._consumer._through = partial(_respond_on, weakref.ref(thread))
        super().__init__(thread, self._consumer)
        self._ready = ReadyMessages(self._consumer)
        try:
            thread.call(self._consumer.start)
        except BaseException:  # Ctrl-C: it may run already, and the caller never gets it: stop it
            with contextlib.suppress(ClosedError):
                thread.submit(self._consumer.stop, 0.0)
            raise

    # Taking

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until the consumer is closed; several threads may iterate."""
        return self

    def __next__(self) -> Message:
        """Return the next message; the iteration ends when the consumer is closed."""
        message = self._take(None)
        if message is None:
            raise StopIteration
        return message

    def messages(self, *, idle_timeout: float | None = None) -> Iterator[Message]:
        """Iterate over messages until none arrives for ``idle_timeout`` seconds (None: forever)."""
        with contextlib.suppress(TimeoutError):
            while (message := self._take(idle_timeout)) is not None:
                yield message

    def receive(self, timeout_seconds: float | None = None) -> Message:
        """Wait for one message and return it.

        Raises:
            TimeoutError: no message arrived in ``timeout_seconds`` (None: wait forever).
            ClosedError: the consumer or its session is closed.
        """
        message = self._take(timeout_seconds)
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
            size: maximum number of messages in a batch; a batch is never empty.
            wait: seconds that the first message of a batch may wait for others.
            idle_timeout: seconds without a batch after which the iteration ends; None: never.

        Raises:
            ValueError: ``size`` is below 1 or ``wait`` negative.
        """
        if self.closed:
            return
        check_batch(size, wait)
        gathering: Future[Batch | None] | None = None
        try:
            while True:
                self._thread.check()
                # Messages already fetched one by one come first.
                batch: Batch | None = Batch(self._take_ready(size))
                if not batch:
                    if gathering is None:
                        next_batch = self._consumer._next_batch
                        gathering = self._thread.submit(next_batch, size, wait)
                    batch = self._thread.wait(gathering, idle_timeout)
                    gathering = None
                if batch is None:
                    return
                yield BlockingBatch(self._thread, batch)
        except TimeoutError:
            return
        except ClosedError:
            if not self.closed:
                raise
        finally:
            if gathering is not None:  # timed out or interrupted: for the next call, or others
                self._thread.cancel(gathering)
                gathering.add_done_callback(_requeue_unseen)

    def _take(self, seconds: float | None) -> Message | None:
        """Return the next message; None when the consumer is closed.

        Raises:
            TimeoutError: none arrived within ``seconds`` (None: wait forever).
        """
        queue = self._ready.queue
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while not self.closed:
                self._thread.check()  # a forked child has copies of the messages
                try:
                    message = queue.get_nowait()
                except Empty:
                    self._thread.post(self._ready.want)
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    message = queue.get(timeout=left)
                if message is None:
                    queue.put(None)  # for other threads
                    break
                if not message.stale:
                    return message
        except Empty:
            raise TimeoutError("no message arrived in time") from None
        except ClosedError:
            if not self.closed:
                raise
        return None

    def _take_ready(self, count: int) -> list[Message]:
        """Return up to ``count`` of the messages that wait here already."""
        found: list[Message] = []
        with contextlib.suppress(Empty):
            while len(found) < count:
                if (message := self._ready.queue.get_nowait()) is None:
                    self._ready.queue.put(None)  # for the threads that wait
                    break
                if not message.stale:
                    found.append(message)
        return found

    # State

    @property
    def max_in_flight(self) -> int:
        """The maximum number of messages in flight; can be changed at any time; 0 pauses."""
        return self._consumer.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        self._thread.call(setattr, self._consumer, "max_in_flight", count)

    # Sources

    until_connected = awaited(Consumer.until_connected)
    connect_to_nsqd = on_session_thread(Consumer.connect_to_nsqd)
    disconnect_from_nsqd = awaited(Consumer.disconnect_from_nsqd)
    connect_to_nsqlookupd = on_session_thread(Consumer.connect_to_nsqlookupd)
    disconnect_from_nsqlookupd = on_session_thread(Consumer.disconnect_from_nsqlookupd)

    # Life cycle

    pause = on_session_thread(Consumer.pause)
    resume = on_session_thread(Consumer.resume)

    def close(self, wait_seconds: float = 0.0) -> None:
        """Stop receiving and end every iteration.

        Messages not handed out are requeued. Other threads have ``wait_seconds`` to respond to
        messages already handed out; nsqd redelivers those without a response. A second call, or one
        in a forked process, does nothing.
        """
        close_all(self._thread, [self], wait_seconds)

    async def _end(self, wait_seconds: float = 0.0) -> None:
        await self._ready.give_back()
        await self._consumer.stop(wait_seconds)


# Functions, not methods: work on the session's thread must not keep the session or the consumer
# alive. Both may be dropped without being closed; the garbage collector then ends them.


def _respond_on(
    known: weakref.ref[LoopThread], respond: Respond, *response: Any
) -> Awaitable[None]:
    """Respond on the session's thread, from any thread."""
    thread = known()
    if thread is None:
        raise ClosedError(CLOSED)
    if thread.is_current():
        return respond(*response)
    thread.post(respond, *response)
    return DONE


def _requeue_unseen(gathering: Future[Batch | None]) -> None:
    if gathering.exception() is None and (unseen := gathering.result()) is not None:
        unseen.requeue(0, backoff=False)


def _on_a_thread(handler: Handler) -> Handler:
    async def give_up(message: Message) -> object:
        result = await asyncio.to_thread(handler, message)
        return await result if inspect.isawaitable(result) else result

    return give_up
