"""The producer of a session: publishes, and waits for nsqd's OK.

1. Publishes of several threads, and submitted ones, share the connections without waiting for one
   another.
2. ``submit`` returns at once while pending publishes have at most ``max_pending_bytes`` in total;
   beyond that it blocks until the publish fits. Blocked threads go on in no particular order.
3. Arguments and errors are those of ``Producer``.
4. If the program ends with pending publishes and has not closed the producer, a warning is logged.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from sparq.client.blocking.handle import SessionHandle, awaited
from sparq.client.blocking.loop_thread import LoopThread, begin, when_unlocked
from sparq.client.blocking.message_proxy import ByteLimit
from sparq.client.errors import ProducerFullError
from sparq.client.log_fields import FieldLogger
from sparq.client.producer import Producer
from sparq.client.publish import Receipt

log = FieldLogger(__name__)

COMMAND_BYTES: Final = 16
"""Estimated size of a publish without its topic and bodies."""

BUFFERS: Final = (bytearray, memoryview)
"""Mutable types: the caller may change such a body after the call, so it is copied."""

Ways = tuple[Callable[..., None], Callable[..., Awaitable[Receipt]]]
"""The producer's method without waiting, and the awaited one."""


class BlockingProducer(SessionHandle):
    """Publishes messages; made by ``Session.producer``.

    ::

        with session.producer() as producer:
            producer.publish("clicks", b"...")

    Leaving the block waits up to ``stop_timeout`` seconds for pending publishes. The methods are
    those of ``Producer``, but they block. They also raise ``ClosedError`` if the session is closed.

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
        self._byte_limit = ByteLimit(self.config.max_pending_bytes)
        weakref.finalize(self, _log_unfinished, self._byte_limit, os.getpid())

    # Publishing

    publish = awaited(Producer.publish)
    multi_publish = awaited(Producer.multi_publish)
    publish_deferred = awaited(Producer.publish_deferred)
    flush = awaited(Producer.flush)

    # Publishing without waiting

    def submit(self, topic: str, body: bytes) -> Future[Receipt]:
        """Start to publish one message; the future's ``result()`` is what ``publish`` returns.

        It blocks only while ``max_pending_bytes`` are pending. Only the future reports an error;
        ``failed`` counts them. A mutable body may be changed once ``submit`` has returned.
        Cancelling the future has an effect only before the publish has started.

        Raises:
            ClosedError: the producer's session is closed.
        """
        held = _held(body)
        return self._submit(_size(topic, (held,)), self._to_publish, topic, held)

    def multi_submit(self, topic: str, bodies: Sequence[bytes]) -> Future[Receipt]:
        """Start to publish several messages, as ``multi_publish`` does; otherwise as ``submit``.

        Raises:
            ClosedError: the producer's session is closed.
        """
        held = _all_held(bodies)
        return self._submit(_size(topic, held), self._to_multi_publish, topic, held)

    def submit_deferred(self, topic: str, body: bytes, delay_seconds: float) -> Future[Receipt]:
        """Start to publish as ``publish_deferred`` does; otherwise as ``submit``.

        Raises:
            ClosedError: the producer's session is closed.
        """
        held, to_defer = _held(body), self._to_publish_deferred
        return self._submit(_size(topic, (held,)), to_defer, topic, held, delay_seconds)

    def _submit(self, size: int, ways: Ways, *arguments: Any) -> Future[Receipt]:
        self._thread.check()  # first: in a forked child the byte limit's lock may be held forever
        outcome: Future[Receipt] = Future()
        self._byte_limit.enter(size)
        # Refers to the producer, so that it is not collected while a future has no outcome.
        outcome.add_done_callback(lambda _: self._byte_limit.leave(size))
        try:
            self._thread.post(when_unlocked, outcome, _begin, outcome, ways, *arguments)
        except BaseException:  # Ctrl-C: it may be posted, and the caller never gets the future
            outcome.cancel()
            raise
        return outcome

    # State

    until_connected = awaited(Producer.until_connected)
    ping = awaited(Producer.ping)

    @property
    def published(self) -> int:
        """The number of messages acknowledged."""
        return self._producer.published

    @property
    def failed(self) -> int:
        """The number of messages whose publish failed."""
        return self._producer.failed

    @property
    def under_way(self) -> int:
        """The number of publishes without an outcome yet."""
        return self._producer.under_way

    @property
    def resent(self) -> int:
        """The number of messages sent again because an earlier send got no answer.

        It is an upper limit for the number of messages stored twice.
        """
        return self._producer.resent

    # Life cycle

    def close(self) -> None:
        """Wait up to ``stop_timeout`` seconds for pending publishes, then disconnect.

        A second call, or one in a forked process, does nothing. Ctrl-C ends only the wait: closing
        goes on in the background while the session is open.
        """
        super().close()

    async def _end(self) -> None:
        await self._producer.close()


def _begin(outcome: Future[Receipt], ways: Ways, *arguments: Any) -> None:
    """On the session's thread: publish unless cancelled, and set the future's outcome."""
    if not outcome.set_running_or_notify_cancel():
        return
    without_waiting, waiting = ways

    def on_done(result: Receipt | Exception) -> None:
        has_failed = isinstance(result, Exception)
        when_unlocked(outcome, outcome.set_exception if has_failed else outcome.set_result, result)

    try:
        without_waiting(*arguments, on_done)
    except ProducerFullError:  # other threads fill the queue, too: wait in line with them
        begin(waiting, arguments, outcome)
    except Exception as error:
        outcome.set_exception(error)


def _size(topic: str, bodies: Sequence[bytes]) -> int:
    try:
        return COMMAND_BYTES + len(topic) + sum(map(len, bodies))
    except TypeError:  # not a sequence of bytes: the future gets the error
        return 0


def _held(body: bytes) -> bytes:
    return bytes(body) if isinstance(body, BUFFERS) else body


def _all_held(bodies: Sequence[bytes]) -> Sequence[bytes]:
    if isinstance(bodies, str | bytes) or not isinstance(bodies, Iterable):
        return bodies  # the future gets the error
    return [_held(body) for body in bodies]


def _log_unfinished(byte_limit: ByteLimit, owner: int) -> None:
    """Log pending publishes that are lost, as the program ends without closing the producer."""
    if byte_limit.count and os.getpid() == owner:
        text = "%d publishes still pending at exit: close the session or producer first"
        log.warning(text, byte_limit.count)
