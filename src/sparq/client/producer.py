"""The producer: publishes to one of several nsqds and awaits its OK.

1. A publish is complete when nsqd has answered OK, not when its bytes have been sent.
2. Publishes of any number of tasks share the connections, without waiting for one another.
3. A publish without an answer is sent again when its connection is lost, or when half of its time
   is over; to another nsqd if there is one. The message may then be stored twice; the client
   cannot know. ``Receipt.resent`` counts such sends of one publish, ``Producer.resent`` of all.
   A send that certainly was not stored does not count.
4. `dispatcher` decides which nsqd gets a publish, and how long it is retried.
5. A draining nsqd gets no publishes while there is another one. A publish that it refuses is sent
   to another nsqd at once.
6. ``publish_nowait`` has the same outcomes, passed to a callback. Its queue is bounded: it raises
   an error where ``publish`` would wait.
7. A command is checked before it is sent: nsqd closes the connection after an invalid command, and
   other publishes share that connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import ChainMap
from collections.abc import Iterable, Sequence, Sized
from functools import lru_cache
from typing import Any, Final, Self

from sparq.client.arguments import check_delay, check_name
from sparq.client.config import Config, milliseconds
from sparq.client.connection import open_connection
from sparq.client.discovery import Connecting, Filter
from sparq.client.dispatcher import (
    CLOSED,
    Callback,
    Dispatcher,
    OnDone,
    PendingPublish,
    Receipt,
)
from sparq.client.errors import ClosedError, ConnectionLostError
from sparq.client.log_fields import FieldLogger
from sparq.client.pool import background

log = FieldLogger(__name__)

BODY_BYTES_MAX: Final = 2**31 - 1
"""The protocol's size limit; nsqd's own limits (--max-msg-size, --max-body-size) are lower."""

_SIZE: Final = struct.Struct(">i")


class Producer(Connecting):
    """Publishes messages.

    ::

        async with Producer("127.0.0.1:4150") as producer:
            receipt = await producer.publish("clicks", b"...")

    A publish waits for a connection, so no wait is needed before the first one. Leaving the block
    waits up to ``stop_timeout`` seconds for publishes of other tasks.

    Args:
        nsqd_tcp_addresses: nsqds, each as ``host:port`` or the path of a unix socket; a list, or
            one string with commas.
        lookupd_http_addresses: nsqlookupds, each as ``host:port`` or URL; all nsqds that they
            list are used.
        discovery_filter: called with the sorted addresses that the nsqlookupds list; returns the
            addresses to connect to, which need not be among those listed.
        config: base options.
        **options: options of ``Config``; they override those in ``config``.

    Attributes:
        config: the options in use.

    Raises:
        ValueError: an address or an option is not valid, or no address is given.
        TypeError: an option does not exist or has the wrong type.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        discovery_filter: Filter | None = None,
        config: Config | None = None,
        **options: Any,
    ) -> None:
        config = Config.of(config, options)
        super().__init__(nsqd_tcp_addresses, lookupd_http_addresses, None, config, discovery_filter)
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # A view, not a copy: a publish that fails gives the reasons known at that moment.
        errors = ChainMap(self._pool.errors, self._lookups.errors)
        self._dispatcher = Dispatcher(self.config, errors, lambda: self._pool.wanted)
        self._lookups.on_draining = self._dispatcher.list_draining

    def __repr__(self) -> str:
        return f"<Producer to {', '.join(sorted(self._pool.wanted)) or 'no nsqd yet'}>"

    # Publishing

    async def publish(
        self, topic: str, body: bytes, *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish one message.

        After a cancellation the message may or may not be stored.

        Args:
            topic: the topic.
            body: the message body.
            timeout_seconds: time limit for all attempts together; default: ``publish_timeout``.

        Raises:
            ValueError: the topic name is not valid, or the body is empty.
            TypeError: the body is not bytes.
            RemoteError: nsqd refused the publish; ``code`` says why.
            PublishError: no nsqd acknowledged it in time or within ``publish_attempts``.
            ClosedError: the producer is closed.
        """
        # A copy of `_outcome`: a coroutine less for each message, 5 % of its CPU.
        command = publish_command(topic, body)
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        publish = self._submit(command, 1, outcome, timeout_seconds)
        try:
            return await outcome
        except asyncio.CancelledError:
            if outcome.cancelled():
                self._dispatcher.forget(publish)
            raise

    async def multi_publish(
        self, topic: str, bodies: Sequence[bytes], *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish several messages with one MPUB; sparq's nsqd stores all of them or none.

        Raises:
            ValueError: the topic name is not valid, a body is empty, or there are no bodies.
            TypeError, RemoteError, PublishError, ClosedError: as for ``publish``.
        """
        command = multi_publish_command(topic, bodies)
        return await self._outcome(command, len(bodies), timeout_seconds)

    async def publish_deferred(
        self, topic: str, body: bytes, delay_seconds: float, *, timeout_seconds: float | None = None
    ) -> Receipt:
        """Publish a message that nsqd delivers after a delay.

        Raises:
            ValueError: as for ``publish``, or the delay is negative or too long for nsqd.
            TypeError, RemoteError, PublishError, ClosedError: as for ``publish``.
        """
        command = publish_deferred_command(topic, body, delay_seconds)
        return await self._outcome(command, 1, timeout_seconds)

    async def _outcome(self, command: bytes, count: int, seconds: float | None) -> Receipt:
        outcome: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        publish = self._submit(command, count, outcome, seconds)
        try:
            return await outcome
        except asyncio.CancelledError:
            # Not cancelled: it had its outcome in the same loop iteration, and is counted already.
            if outcome.cancelled():
                self._dispatcher.forget(publish)
            raise

    def _submit(
        self,
        command: bytes,
        count: int,
        outcome: asyncio.Future[Receipt] | Callback,
        seconds: float | None = None,
    ) -> PendingPublish:
        now = self._started().time()
        if seconds is None:
            # No timer of its own: the connection checks for `publish_timeout` itself, and a publish
            # that is queued or sent again gets a timer then.
            deadline = now + self.config.publish_timeout
            publish = PendingPublish(command, count, outcome, now, deadline)
        elif seconds > 0:
            publish = PendingPublish(command, count, outcome, now, now + seconds)
            self._dispatcher.expire_in(publish)
        else:
            raise ValueError(f"timeout_seconds must be above 0, not {seconds}")
        self._dispatcher.submit(publish)
        return publish

    # Publishing without waiting

    def publish_nowait(self, topic: str, body: bytes, on_done: OnDone | None = None) -> None:
        """Publish one message without waiting for its outcome.

        Args:
            topic: the topic.
            body: the message body.
            on_done: called once on the event loop, with the ``Receipt`` or the exception that
                ``publish`` would raise. It must not block. Without it, failures are logged.

        Raises:
            ValueError, TypeError, ClosedError: as for ``publish``.
            ProducerFullError: other publishes wait to be sent, and this one would exceed
                ``max_pending_bytes``; it was not accepted. ``await drain()`` waits for room.
        """
        self._submit_nowait(publish_command(topic, body), 1, on_done)

    def multi_publish_nowait(
        self, topic: str, bodies: Sequence[bytes], on_done: OnDone | None = None
    ) -> None:
        """Publish several messages as ``multi_publish`` does, without waiting for the outcome.

        Raises:
            ValueError, TypeError, ClosedError, ProducerFullError: as for ``publish_nowait``.
        """
        self._submit_nowait(multi_publish_command(topic, bodies), len(bodies), on_done)

    def publish_deferred_nowait(
        self, topic: str, body: bytes, delay_seconds: float, on_done: OnDone | None = None
    ) -> None:
        """Publish as ``publish_deferred`` does, without waiting for the outcome.

        Raises:
            ValueError, TypeError, ClosedError, ProducerFullError: as for ``publish_nowait``.
        """
        self._submit_nowait(publish_deferred_command(topic, body, delay_seconds), 1, on_done)

    def _submit_nowait(self, command: bytes, count: int, on_done: OnDone | None) -> None:
        if on_done is not None and not callable(on_done):
            raise TypeError(f"on_done must be a function, not {type(on_done).__name__}")
        self._dispatcher.require_queue_space(len(command))
        self._submit(command, count, Callback(on_done or _log_failure))

    async def drain(self) -> None:
        """Wait until no publish waits to be sent: ``publish_nowait`` then has room again."""
        await self._dispatcher.queue_empty.wait()

    async def flush(self) -> None:
        """Wait until every publish has an outcome, including those started during the wait."""
        while self._dispatcher.under_way:
            await self._dispatcher.idle.wait()

    # Connections

    async def ping(self, *, timeout_seconds: float | None = None) -> dict[str, float]:
        """Check whether the given and discovered nsqds answer.

        A new connection is made to each: NSQ has no ping command for a connection that publishes.

        Args:
            timeout_seconds: time limit; default: ``publish_timeout``.

        Returns:
            For each nsqd that answers, the seconds it took to connect and identify.

        Raises:
            ConnectionLostError: no nsqd answers; the text gives the reason for each.
            ClosedError: the producer is closed.
        """
        self.start()
        seconds = self.config.publish_timeout if timeout_seconds is None else timeout_seconds
        if not self._pool.wanted:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._dispatcher.linked.wait()
        took, reasons = dict[str, float](), dict[str, str]()
        clock = asyncio.get_running_loop().time

        async def ask(address: str) -> None:
            began = clock()
            try:
                async with asyncio.timeout(seconds):
                    connection = await open_connection(address, self.config)
            except Exception as error:
                is_late = isinstance(error, TimeoutError) and clock() - began >= seconds
                late = f"no answer within {seconds:g} s"
                reasons[address] = late if is_late else str(error) or type(error).__name__
                return
            took[address] = clock() - began
            await connection.close()

        await asyncio.gather(*map(ask, self._pool.wanted))
        if not took:
            why = "; ".join(f"{at}: {why}" for at, why in reasons.items())
            raise ConnectionLostError(
                f"no nsqd answers ({why or 'no nsqd is configured or found'})"
            )
        return took

    async def _serve(self, address: str) -> ConnectionLostError:
        connection = await open_connection(address, self.config)
        connection.on_answered = self._dispatcher.send_queued
        self._pool.errors.pop(address, None)
        self._pool.connected(address, connection.facts)
        self._dispatcher.add(connection)
        try:
            return await connection.ended()
        finally:
            self._dispatcher.remove(connection)
            connection.fail(ClosedError("closed by the producer"))

    # Life cycle

    async def __aenter__(self) -> Self:
        """Start; connections are made in the background."""
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    def start(self) -> None:
        """Start to connect; the first publish does so, too.

        Raises:
            ClosedError: the producer is closed, or was started in another event loop.
        """
        self._started()

    def _require_started(self) -> None:
        self._started()

    def _started(self) -> asyncio.AbstractEventLoop:
        """Return the running loop; the first call starts to connect."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ClosedError(CLOSED)
        if self._loop is None:
            self._loop = loop
            self._connect()
        elif loop is not self._loop:
            raise ClosedError(
                "the producer belongs to the event loop in which it was started: make one in each "
                "loop (every asyncio.run starts a new loop)"
            )
        return loop

    async def close(self) -> None:
        """Wait up to ``stop_timeout`` seconds for pending publishes, then disconnect."""
        self._closed = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.config.stop_timeout):
                    await self.flush()
        finally:
            # In a task of its own: cancelling close a second time must not leave it half done.
            await asyncio.shield(background(self._end(), "closing a producer"))

    async def _end(self) -> None:
        self._dispatcher.end()
        await self._disconnect()

    # State

    @property
    def published(self) -> int:
        """The number of messages acknowledged."""
        return self._dispatcher.published

    @property
    def failed(self) -> int:
        """The number of messages whose publish failed; cancelled publishes do not count."""
        return self._dispatcher.failed

    @property
    def resent(self) -> int:
        """The number of messages sent again because an earlier send got no answer.

        It is an upper limit for the number of messages stored twice.
        """
        return self._dispatcher.resent

    @property
    def under_way(self) -> int:
        """The number of publishes without an outcome yet."""
        return self._dispatcher.under_way

    @property
    def connections(self) -> list[str]:
        """The connected nsqds, as ``host:port``."""
        return [link.address for link in self._dispatcher.links if link.live]


def _log_failure(outcome: Receipt | Exception) -> None:
    if isinstance(outcome, Exception):
        log.warning("publish_nowait: %s", outcome)


# Commands: `sparq.protocol.commands` with checks, and the head of each built once per topic.


def publish_command(topic: str, body: bytes) -> bytes:
    """Build PUB.

    Raises:
        ValueError: the topic name is not valid, or the body is empty or has over 2^31 - 1 bytes.
        TypeError: the body is not bytes.
    """
    return _head("PUB", topic) + _sized(body)


def multi_publish_command(topic: str, bodies: Sequence[bytes]) -> bytes:
    """Build MPUB.

    Raises:
        ValueError: as for ``publish_command``, or there are no bodies.
        TypeError: a body is not bytes, or ``bodies`` is not a sequence.
    """
    if isinstance(bodies, bytes | bytearray | memoryview | str) or not isinstance(bodies, Sized):
        raise TypeError(f"bodies must be a sequence of bytes, not {type(bodies).__name__}")
    if not bodies:
        raise ValueError("bodies is empty: at least one message is needed")
    messages = b"".join(map(_sized, bodies))
    return _head("MPUB", topic) + _sized(_SIZE.pack(len(bodies)) + messages)


def publish_deferred_command(topic: str, body: bytes, delay_seconds: float) -> bytes:
    """Build DPUB.

    Raises:
        ValueError: as for ``publish_command``, or the delay is negative or too long for nsqd.
        TypeError: the body is not bytes, or the delay is not a number.
    """
    check_delay(delay_seconds)
    delay_ms = milliseconds(delay_seconds)
    return b"%b %d\n%b" % (_head("DPUB", topic)[:-1], delay_ms, _sized(body))


@lru_cache(maxsize=1024)
def _head(command: str, topic: str) -> bytes:
    check_name("topic", topic)
    return f"{command} {topic}\n".encode()


def _sized(body: bytes) -> bytes:
    if not isinstance(body, bytes):
        if not isinstance(body, bytearray | memoryview):
            hint = ": encode it" if isinstance(body, str) else ""
            raise TypeError(f"a message must be bytes, not {type(body).__name__}{hint}")
        body = bytes(body)
    size = len(body)
    if not 0 < size <= BODY_BYTES_MAX:
        raise ValueError(
            f"{size} bytes do not fit into one command: at most {BODY_BYTES_MAX}"
            if size
            else "a message must not be empty"
        )
    return _SIZE.pack(size) + body
