"""The producer of a session: publishes, and waits for nsqd's OK.

1. Publishes of several threads, and those that are submitted, share the connections without waiting
   for one another.
2. Who submits goes on at once, up to ``max_pending_bytes`` that are under way, and then waits for
   room, first come, first served or not: threads are not put in order.
3. What is right for ``Producer`` is right here: the errors are the same.
4. A program that ends with publishes under way, and has closed nothing, is told of them in the log.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from sparq.client.blocking.crossing import Room
from sparq.client.blocking.loop_thread import LoopThread, begin
from sparq.client.blocking.member import Member, awaited
from sparq.client.errors import ProducerFullError
from sparq.client.log_fields import FieldLogger
from sparq.client.producer import Producer
from sparq.client.publish import Receipt

log = FieldLogger(__name__)

COMMAND_BYTES: Final = 16
"""Of a publish, besides its topic and its bodies."""

BUFFERS: Final = (bytearray, memoryview)
"""What may change after it was given."""

Ways = tuple[Callable[..., None], Callable[..., Awaitable[Receipt]]]
"""To publish without waiting, and to publish."""


class BlockingProducer(Member):
    """Publishes messages; ``Session.producer`` makes it.

    ::

        with session.producer() as producer:
            producer.publish("clicks", b"...")

    Leaving the block waits for publishes under way, ``stop_timeout`` seconds at most. Its methods
    are those of ``Producer``, but wait. They raise ``ClosedError`` when the session is closed, too.

    Attributes:
        closed: whether it is closed.
    """

    def __init__(self, thread: LoopThread, **arguments: Any) -> None:
        self._producer = thread.ask(lambda: Producer(**arguments))
        super().__init__(thread, self._producer)
        producer = self._producer
        self._to_publish = (producer.publish_nowait, producer.publish)
        self._to_multi_publish = (producer.multi_publish_nowait, producer.multi_publish)
        self._to_publish_deferred = (producer.publish_deferred_nowait, producer.publish_deferred)
        self._room = Room(self.config.max_pending_bytes)
        weakref.finalize(self, _tell_of_the_unfinished, self._room, os.getpid())

    # Publishing

    publish = awaited(Producer.publish)
    multi_publish = awaited(Producer.multi_publish)
    publish_deferred = awaited(Producer.publish_deferred)
    flush = awaited(Producer.flush)

    # Publishing without waiting

    def submit(self, topic: str, body: bytes) -> Future[Receipt]:
        """Begin to publish one message; the future's ``result()`` is what ``publish`` returns.

        It waits only while ``max_pending_bytes`` are under way. What went wrong is known to the
        future alone: ask it, or count ``failed``. A buffer may be changed when it has returned.
        Cancelling the future is of use only before the publish has begun.

        Raises:
            ClosedError: the producer's session is closed.
        """
        held = _held(body)
        return self._submit(_size(topic, (held,)), self._to_publish, topic, held)

    def multi_submit(self, topic: str, bodies: Sequence[bytes]) -> Future[Receipt]:
        """Begin to publish messages together, as ``multi_publish``; else as ``submit``.

        Raises:
            ClosedError: the producer's session is closed.
        """
        held = _all_held(bodies)
        return self._submit(_size(topic, held), self._to_multi_publish, topic, held)

    def submit_deferred(self, topic: str, body: bytes, delay_seconds: float) -> Future[Receipt]:
        """Begin to publish a message for later, as ``publish_deferred``; else as ``submit``.

        Raises:
            ClosedError: the producer's session is closed.
        """
        held, to_defer = _held(body), self._to_publish_deferred
        return self._submit(_size(topic, (held,)), to_defer, topic, held, delay_seconds)

    def _submit(self, size: int, ways: Ways, *arguments: Any) -> Future[Receipt]:
        self._thread.check()  # a forked child has a copy of the lock, as it was
        outcome: Future[Receipt] = Future()
        self._room.enter(size)
        # By way of the producer: nobody forgets it while a future has no outcome.
        outcome.add_done_callback(lambda _: self._room.leave(size))
        try:
            self._thread.post(_begin, outcome, ways, *arguments)
        except BaseException:  # Ctrl-C: it may have been posted, and nobody would have the future
            outcome.cancel()
            raise
        return outcome

    # What is known

    until_connected = awaited(Producer.until_connected)
    ping = awaited(Producer.ping)

    @property
    def published(self) -> int:
        """The messages acknowledged."""
        return self._producer.published

    @property
    def failed(self) -> int:
        """The messages whose publish ended in an error."""
        return self._producer.failed

    @property
    def under_way(self) -> int:
        """The publishes that have no outcome yet."""
        return self._producer.under_way

    @property
    def resent(self) -> int:
        """Sends again after one without an answer: so many messages may be stored twice."""
        return self._producer.resent

    # Life

    def close(self) -> None:
        """Wait for publishes under way, ``stop_timeout`` seconds at most, and disconnect.

        Harmless when it is closed; in a forked process it does nothing. Ctrl-C ends the waiting
        alone: the rest is done while the session goes on.
        """
        super().close()

    async def _end(self) -> None:
        await self._producer.close()


def _begin(outcome: Future[Receipt], ways: Ways, *arguments: Any) -> None:
    """On the session's thread: publish, unless that was cancelled, and have the future told."""
    if not outcome.set_running_or_notify_cancel():
        return
    without_waiting, waiting = ways

    def on_done(result: Receipt | Exception) -> None:
        if isinstance(result, Exception):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)

    try:
        without_waiting(*arguments, on_done)
    except ProducerFullError:  # other threads publish as well: wait with them
        begin(waiting, arguments, outcome)
    except Exception as error:
        outcome.set_exception(error)


def _size(topic: str, bodies: Sequence[bytes]) -> int:
    try:
        return COMMAND_BYTES + len(topic) + sum(map(len, bodies))
    except TypeError:  # no messages at all: the future says why
        return 0


def _held(body: bytes) -> bytes:
    return bytes(body) if isinstance(body, BUFFERS) else body


def _all_held(bodies: Sequence[bytes]) -> Sequence[bytes]:
    if isinstance(bodies, str | bytes) or not isinstance(bodies, Iterable):
        return bodies  # the future says what is wrong with that
    return [_held(body) for body in bodies]


def _tell_of_the_unfinished(room: Room, owner: int) -> None:
    """The program ends and nobody has closed the producer: what it has not done is lost."""
    if room.count and os.getpid() == owner:
        text = "%d publishes are without an outcome: the program ends, their session is not closed"
        log.warning(text, room.count)
