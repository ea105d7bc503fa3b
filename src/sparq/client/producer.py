"""The producer: publishes to one of several nsqds and awaits its OK.

Outcomes:

1. A publish is complete when nsqd has answered OK, not when its bytes have been sent.
2. Publishes of any number of tasks share the connections, without waiting for one another.
3. A publish without an answer is sent again when its connection is lost; to another nsqd if there
   is one. The message may then be stored twice; the client cannot know. ``Receipt.resent`` counts
   such sends of one publish, ``Producer.resent`` of all.
   A send that certainly was not stored does not count.
4. A command is checked before it is sent: nsqd closes the connection after an invalid command, and
   other publishes share that connection.

Which nsqd gets a publish:

1. Connected nsqds are used in turn. Unacknowledged bytes are bounded per nsqd by
   ``max_pending_bytes``; further publishes wait in one queue, first in, first out.
2. A publish is sent again if its connection is lost before the answer, or if it certainly was not
   executed. ``publish_attempts`` limits the sends; those that failed because of another publish do
   not count.
3. An nsqd that refuses to store a publish (disk full) is skipped for that publish; the publish
   fails once every connected nsqd has refused. When authd fails while nsqd renews a permission
   (E_AUTH_FAILED), the publish is sent again and the client reconnects. Any other refusal fails
   the publish at once.
4. A publish whose connection was lost twice is sent alone until it is answered. Go's nsqd resets
   the connection when a message is too large and more data follow: sent alone, such a publish takes
   no other down with it, and gets the error.
5. A stopped process, or a network that drops packets, leaves a socket open. A connection is silent
   if an answer is due and nothing at all has arrived for ``SILENT_SECONDS``. It is skipped while
   another one is not silent. After ``write_timeout``, or half of ``publish_timeout`` if that is
   less, it is closed if another one answers, and its publishes are sent there.
6. A draining nsqd is skipped while another one is connected, or wanted but not yet connected: as
   long as an nsqlookupd lists it as draining, or for ``RETRY_SECONDS`` after it has refused a
   publish for that reason; then one publish tries it again. A publish that it refuses goes to the
   next nsqd at once and does not count as an attempt, since it certainly was not stored. Without
   another nsqd, the publish fails with that refusal.
7. A publish that is sent once and answered has no task and no timer of its own. One that waits in
   the queue or is sent again has a timer for its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Self

from sparq.client.arguments import check_delay, check_name
from sparq.client.config import Config, milliseconds
from sparq.client.connection import OK, STORAGE_REFUSALS, Connection, open_connection
from sparq.client.discovery import FAILURES, Connecting, Filter, background
from sparq.client.errors import (
    ClosedError,
    ConnectionLostError,
    ProducerFullError,
    PublishError,
    WrongPeerError,
    reason_of,
)
from sparq.client.log_fields import FieldLogger
from sparq.protocol import commands
from sparq.protocol.errors import DRAINING, RemoteError

log = FieldLogger(__name__)

BODY_BYTES_MAX: Final = 2**31 - 1
"""The protocol's size limit; nsqd's own limits (--max-msg-size, --max-body-size) are lower."""

CLOSED: Final = "the producer is closed"
LATE: Final = "publish timed out (publish_timeout or timeout_seconds)"
TRIED: Final = "publish failed, no OK within publish_attempts"

SUSPECT: Final = 2
"""A publish with this many unanswered sends is sent alone. One is usual when an nsqd dies."""

CHECK_SECONDS: Final = 0.25
"""Interval between two checks for silent connections."""

SILENT_SECONDS: Final = 0.25
RETRY_SECONDS: Final = 5.0
LISTED: Final = float("inf")
"""Until when an nsqd is skipped that an nsqlookupd lists as draining."""


class Receipt(NamedTuple):
    """A publish that nsqd has acknowledged.

    Attributes:
        nsqd: the address of the nsqd that answered OK, ``host:port`` or a path.
        attempts: number of sends.
        resent: number of earlier sends without an answer; each may have been stored as well.
    """

    nsqd: str
    attempts: int = 1
    resent: int = 0


OnDone = Callable[[Receipt | Exception], object]


class Callback:
    """Passes an outcome to a function, at once; its exceptions go to the loop's handler.

    A future's callbacks would run in the next loop iteration, which costs a publish of the blocking
    API a third more CPU.
    """

    __slots__ = ("_call", "_is_done")

    def __init__(self, call: OnDone) -> None:
        self._call = call
        self._is_done = False

    def done(self) -> bool:
        """Whether the function was called."""
        return self._is_done

    def set_result(self, outcome: Receipt | Exception) -> None:
        """Call the function."""
        self._is_done = True
        try:
            if (left := self._call(outcome)) is not None and asyncio.iscoroutine(left):
                left.close()  # otherwise Python warns as well that it was never awaited
                raise TypeError("on_done is called, not awaited: use a function that is not async")
        except Exception as error:
            # A failing callback must not stop the callbacks of later answers.
            context = {"message": f"publish_nowait: {self._call!r} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    set_exception = set_result


class PendingPublish:
    """One publish without an outcome yet.

    Attributes:
        command: the bytes to send.
        message_count: number of messages that it publishes.
        outcome: gets the receipt or the error, once; done before: its caller was cancelled.
        deadline: when it is given up; loop time.
        is_sent: whether nsqd has it, so that an answer is due; else it waits to be sent.
        attempts: number of sends.
        spared: number of sends that nsqd certainly did not execute, for reasons outside this
            publish (another command's error, draining).
        unanswered: number of sends without an answer.
        resent: number of sends without an answer that were followed by another send.
        refusal: an nsqd's refusal to store it; another nsqd may accept it.
        refused_by: addresses of the nsqds that refused to store it.
        timer: gives the publish up at its deadline.
    """

    # Class attributes as defaults: they seldom change, and there is one instance per message. Hence
    # no `__slots__`: a slot cannot have a default.
    is_sent = False
    attempts = 0
    spared = 0
    unanswered = 0
    resent = 0
    refusal: RemoteError | None = None
    refused_by: tuple[str, ...] = ()
    timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        command: bytes,
        message_count: int,
        outcome: asyncio.Future[Receipt] | Callback,
        deadline: float,
    ) -> None:
        self.command = command
        self.message_count = message_count
        self.outcome = outcome
        self.deadline = deadline


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
        published: the number of messages acknowledged.
        failed: the number of messages whose publish failed; cancelled publishes do not count.
        resent: the number of messages sent again because an earlier send got no answer: an upper
            limit for the number of messages stored twice.
        under_way: the number of publishes without an outcome yet.

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
        self.published = self.failed = self.resent = self.under_way = 0
        self._closed = self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._links: list[Connection] = []
        self._idle, self._queue_empty = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._queue_empty.set()
        self._turn = 0
        # Not a deque: a cancelled or expired publish leaves the middle of the queue. Not a dict:
        # finding its first entry means to pass all entries deleted before it.
        self._queue: OrderedDict[PendingPublish, None] = OrderedDict()
        self._queue_bytes = 0
        self._check_timer: asyncio.TimerHandle | None = None
        self._draining: dict[str, float] = {}  # until when they are skipped; loop time
        self._lookups.on_draining = self._list_draining

    def __repr__(self) -> str:
        return f"<Producer to {', '.join(sorted(self._wanted)) or 'no nsqd yet'}>"

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
        return await self._outcome(publish_command(topic, body), 1, timeout_seconds)

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
                # If it was sent, it keeps its place among the connection's requests, since nsqd
                # answers it; its outcome is cancelled, so the answer has no effect.
                self._dequeue(publish)
                self._end_publish(publish)
            raise

    def _submit(
        self,
        command: bytes,
        count: int,
        outcome: asyncio.Future[Receipt] | Callback,
        seconds: float | None = None,
    ) -> PendingPublish:
        """Send a publish or queue it."""
        self.start()
        now = asyncio.get_running_loop().time()
        deadline = now + (self.config.publish_timeout if seconds is None else seconds)
        publish = PendingPublish(command, count, outcome, deadline)
        if seconds is not None:
            # Otherwise no timer of its own: the connection checks for `publish_timeout` itself, and
            # a publish that is queued or sent again gets a timer then.
            if not seconds > 0:
                raise ValueError(f"timeout_seconds must be above 0, not {seconds}")
            self._expire_in_time(publish)
        self._idle.clear()
        self.under_way += 1
        self._send_or_queue(publish, now)
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
        limit = self.config.max_pending_bytes
        if self._queue and self._queue_bytes + len(command) > limit:
            raise ProducerFullError(
                f"queue full: {self._queue_bytes} bytes wait to be sent "
                f"(max_pending_bytes {limit}): await drain() first, or await publish() instead"
                + self._reasons()
            )
        self._submit(command, count, Callback(on_done or _log_failure))

    async def drain(self) -> None:
        """Wait until no publish waits to be sent: ``publish_nowait`` then has room again."""
        await self._queue_empty.wait()

    async def flush(self) -> None:
        """Wait until every publish has an outcome, including those started during the wait."""
        while self.under_way:
            await self._idle.wait()

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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._wanted:
                    self._news.clear()
                    await self._news.wait()
        took, reasons = dict[str, float](), dict[str, str]()
        clock = asyncio.get_running_loop().time

        async def ask(address: str) -> None:
            began = clock()
            try:
                async with asyncio.timeout(seconds):
                    connection = await open_connection(address, self.config)
            except FAILURES as error:
                late = f"no answer within {seconds:g} s"
                reasons[address] = late if clock() - began >= seconds else reason_of(error)
                return
            took[address] = clock() - began
            await connection.close()

        await asyncio.gather(*map(ask, self._wanted))
        if not took:
            why = "; ".join(f"{at}: {why}" for at, why in reasons.items())
            raise ConnectionLostError(
                f"no nsqd answers ({why or 'no nsqd is configured or found'})"
            )
        return took

    @property
    def connections(self) -> list[str]:
        """The connected nsqds, as ``host:port``."""
        return [link.address for link in self._links if link.live]

    async def _serve(self, address: str) -> ConnectionLostError:
        link = await open_connection(address, self.config)
        link.on_answers = partial(self._answered, link)
        self._failures.pop(address, None)
        self._note_connected(address, link.facts)
        self._links.append(link)
        self._send_queued()
        try:
            return await link.ended()
        finally:
            self._links.remove(link)
            link.fail(ClosedError("closed by the producer"))

    def _list_draining(self, listed: frozenset[str]) -> None:
        """Set the nsqds that nsqlookupds list as draining now."""
        for address, until in list(self._draining.items()):
            if until == LISTED and address not in listed:
                del self._draining[address]
                log.info("nsqd %s: no longer listed as draining", address, extra={"nsqd": address})
        self._draining.update(dict.fromkeys(listed, LISTED))

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
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ClosedError(CLOSED)
        if self._loop is None:
            self._loop = loop
            self._connect()
            self._check()
        elif loop is not self._loop:
            raise ClosedError(
                "the producer belongs to the event loop in which it was started: make one in each "
                "loop (every asyncio.run starts a new loop)"
            )

    def _require_started(self) -> None:
        self.start()

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
        self._ended = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        while self._queue:
            publish = next(iter(self._queue))
            self._dequeue(publish)
            self._fail_closed(publish)
        await self._disconnect()

    # Answers

    def _answered(
        self, link: Connection, publishes: list[PendingPublish], answer: bytes | Exception
    ) -> None:
        """Handle the same answer to one or more publishes on one connection."""
        if answer == OK:
            self._confirmed(link, publishes)
        else:
            for publish in publishes:
                if not publish.outcome.done():
                    self._failed_once(publish, link, answer)
        self._send_queued()

    def _confirmed(self, link: Connection, publishes: list[PendingPublish]) -> None:
        address = link.address
        if self._draining and self._draining.get(address, LISTED) != LISTED:
            del self._draining[address]
            log.info("nsqd %s accepts publishes again", address, extra={"nsqd": address})
        at_once = Receipt(address)  # shared by those sent once: most need none of their own
        for publish in publishes:
            if publish.outcome.done():
                continue  # cancelled, or failed at its deadline
            self.published += publish.message_count
            if publish.timer is not None:
                publish.timer.cancel()
            # Before the outcome, whose function may publish the next message.
            self.under_way -= 1
            if publish.attempts == 1:
                publish.outcome.set_result(at_once)
            else:
                receipt = Receipt(address, publish.attempts, publish.resent)
                publish.outcome.set_result(receipt)
        if not self.under_way:
            self._idle.set()

    def _failed_once(
        self, publish: PendingPublish, link: Connection, answer: bytes | Exception
    ) -> None:
        """Handle any other answer or a loss: send again, unless the publish is at fault."""
        if isinstance(answer, RemoteError):
            if self._is_final(publish, link, answer):
                self._fail(publish, answer)
                return
        elif isinstance(answer, ConnectionLostError) and answer.executed is False:
            publish.spared += 1
        else:
            publish.unanswered += 1
            if isinstance(answer, bytes):
                text = f"{link.address} answered a publish with {answer[:80]!r}"
                link.fail(WrongPeerError(text))
        publish.is_sent = False
        now = asyncio.get_running_loop().time()
        if self._ended:
            self._fail_closed(publish)
        elif now >= publish.deadline:
            self._fail(publish, self._given_up(publish, LATE))
        elif publish.attempts - publish.spared >= self.config.publish_attempts:
            self._fail(publish, self._given_up(publish, TRIED))
        elif publish.refusal is None:
            self._send_or_queue(publish, now)
        else:
            # Sent even beyond the limit, which is rare: in the queue it could wait for its own
            # refusal.
            others = self._without_draining() or ()
            other = next((each for each in others if each.address not in publish.refused_by), None)
            if other is None:
                self._fail(publish, publish.refusal)
            else:
                self._send(publish, other, now)

    def _is_final(self, publish: PendingPublish, link: Connection, error: RemoteError) -> bool:
        """Note a refusal; return whether no other nsqd would accept the publish."""
        if error.drained:
            publish.spared += 1  # certainly not stored
        if error.drained == DRAINING:
            until = self._draining.get(link.address)
            if until is None:
                text = "nsqd %s is draining: no publishes are sent to it"
                log.info(text, link.address, extra={"nsqd": link.address})
            if until != LISTED:
                self._draining[link.address] = asyncio.get_running_loop().time() + RETRY_SECONDS
            return self._without_draining() is None
        if error.code in STORAGE_REFUSALS:
            # Go's nsqd may have stored the first part of an MPUB.
            partly = error.code == "E_MPUB_FAILED" and "sparq_version" not in link.facts
            publish.unanswered += partly
            publish.refusal = error
            publish.refused_by += (link.address,)
            return False
        return error.code != "E_AUTH_FAILED"

    # Sending

    def _expire_in_time(self, publish: PendingPublish) -> None:
        """Start the timer that fails a publish at its deadline."""
        if publish.timer is None:
            loop = asyncio.get_running_loop()
            publish.timer = loop.call_at(publish.deadline, self._expire, publish)

    def _send_or_queue(self, publish: PendingPublish, now: float) -> None:
        # Never past the queue, even if a connection could take this publish now.
        if self._queue or (link := self._next_link(publish, now)) is None:
            self._expire_in_time(publish)
            self._queue[publish] = None
            self._queue_bytes += len(publish.command)
            self._queue_empty.clear()
        else:
            self._send(publish, link, now)

    def _next_link(self, publish: PendingPublish, now: float) -> Connection | None:
        """Return the next connection in turn that can take a publish; None: it must wait."""
        links = self._links
        if self._draining:
            others = self._without_draining()
            links = links if others is None else others
        limit = self.config.max_pending_bytes - len(publish.command)
        spare: Connection | None = None
        for _ in links:
            self._turn = (self._turn + 1) % len(links)
            link = links[self._turn]
            # An idle connection takes any size: a publish above `max_pending_bytes` would otherwise
            # wait until its deadline.
            if link.live and (not link.waiting or self._has_room(link, publish, limit)):
                if _waited(link, now) < SILENT_SECONDS:
                    return link
                spare = link
        # A full connection that answers can take it sooner than a silent one.
        answering = any(link.live and _waited(link, now) < SILENT_SECONDS for link in links)
        return None if answering else spare

    def _has_room(self, link: Connection, publish: PendingPublish, limit: int) -> bool:
        """Whether a connection with unanswered publishes can take another one."""
        first: PendingPublish = link.waiting[0][2]
        is_reserved = max(first.unanswered, publish.unanswered) >= SUSPECT
        return link.waiting_bytes <= limit and not is_reserved

    def _without_draining(self) -> list[Connection] | None:
        """Return connections to nsqds that do not drain; None: no such nsqd, connected or not."""
        now = asyncio.get_running_loop().time()
        skipped = {address for address, until in self._draining.items() if until > now}
        live = [link for link in self._links if link.live]
        found = [link for link in live if link.address not in skipped]
        known = skipped.union(link.address for link in live)
        return found if found or not known.issuperset(self._wanted) else None

    def _send(self, publish: PendingPublish, link: Connection, now: float) -> None:
        if self._draining and self._draining.get(link.address, LISTED) != LISTED:
            self._draining[link.address] = now + RETRY_SECONDS  # this is the retry
        if publish.unanswered:
            # Counted with the next send, not when a connection is lost: without another send the
            # message cannot be stored twice.
            self.resent += publish.message_count * (publish.unanswered - publish.resent)
            publish.resent = publish.unanswered
        if publish.attempts:
            self._expire_in_time(publish)
        publish.attempts += 1
        publish.is_sent = True
        link.ask(publish.command, publish, now)

    # Silence

    def _check(self) -> None:
        """Close silent connections if another one answers: their publishes are sent there."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        waited = {link: _waited(link, now) for link in self._links if link.live}
        is_answering = min(waited.values(), default=0.0) < SILENT_SECONDS
        limit = max(SILENT_SECONDS, min(self.config.write_timeout, self.config.publish_timeout / 2))
        for link, seconds in waited.items():
            if is_answering and seconds >= limit:
                text = "nsqd %s does not answer: its %d publishes may be stored twice"
                log.warning(text, link.address, len(link.waiting), extra={"nsqd": link.address})
                link.fail(TimeoutError(f"no answer for {seconds:.1f} s"))
        # The end of `RETRY_SECONDS` is no event on any connection, so the queue is tried here.
        if self._draining:
            self._send_queued()
        self._check_timer = loop.call_later(CHECK_SECONDS, self._check)

    # The queue

    def _dequeue(self, publish: PendingPublish) -> None:
        """Remove a publish from the queue, if it is there."""
        if publish in self._queue:
            del self._queue[publish]
            self._queue_bytes -= len(publish.command)
            if not self._queue:
                self._queue_empty.set()

    def _send_queued(self) -> None:
        """Send queued publishes in order, while a connection can take them."""
        while self._queue:
            publish, now = next(iter(self._queue)), asyncio.get_running_loop().time()
            if (link := self._next_link(publish, now)) is None:
                return
            self._dequeue(publish)
            self._send(publish, link, now)

    # Outcomes

    def _end_publish(self, publish: PendingPublish) -> None:
        if publish.timer is not None:
            publish.timer.cancel()
        self.under_way -= 1
        if not self.under_way:
            self._idle.set()

    def _fail(self, publish: PendingPublish, error: Exception) -> None:
        if publish.outcome.done():
            return  # cancelled: `_outcome` ends it
        if isinstance(error, RemoteError) and publish.unanswered:
            error.unanswered = publish.unanswered
            error.add_note(f"{publish.unanswered} earlier sends had no answer and may be stored")
        self.failed += publish.message_count
        publish.outcome.set_exception(error)
        self._end_publish(publish)

    def _fail_closed(self, publish: PendingPublish) -> None:
        failed = f"publish failed, {CLOSED}"
        sent = publish.attempts
        self._fail(publish, self._given_up(publish, failed) if sent else ClosedError(CLOSED))

    def _expire(self, publish: PendingPublish) -> None:
        self._dequeue(publish)
        publish.unanswered += publish.is_sent
        self._fail(publish, self._given_up(publish, LATE))

    def _given_up(self, publish: PendingPublish, why: str) -> PublishError:
        sent = f"sent {publish.attempts} times, {publish.unanswered} without an answer"
        text = f"{why}: {sent}" if publish.attempts else "publish timed out, never sent"
        error = PublishError(
            f"{text}{self._reasons()}",
            attempts=publish.attempts,
            unanswered=publish.unanswered,
        )
        error.__cause__ = publish.refusal
        return error

    def _reasons(self) -> str:
        """Return why nsqds are draining or not connected, in brackets; "" if none is."""
        known = {**dict.fromkeys(self._draining, DRAINING), **self.errors}
        reasons = "; ".join(f"{at}: {why}" for at, why in known.items())
        return f" ({reasons})" if reasons else ""


def _waited(link: Connection, now: float) -> float:
    """Return for how long nothing has arrived on a connection while an answer was due."""
    return now - max(link.waiting[0][0], link.heard_at) if link.waiting else 0.0


def _log_failure(outcome: Receipt | Exception) -> None:
    if isinstance(outcome, Exception):
        log.warning("publish_nowait: %s", outcome)


# Commands: those of `sparq.protocol.commands`, with checks.


def publish_command(topic: str, body: bytes) -> bytes:
    """Build PUB.

    Raises:
        ValueError: the topic name is not valid, or the body is empty or has over 2^31 - 1 bytes.
        TypeError: the body is not bytes.
    """
    _check_topic(topic)
    return commands.pub(topic, _checked(body))


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
    _check_topic(topic)
    messages = list(map(_checked, bodies))
    size = 4 + sum(4 + len(message) for message in messages)
    if size > BODY_BYTES_MAX:
        raise _too_large(size)
    return commands.mpub(topic, messages)


def publish_deferred_command(topic: str, body: bytes, delay_seconds: float) -> bytes:
    """Build DPUB.

    Raises:
        ValueError: as for ``publish_command``, or the delay is negative or too long for nsqd.
        TypeError: the body is not bytes, or the delay is not a number.
    """
    check_delay(delay_seconds)
    _check_topic(topic)
    return commands.dpub(topic, milliseconds(delay_seconds), _checked(body))


@lru_cache(maxsize=1024)
def _check_topic(topic: str) -> None:
    check_name("topic", topic)


def _checked(body: bytes) -> bytes:
    if not isinstance(body, bytes):
        if not isinstance(body, bytearray | memoryview):
            hint = ": encode it" if isinstance(body, str) else ""
            raise TypeError(f"a message must be bytes, not {type(body).__name__}{hint}")
        body = bytes(body)
    if not body:
        raise ValueError("a message must not be empty")
    if len(body) > BODY_BYTES_MAX:
        raise _too_large(len(body))
    return body


def _too_large(size: int) -> ValueError:
    return ValueError(f"{size} bytes do not fit into one command: at most {BODY_BYTES_MAX}")
