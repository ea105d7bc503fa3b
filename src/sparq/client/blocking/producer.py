"""The producer of a session: publishes, and waits for nsqd's OK.

1. Publishes of several threads, and those of ``submit``, share the connections without waiting for
   one another.
2. ``submit`` goes on at once, up to ``max_pending_bytes`` that are under way; then it waits for
   room, first come, first served or not: threads are not put in order.
3. What is right for ``Producer`` is right here: the errors are the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self

from sparq.client.blocking.loop_thread import LoopThread, begin
from sparq.client.config import Config
from sparq.client.errors import ClosedError, ProducerFullError
from sparq.client.producer import Producer
from sparq.client.publish import Receipt

COMMAND_BYTES: Final = 16
"""Of a publish, besides its topic and its body."""


class BlockingProducer:
    """Publishes messages; ``Session.producer`` makes it.

    ::

        with session.producer() as producer:
            producer.publish("clicks", b"...")

    Leaving the block waits for publishes under way, ``stop_timeout`` seconds at most.

    Attributes:
        config: the options in use.
        closed: whether it is closed.
    """

    def __init__(self, thread: LoopThread, **arguments: Any) -> None:
        self._thread = thread
        self._producer = thread.ask(lambda: Producer(**arguments))
        self.config: Config = self._producer.config
        self.closed = False
        self._room = threading.Condition()
        self._submitted_bytes = 0

    # Publishing

    def publish(self, topic: str, body: bytes, *, timeout_seconds: float | None = None) -> Receipt:
        """Publish one message and wait for the OK.

        Args:
            topic: the topic.
            body: the message.
            timeout_seconds: how long it may take, with all its attempts; ``publish_timeout`` when
                not given.

        Raises:
            ValueError: the topic's name is not valid, or the body is empty.
            TypeError: the body is no bytes.
            RemoteError: nsqd refuses it; ``code`` says why.
            PublishError: no nsqd has acknowledged it in time or within ``publish_attempts``.
            ClosedError: the producer or its session is closed.
        """
        producer = self._producer
        return self._thread.call(
            lambda: producer.publish(topic, body, timeout_seconds=timeout_seconds)
        )

    def multi_publish(
        self, topic: str, bodies: Sequence[bytes], *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish messages together, under one OK; all of them or none (with sparq's nsqd).

        Raises:
            ValueError: the topic's name is not valid, a body is empty, or there is none.
            TypeError, RemoteError, PublishError, ClosedError: as for ``publish``.
        """
        producer = self._producer
        return self._thread.call(
            lambda: producer.multi_publish(topic, bodies, timeout_seconds=timeout_seconds)
        )

    def publish_deferred(
        self,
        topic: str,
        body: bytes,
        delay_seconds: float,
        *,
        timeout_seconds: float | None = None,
    ) -> Receipt:
        """Publish a message that is to be delivered after a delay.

        Raises:
            ValueError: as for ``publish``, or the delay is negative.
            TypeError, RemoteError, PublishError, ClosedError: as for ``publish``.
        """
        producer = self._producer
        return self._thread.call(
            lambda: producer.publish_deferred(
                topic, body, delay_seconds, timeout_seconds=timeout_seconds
            )
        )

    def submit(self, topic: str, body: bytes) -> Future[Receipt]:
        """Begin to publish one message; the future's ``result()`` is what ``publish`` returns.

        It waits only while ``max_pending_bytes`` are under way. What went wrong is known to the
        future alone: ask it, or count ``failed``.

        Raises:
            ClosedError: the producer's session is closed.
        """
        self._thread.check()  # a forked child has a copy of the lock, as it was
        size = len(body) + len(topic) + COMMAND_BYTES
        limit = self.config.max_pending_bytes - size
        with self._room:
            while self._submitted_bytes and self._submitted_bytes > limit:
                self._room.wait()
            self._submitted_bytes += size
        outcome: Future[Receipt] = Future()
        outcome.set_running_or_notify_cancel()
        outcome.add_done_callback(lambda _: self._leave(size))
        try:
            self._thread.post(self._begin, topic, body, outcome)
        except BaseException:
            self._leave(size)
            raise
        return outcome

    def flush(self) -> None:
        """Wait until every publish so far has its outcome."""
        self._thread.call(self._producer.flush)

    def _begin(self, topic: str, body: bytes, outcome: Future[Receipt]) -> None:
        def on_done(result: Receipt | Exception) -> None:
            if isinstance(result, Exception):
                outcome.set_exception(result)
            else:
                outcome.set_result(result)

        try:
            self._producer.publish_nowait(topic, body, on_done)
        except ProducerFullError:  # other threads publish as well: wait with them
            begin(self._producer.publish, (topic, body), outcome)
        except Exception as error:
            outcome.set_exception(error)

    def _leave(self, size: int) -> None:
        with self._room:
            self._submitted_bytes -= size
            self._room.notify_all()

    # What is known

    def ping(self, *, timeout_seconds: float | None = None) -> dict[str, float]:
        """Ask every nsqd that is given or was found whether it answers.

        Returns:
            For each nsqd that answers, the seconds it took to connect and identify.

        Raises:
            ConnectionLostError: none answers; the text says why for each.
            ClosedError: the producer or its session is closed.
        """
        producer = self._producer
        return self._thread.call(lambda: producer.ping(timeout_seconds=timeout_seconds))

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

    @property
    def connections(self) -> list[str]:
        """The nsqds that are connected, as ``host:port``."""
        return self._thread.ask(lambda: self._producer.connections)

    @property
    def errors(self) -> dict[str, str]:
        """Why there is no connection to an nsqd, for each that should have one and has none."""
        return self._thread.ask(lambda: self._producer.errors)

    # Life

    def __enter__(self) -> Self:
        """The producer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Wait for publishes under way, ``stop_timeout`` seconds at most, and disconnect.

        Harmless when it is closed; in a forked process it does nothing.
        """
        if not self.closed:
            self.closed = True
            with contextlib.suppress(ClosedError):
                self._thread.call(self._producer.close)
