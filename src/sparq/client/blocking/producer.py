"""The producer of a session: publishes, and waits for nsqd's OK.

1. Publishes of several threads, and submitted ones, share the connections without waiting for one
   another.
2. ``submit`` returns at once while pending publishes have at most ``max_pending_bytes`` in total;
   beyond that it blocks until the publish fits. Blocked threads go on in no particular order.
3. Arguments and errors are those of ``Producer``.
4. If the program ends with pending publishes and has not closed the producer, a warning is logged.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from _queue import SimpleQueue  # see `consumer`
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from sparq.client.blocking.handle import SessionHandle, Shown, awaited
from sparq.client.blocking.loop_thread import LoopThread, when_unlocked
from sparq.client.log_fields import FieldLogger
from sparq.client.producer import (
    Callback,
    Producer,
    Receipt,
    multi_publish_command,
    publish_command,
    publish_deferred_command,
)

log = FieldLogger(__name__)


class BlockingProducer(SessionHandle):
    """Publishes messages; made by ``Session.producer``.

    ::

        with session.producer() as producer:
            producer.publish("clicks", b"...")

    Leaving the block waits up to ``stop_timeout`` seconds for pending publishes. The methods are
    those of ``Producer``, but they block. They also raise ``ClosedError`` if the session is closed.

    Attributes:
        published: the number of messages acknowledged.
        failed: the number of messages whose publish failed.
        under_way: the number of publishes without an outcome yet.
        resent: the number of messages sent again because an earlier send got no answer: an upper
            limit for the number of messages stored twice.
    """

    published = Shown[int]()
    failed = Shown[int]()
    under_way = Shown[int]()
    resent = Shown[int]()

    def __init__(self, thread: LoopThread, **arguments: Any) -> None:
        self._producer: Producer = thread.call(Producer, **arguments)
        super().__init__(thread, self._producer)
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
        return self._submit(partial(publish_command, topic, body))

    def multi_submit(self, topic: str, bodies: Sequence[bytes]) -> Future[Receipt]:
        """Start to publish several messages, as ``multi_publish`` does; otherwise as ``submit``.

        Raises:
            ClosedError: the producer's session is closed.
        """
        if not isinstance(bodies, str | bytes):
            with contextlib.suppress(TypeError):  # not iterable: the future gets the error
                bodies = list(bodies)
        return self._submit(partial(multi_publish_command, topic, bodies), bodies)

    def submit_deferred(self, topic: str, body: bytes, delay_seconds: float) -> Future[Receipt]:
        """Start to publish as ``publish_deferred`` does; otherwise as ``submit``.

        Raises:
            ClosedError: the producer's session is closed.
        """
        return self._submit(partial(publish_deferred_command, topic, body, delay_seconds))

    def _submit(
        self, build: Callable[[], bytes], bodies: Sequence[bytes] = (b"",)
    ) -> Future[Receipt]:
        self._thread.check()  # first: in a forked child the byte limit's lock may be held forever
        outcome: Future[Receipt] = Future()
        try:
            command = build()
        except (TypeError, ValueError) as error:
            outcome.set_exception(error)
            return outcome
        size = len(command)
        self._byte_limit.enter(size)
        # Refers to the producer, so that it is not collected while a future has no outcome.
        outcome.add_done_callback(lambda _: self._byte_limit.leave(size))
        start = partial(_start, self._producer, command, len(bodies), outcome)
        try:
            self._thread.post(when_unlocked, outcome, start)
        except BaseException:  # Ctrl-C: it may be posted, and the caller never gets the future
            outcome.cancel()
            raise
        return outcome

    # State

    until_connected = awaited(Producer.until_connected)
    ping = awaited(Producer.ping)

    async def _end(self) -> None:
        await self._producer.close()


class ByteLimit:
    """Admits publishes while their bytes fit, and makes the rest wait.

    One publish is always admitted, however large. A wait can be interrupted (Ctrl-C); its bytes
    then do not count. ``leave`` waits for no lock.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._count = self._bytes = 0
        # One thread at a time enters. Reentrant: a signal handler may publish as well.
        self._lock = threading.RLock()
        self._left: SimpleQueue[int] = SimpleQueue()

    @property
    def count(self) -> int:
        """The number of admitted publishes."""
        return self._count - self._left.qsize()

    def enter(self, size: int) -> None:
        """Wait until ``size`` bytes fit, and count them."""
        with self._lock:
            # Beyond the limit, `get` waits for the next publish that leaves.
            while not self._left.empty() or (self._count and self._bytes + size > self._bytes_max):
                self._bytes -= self._left.get()
                self._count -= 1
            self._count += 1
            self._bytes += size

    def leave(self, size: int) -> None:
        """Stop counting ``size`` bytes."""
        self._left.put(size)


def _start(producer: Producer, command: bytes, count: int, outcome: Future[Receipt]) -> None:
    """On the session's thread: publish unless cancelled."""
    if not outcome.set_running_or_notify_cancel():
        return

    def on_done(result: Receipt | Exception) -> None:
        has_failed = isinstance(result, Exception)
        when_unlocked(outcome, outcome.set_exception if has_failed else outcome.set_result, result)

    try:
        producer._submit(command, count, Callback(on_done))
    except Exception as error:
        outcome.set_exception(error)


def _log_unfinished(byte_limit: ByteLimit, owner: int) -> None:
    """Log pending publishes that are lost, as the program ends without closing the producer."""
    if byte_limit.count and os.getpid() == owner:
        text = "%d publishes still pending at exit: close the session or producer first"
        log.warning(text, byte_limit.count)
