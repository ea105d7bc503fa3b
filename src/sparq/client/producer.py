"""The producer: publishes to one of several nsqds and awaits its OK.

1. A publish has happened when nsqd has answered OK, not when bytes have left.
2. Publishes of any number of tasks share the connections, without waiting for one another.
3. A publish whose answer is missing when its connection is lost is sent again, to another nsqd if
   there is one. It may then be stored twice: nobody can know. ``Receipt.resent`` says so for each
   publish, ``Producer.resent`` in all. One that certainly was not stored does not count.
4. An nsqd that refuses to store (disk full) is passed over for that publish; its refusal is
   raised once every connected nsqd has refused. One whose authd fails when it renews a permission
   is connected to anew. Other refusals are the publish's own fault, and are raised at once.
5. Bodies that await an OK are bounded per nsqd by ``max_pending_bytes``; a publish beyond waits,
   first come, first served.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple, Self

from sparq.client.address import parse_addresses, split_texts
from sparq.client.config import Config, milliseconds
from sparq.client.connection import STORAGE_REFUSALS, Connection, open_connection
from sparq.client.discovery import Discovery
from sparq.client.errors import ClosedError, ConnectionLostError, PublishError
from sparq.client.pool import Pool, background
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from sparq.protocol.names import is_valid_name, quote

CLOSED = "the producer is closed"


class Receipt(NamedTuple):
    """A publish that nsqd has acknowledged.

    Attributes:
        nsqd: the ``host:port`` that said OK.
        attempts: how often it was sent.
        resent: how many earlier sends had no answer; each may have been stored too.
    """

    nsqd: str
    attempts: int = 1
    resent: int = 0


@dataclass(slots=True)
class _Publish:
    """One publish on its way: what to send and what has become of it so far."""

    command: bytes
    message_count: int
    attempts: int = 0
    unanswered: int = 0
    resent: int = 0
    refusal: RemoteError | None = None
    refused_by: tuple[str, ...] = ()


class Producer:
    """Publishes messages.

    ::

        async with Producer("127.0.0.1:4150") as producer:
            receipt = await producer.publish("clicks", b"...")

    A publish waits for a connection, so the first may come at once. Leaving the block waits for
    publishes that other tasks still have under way, ``stop_timeout`` seconds at most.

    Args:
        nsqd_tcp_addresses: nsqds as ``host:port`` or as paths of unix sockets, in a list or in
            one text with commas.
        lookupd_http_addresses: nsqlookupds, ``host:port`` or URL: publish to all nsqds they know.
        config: options to start from.
        **options: single options of ``Config``, which replace those of ``config``.

    Attributes:
        published: messages acknowledged.
        resent: sends of a message again after one that had no answer: so many messages may be
            stored twice.

    Raises:
        ValueError: an address or an option is not valid, or no address is given.
        TypeError: an option does not exist or has the wrong type.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        *,
        lookupd_http_addresses: str | Iterable[str] = (),
        config: Config | None = None,
        **options: Any,
    ) -> None:
        self.config = Config.of(config, options)
        self.published = 0
        self.resent = 0
        self._links: list[Connection] = []
        self._turn = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._under_way = 0
        self._idle = asyncio.Event()
        self._closed = False
        self._ended = False
        self._asking: asyncio.Task[None] | None = None
        given, lookupds = parse_addresses(nsqd_tcp_addresses), split_texts(lookupd_http_addresses)
        if not given and not lookupds:
            raise ValueError("give nsqd_tcp_addresses or lookupd_http_addresses")
        rng = random.Random()  # noqa: S311 - spreads load in time, guards nothing
        self._discovery = Discovery(lookupds, None, self.config, rng)
        self._pool = Pool(
            given,
            self._serve,
            self._discovery.recheck,
            max_delay=self.config.max_reconnect_delay,
            rng=rng,
        )

    # Publishing

    async def publish(self, topic: str, body: bytes) -> Receipt:
        """Publish one message.

        Raises:
            ValueError: the topic's name is not valid, or the body is empty.
            RemoteError: nsqd refuses it; ``code`` says why.
            PublishError: no nsqd has acknowledged it in time or within ``publish_attempts``.
            ClosedError: the producer is closed.
        """
        _check(topic, (body,))
        return await self._publish(_Publish(commands.pub(topic, body), 1))

    async def multi_publish(self, topic: str, bodies: Sequence[bytes]) -> Receipt:
        """Publish messages together, under one OK; all of them or none (with sparq's nsqd).

        Raises:
            ValueError: the topic's name is not valid, a body is empty, or there is none.
            RemoteError, PublishError, ClosedError: as for ``publish``.
        """
        _check(topic, bodies)
        return await self._publish(_Publish(commands.mpub(topic, bodies), len(bodies)))

    async def publish_deferred(self, topic: str, body: bytes, delay_seconds: float) -> Receipt:
        """Publish a message that is to be delivered after a delay.

        Raises:
            ValueError: as for ``publish``, or the delay is negative.
            RemoteError, PublishError, ClosedError: as for ``publish``.
        """
        _check(topic, (body,))
        if not delay_seconds >= 0:
            raise ValueError(f"delay_seconds is {delay_seconds}, not 0 or more")
        command = commands.dpub(topic, milliseconds(delay_seconds), body)
        return await self._publish(_Publish(command, 1))

    async def _publish(self, publish: _Publish) -> Receipt:
        self.start()
        self._under_way += 1
        try:
            while True:
                receipt = await self._attempt(publish)
                if receipt is not None:
                    self.published += publish.message_count
                    return receipt
                if publish.attempts >= self.config.publish_attempts:
                    raise self._given_up(publish) from publish.refusal
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _attempt(self, publish: _Publish) -> Receipt | None:
        """Send it once; None when it is to be sent again."""
        in_line = bool(self._waiters) and publish.refusal is None
        link = None if in_line else self._free_link(publish)
        if link is None:
            link = await self._wait_for_link(publish)
        self.resent += publish.message_count * (publish.unanswered - publish.resent)
        publish.resent = publish.unanswered
        publish.attempts += 1
        try:
            await link.request(publish.command)
        except ConnectionLostError as lost:
            publish.unanswered += lost.executed is None
            return None
        except RemoteError as error:
            if error.code == "E_AUTH_FAILED":
                return None  # not executed; the connection ends, and its next one says AUTH
            if error.code not in STORAGE_REFUSALS:
                _note_unanswered(error, publish)
                raise
            # Go's nsqd may have stored the first part of an MPUB.
            partly = error.code == "E_MPUB_FAILED" and "sparq_version" not in link.facts
            publish.unanswered += partly
            publish.refusal = error
            publish.refused_by += (link.address,)
            return None
        return Receipt(link.address, publish.attempts, publish.resent)

    def _given_up(self, publish: _Publish) -> PublishError:
        sent = f"sent {publish.attempts} times, {publish.unanswered} of them unanswered"
        reasons = "; ".join(f"{at}: {why}" for at, why in self._pool.errors.items())
        return PublishError(
            f"publish given up: {sent}" + (f" ({reasons})" if reasons else ""),
            attempts=publish.attempts,
            unanswered=publish.unanswered,
        )

    # Choosing a connection

    def _free_link(self, publish: _Publish) -> Connection | None:
        """The next link in turn that takes it now; None when it has to wait.

        Raises:
            ClosedError: the producer is closed.
            RemoteError: every connected nsqd has refused it.
        """
        if self._ended:
            raise self._given_up(publish) if publish.attempts else ClosedError(CLOSED)
        if publish.refusal is not None:
            return self._link_after_refusal(publish)
        limit = self.config.max_pending_bytes - len(publish.command)
        for _ in self._links:
            self._turn = (self._turn + 1) % len(self._links)
            link = self._links[self._turn]
            if link.live and (link.pending_bytes <= limit or not link.pending_bytes):
                return link
        return None

    def _link_after_refusal(self, publish: _Publish) -> Connection:
        # Rare, and waiting in line for room on another link could wait for its own refusal.
        for link in self._links:
            if link.live and link.address not in publish.refused_by:
                return link
        assert publish.refusal is not None
        _note_unanswered(publish.refusal, publish)
        raise publish.refusal

    async def _wait_for_link(self, publish: _Publish) -> Connection:
        """Stand in line; who is first in it is woken when a link may have room."""
        waiter = self._new_waiter()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self.config.publish_timeout):
                await waiter
                while (link := self._free_link(publish)) is None:
                    waiter = self._waiters[0] = self._new_waiter()
                    await waiter
                return link
        except TimeoutError:
            raise self._given_up(publish) from None
        finally:
            self._waiters.remove(waiter)
            self._wake_first()

    def _new_waiter(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def _wake_first(self) -> None:
        # It stays in line until it has looked, so that nobody overtakes it meanwhile.
        if self._waiters and not self._waiters[0].done():
            self._waiters[0].set_result(None)

    # Connections

    async def _serve(self, address: str) -> None:
        connection = await open_connection(address, self.config)
        connection.on_room = self._wake_first
        self._pool.errors.pop(address, None)
        self._links.append(connection)
        self._wake_first()
        try:
            await connection.ended()
        finally:
            self._links.remove(connection)
            connection.fail(ClosedError("closed by the producer"))
            self._wake_first()

    # Life

    async def __aenter__(self) -> Self:
        """Start; connections are made in the background."""
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        await self.close()

    def start(self) -> None:
        """Begin to connect; publishing does so by itself.

        Raises:
            ClosedError: the producer is closed.
        """
        if self._closed:
            raise ClosedError(CLOSED)
        if self._asking is None:
            self._asking = background(self._discovery.run(self._pool.update), "discovery")
            self._pool.start()

    async def close(self) -> None:
        """Wait for publishes under way, ``stop_timeout`` seconds at most, and disconnect."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.stop_timeout):
                while self._under_way:
                    self._idle.clear()
                    await self._idle.wait()
        self._ended = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._pool.close()
        self._wake_first()

    @property
    def connections(self) -> list[str]:
        """The nsqds that are connected, as ``host:port``."""
        return [link.address for link in self._links if link.live]

    @property
    def errors(self) -> dict[str, str]:
        """Why there is no connection to an nsqd, for each that should have one and has none."""
        return dict(self._pool.errors)


_is_topic = lru_cache(maxsize=1024)(is_valid_name)


def _check(topic: str, bodies: Sequence[bytes]) -> None:
    """Hold back what nsqd would answer by ending the connection that others use too."""
    if not _is_topic(topic):
        raise ValueError(f"topic name {quote(topic)} is not valid")
    if not bodies or not all(bodies):
        raise ValueError("a message has at least one byte" if bodies else "no messages")


def _note_unanswered(error: RemoteError, publish: _Publish) -> None:
    if publish.unanswered:
        error.add_note(f"{publish.unanswered} earlier sends had no answer: it may be stored")
