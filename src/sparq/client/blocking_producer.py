"""The producer of a session: publishes, and waits for nsqd's OK.

Publishes of several threads, and those of ``submit``, share the connections without waiting for one
another. What is right for ``Producer`` is right here: the errors are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from sparq.client.config import Config
from sparq.client.loop_thread import LoopThread
from sparq.client.producer import Producer

if TYPE_CHECKING:
    from sparq.client import Receipt

SUBMITTED_MAX: Final = 10_000
"""So many publishes of ``submit`` may be under way; the next waits for one of them."""


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
        self._room = threading.BoundedSemaphore(SUBMITTED_MAX)
        self.config: Config = self._producer.config
        self.closed = False

    def publish(self, topic: str, body: bytes) -> Receipt:
        """Publish one message and wait for the OK.

        Raises:
            ValueError: the topic's name is not valid, or the body is empty.
            RemoteError: nsqd refuses it; ``code`` says why.
            PublishError: no nsqd has acknowledged it in time or within ``publish_attempts``.
            ClosedError: the producer or its session is closed.
        """
        return self._thread.call(self._producer.publish, topic, body)

    def multi_publish(self, topic: str, bodies: Sequence[bytes]) -> Receipt:
        """Publish messages together, under one OK; all of them or none (with sparq's nsqd).

        Raises:
            ValueError: the topic's name is not valid, a body is empty, or there is none.
            RemoteError, PublishError, ClosedError: as for ``publish``.
        """
        return self._thread.call(self._producer.multi_publish, topic, bodies)

    def publish_deferred(self, topic: str, body: bytes, delay_seconds: float) -> Receipt:
        """Publish a message that is to be delivered after a delay.

        Raises:
            ValueError: as for ``publish``, or the delay is negative.
            RemoteError, PublishError, ClosedError: as for ``publish``.
        """
        return self._thread.call(self._producer.publish_deferred, topic, body, delay_seconds)

    def submit(self, topic: str, body: bytes) -> Future[Receipt]:
        """Begin to publish one message; the future's ``result()`` is what ``publish`` returns.

        It waits only while ``SUBMITTED_MAX`` are under way. What went wrong with one whose future
        nobody asks, nobody hears of.

        Raises:
            ClosedError: the producer's session is closed.
        """
        self._room.acquire()
        try:
            outcome = self._thread.submit(self._producer.publish, topic, body)
        except BaseException:
            self._room.release()
            raise
        outcome.add_done_callback(lambda _: self._room.release())
        return outcome

    @property
    def published(self) -> int:
        """The messages acknowledged."""
        return self._producer.published

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
        """Wait for publishes under way, ``stop_timeout`` seconds at most, and disconnect."""
        if not self.closed:
            self.closed = True
            self._thread.call(self._producer.close)
