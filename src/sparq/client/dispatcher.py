"""Choose the nsqd for each publish, and the next one if that one does not accept it.

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
   another one is not silent. A publish that has waited there for half of its time, or for
   ``write_timeout`` if that is less, is sent on another connection as well: it may be stored twice.
   The first OK counts, and the receipt counts the other send as unanswered.
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
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sparq.client.config import Config
from sparq.client.connection import OK, STORAGE_REFUSALS, Connection, Request
from sparq.client.errors import (
    ClosedError,
    ConnectionLostError,
    ProducerFullError,
    PublishError,
    WrongPeerError,
)
from sparq.client.log_fields import FieldLogger
from sparq.protocol.errors import DRAINING, RemoteError

log = FieldLogger(__name__)

CLOSED: Final = "the producer is closed"
LATE: Final = "publish timed out (publish_timeout or timeout_seconds)"
TRIED: Final = "publish failed, no OK within publish_attempts"

SUSPECT: Final = 2
"""A publish that lost this many connections is sent alone. One is usual when an nsqd dies."""

CHECK_SECONDS: Final = 0.05
"""Interval between two checks for silent connections, while any publish is pending."""

SILENT_SECONDS: Final = 0.25
MOVED_MAX: Final = 1_000
"""Publishes moved from a silent connection per check, so as not to block the event loop."""

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


class PendingPublish(Request):
    """One publish without an outcome yet.

    Attributes:
        dispatcher: sends it and handles nsqd's answers.
        command: the bytes to send.
        message_count: number of messages that it publishes.
        outcome: gets the receipt or the error, once; done before: its caller was cancelled.
        asked_at: when it was last sent, or submitted; loop time.
        deadline: when it is given up; loop time.
        link: the connection of the last send; None: it waits to be sent.
        attempts: number of sends.
        spared: number of sends that nsqd certainly did not execute, for reasons outside this
            publish (another command's error, draining).
        unanswered: number of sends without an answer.
        losses: number of those that ended with their connection.
        resent: number of sends without an answer that were followed by another send.
        refusal: an nsqd's refusal to store it; another nsqd may accept it.
        refused_by: addresses of the nsqds that refused to store it.
        timer: gives the publish up at its deadline.
    """

    dispatcher: Dispatcher

    # Class attributes as defaults: they seldom change, and there is one instance per message. Hence
    # no `__slots__`, unlike in the other requests: a slot cannot have a default.
    link: Connection | None = None
    attempts = 0
    spared = 0
    unanswered = 0
    losses = 0
    resent = 0
    refusal: RemoteError | None = None
    refused_by: tuple[str, ...] = ()
    timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        command: bytes,
        message_count: int,
        outcome: asyncio.Future[Receipt] | Callback,
        asked_at: float,
        deadline: float,
    ) -> None:
        self.command = command
        self.size = len(command)
        self.message_count = message_count
        self.outcome = outcome
        self.asked_at = asked_at
        self.deadline = deadline

    def answered(self, link: Connection, answer: bytes | Exception) -> None:
        """Pass the answer to the dispatcher, unless the publish has an outcome already."""
        if answer == OK:
            self.dispatcher.confirmed(link, (self,))
        # Else it was sent on another connection, whose answer decides.
        elif self.link is link and not self.outcome.done():
            self.dispatcher.failed_once(self, link, answer)

    @staticmethod
    def confirmed(link: Connection, requests: Sequence[PendingPublish]) -> None:
        """Pass the OKs to the dispatcher."""
        requests[0].dispatcher.confirmed(link, requests)


class Dispatcher:
    """Sends publishes on connections until each has an outcome.

    Attributes:
        links: the current connections; one that is not ``live`` gets no publishes.
        published: number of messages acknowledged.
        failed: number of messages whose publish failed permanently.
        resent: number of messages sent again because an earlier send got no answer.
        under_way: number of publishes without an outcome.
        idle: set while no publish is pending.
        linked: set once there has been a connection.
        queue_empty: set while no publish waits to be sent.
    """

    def __init__(
        self, config: Config, errors: Mapping[str, str], wanted: Callable[[], Iterable[str]]
    ) -> None:
        """Initialize.

        Args:
            config: the options.
            errors: why nsqds are not connected, by address.
            wanted: returns the addresses that are connected or being connected to.
        """
        self.links: list[Connection] = []
        self.published = self.failed = self.resent = self.under_way = 0
        self.idle, self.linked, self.queue_empty = (asyncio.Event() for _ in range(3))
        self.idle.set()
        self.queue_empty.set()
        self._config = config
        self._errors = errors
        self._wanted = wanted
        self._turn = 0
        # Not a deque: a cancelled or expired publish leaves the middle of the queue. Not a dict:
        # finding its first entry means to pass all entries deleted before it.
        self._queue: OrderedDict[PendingPublish, None] = OrderedDict()
        self._queue_bytes = 0
        self._silent: set[Connection] = set()
        self._checked_at = 0.0
        self._check_timer: asyncio.TimerHandle | None = None
        self._draining: dict[str, float] = {}  # until when they are skipped; loop time
        self._ended = False

    # Called by a producer

    def submit(self, publish: PendingPublish) -> None:
        """Send a publish or queue it."""
        publish.dispatcher = self
        if not self.under_way:
            self.idle.clear()
            # Only while publishes are pending: nothing can be overdue in an idle producer.
            if self._check_timer is None:
                self._checked_at = publish.asked_at
                self._check_later()
        self.under_way += 1
        # Never past the queue, even if a connection could take this publish now.
        if self._queue or (link := self._next_link(publish)) is None:
            self._enqueue(publish)
        else:
            self._send(publish, link)

    def require_queue_space(self, size: int) -> None:
        """Check that the queue can take a command of ``size`` bytes (``publish_nowait``).

        Raises:
            ProducerFullError: the queue is not empty, and the command would exceed its limit.
        """
        limit = self._config.max_pending_bytes
        if self._queue and self._queue_bytes + size > limit:
            raise ProducerFullError(
                f"queue full: {self._queue_bytes} bytes wait to be sent "
                f"(max_pending_bytes {limit}): await drain() first, or await publish() instead"
                + self._reasons()
            )

    def forget(self, publish: PendingPublish) -> None:
        """Drop a publish whose caller was cancelled."""
        # If it was sent, it keeps its place among the connection's requests, since nsqd answers it;
        # its outcome is cancelled, so the answer has no effect.
        self._dequeue(publish)
        self._end_publish(publish)

    def expire_in(self, publish: PendingPublish) -> None:
        """Start the timer that fails a publish at its deadline."""
        if publish.timer is None:
            loop = asyncio.get_running_loop()
            publish.timer = loop.call_at(publish.deadline, self._expire, publish)

    def add(self, link: Connection) -> None:
        """Add a connection, and send queued publishes on it."""
        self.links.append(link)
        self.linked.set()
        self.send_queued()

    def remove(self, link: Connection) -> None:
        """Remove a lost connection."""
        self.links.remove(link)
        self._silent.discard(link)

    def list_draining(self, listed: frozenset[str]) -> None:
        """Set the nsqds that nsqlookupds list as draining now."""
        for address, until in list(self._draining.items()):
            if until == LISTED and address not in listed:
                del self._draining[address]
                log.info("nsqd %s: no longer listed as draining", address, extra={"nsqd": address})
        self._draining.update(dict.fromkeys(listed, LISTED))

    def end(self) -> None:
        """Stop sending; publishes still queued fail."""
        self._ended = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        while self._queue:
            publish = next(iter(self._queue))
            self._dequeue(publish)
            self._dispatch(publish)

    # Answers

    def confirmed(self, link: Connection, publishes: Sequence[PendingPublish]) -> None:
        """Handle OK for publishes on one connection."""
        address = link.address
        if self._draining and self._draining.get(address, LISTED) != LISTED:
            del self._draining[address]
            log.info("nsqd %s accepts publishes again", address, extra={"nsqd": address})
        at_once = Receipt(address)  # shared by those sent once: most need none of their own
        for publish in publishes:
            if publish.outcome.done():
                continue  # cancelled, failed at its deadline, or confirmed by another nsqd
            if publish.link is not link:  # it was silent; the publish may be queued for another
                self._dequeue(publish)
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
            self.idle.set()

    def failed_once(
        self, publish: PendingPublish, link: Connection, answer: bytes | Exception
    ) -> None:
        """Handle any other answer or a loss: send again, unless the publish is at fault."""
        if isinstance(answer, bytes):
            # This request is no longer among the connection's: the loss does not fail it once more.
            link.fail(WrongPeerError(f"{link.address} answered a publish with {answer[:80]!r}"))
        elif isinstance(answer, RemoteError):
            self._refused(publish, link, answer)
            return
        elif isinstance(answer, ConnectionLostError) and answer.executed is False:
            publish.spared += 1
            self._send_again(publish)
            return
        publish.unanswered += 1
        publish.losses += 1
        self._send_again(publish)

    def _refused(self, publish: PendingPublish, link: Connection, error: RemoteError) -> None:
        if error.drained:
            publish.spared += 1  # certainly not stored
        is_final = False
        if error.drained == DRAINING:
            until = self._draining.get(link.address)
            if until is None:
                text = "nsqd %s is draining: no publishes are sent to it"
                log.info(text, link.address, extra={"nsqd": link.address})
            if until != LISTED:
                self._draining[link.address] = asyncio.get_running_loop().time() + RETRY_SECONDS
            is_final = self._without_draining() is None
        elif error.code in STORAGE_REFUSALS:
            # Go's nsqd may have stored the first part of an MPUB.
            partly = error.code == "E_MPUB_FAILED" and "sparq_version" not in link.facts
            publish.unanswered += partly
            publish.refusal = error
            publish.refused_by += (link.address,)
        else:
            is_final = error.code != "E_AUTH_FAILED"
        if is_final:
            self._fail(publish, error)
        else:
            self._send_again(publish)

    def _send_again(self, publish: PendingPublish) -> None:
        publish.link = None
        late = asyncio.get_running_loop().time() >= publish.deadline
        if late or not self._has_attempts(publish):
            self._fail(publish, self._given_up(publish, LATE if late else TRIED))
        else:
            self.expire_in(publish)
            self._dispatch(publish)

    def _has_attempts(self, publish: PendingPublish) -> bool:
        return publish.attempts - publish.spared < self._config.publish_attempts

    # Sending

    def _dispatch(self, publish: PendingPublish) -> None:
        """Send, queue or fail a publish that was queued or sent before."""
        if self._ended:
            failed = f"publish failed, {CLOSED}"
            sent = publish.attempts
            self._fail(publish, self._given_up(publish, failed) if sent else ClosedError(CLOSED))
        elif publish.refusal is not None:
            # Sent even beyond the limit, which is rare: in the queue it could wait for its own
            # refusal.
            for other in self._without_draining() or ():
                if other.address not in publish.refused_by:
                    self._send(publish, other, is_late=True)
                    return
            self._fail(publish, publish.refusal)
        elif (link := self._next_link(publish)) is not None:
            self._send(publish, link, is_late=True)
        else:
            self._enqueue(publish)

    def _next_link(self, publish: PendingPublish) -> Connection | None:
        """Return the next connection in turn that can take a publish; None: it must wait."""
        links, silent = self.links, self._silent
        if self._draining:
            others = self._without_draining()
            links = links if others is None else others
        limit = self._config.max_pending_bytes - publish.size
        spare: Connection | None = None
        for _ in links:
            self._turn = (self._turn + 1) % len(links)
            link = links[self._turn]
            # An idle connection takes any size: a publish above `max_pending_bytes` would otherwise
            # wait until its deadline.
            if link.live and (not link.waiting or self._has_room(link, publish, limit)):
                if link not in silent:
                    return link
                spare = link
        # A full connection that answers can take it sooner than a silent one.
        return None if any(link.live and link not in silent for link in links) else spare

    def _has_room(self, link: Connection, publish: PendingPublish, limit: int) -> bool:
        """Whether a connection with unanswered publishes can take another one."""
        _, first = link.waiting[0]
        is_reserved = isinstance(first, PendingPublish) and first.losses >= SUSPECT
        return link.waiting_bytes <= limit and publish.losses < SUSPECT and not is_reserved

    def _without_draining(self) -> list[Connection] | None:
        """Return connections to nsqds that do not drain; None: no such nsqd, connected or not."""
        now = asyncio.get_running_loop().time()
        skipped = {address for address, until in self._draining.items() if until > now}
        live = [link for link in self.links if link.live]
        found = [link for link in live if link.address not in skipped]
        known = skipped.union(link.address for link in live)
        return found if found or not known.issuperset(self._wanted()) else None

    def _send(self, publish: PendingPublish, link: Connection, *, is_late: bool = False) -> None:
        if is_late:
            publish.asked_at = asyncio.get_running_loop().time()
        if self._draining and self._draining.get(link.address, LISTED) != LISTED:
            self._draining[link.address] = publish.asked_at + RETRY_SECONDS  # this is the retry
        if publish.unanswered:
            # Counted with the next send, not when a connection is lost: without another send the
            # message cannot be stored twice.
            self.resent += publish.message_count * (publish.unanswered - publish.resent)
            publish.resent = publish.unanswered
        publish.attempts += 1
        publish.link = link
        link.ask(publish.command, publish, publish.asked_at)

    # Silence

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._check_timer = loop.call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Note which connections are silent, and send the overdue publishes on them elsewhere."""
        now = asyncio.get_running_loop().time()
        # Not after a late timer: this program was blocked, and has not read what has arrived.
        if now - self._checked_at <= 2 * CHECK_SECONDS:
            self._silent = {
                link
                for link in self.links
                if link.live and link.waiting
                if now - max(link.waiting[0][0], link.heard_at) >= SILENT_SECONDS
            }
        self._checked_at = now
        for link in self._silent:
            self._move_overdue(link, now)
        # The end of `RETRY_SECONDS` is no event on any connection, so the queue is tried here.
        if self._draining:
            self.send_queued()
        self._check_timer = None
        if self.under_way:
            self._check_later()

    def _move_overdue(self, silent: Connection, now: float) -> None:
        """Send publishes that are overdue on a silent connection on other ones as well."""
        moved = 0
        for asked_at, publish in list(silent.waiting):
            if not isinstance(publish, PendingPublish) or publish.link is not silent:
                continue
            waited = now - max(asked_at, silent.heard_at)
            half = (publish.deadline - asked_at) / 2
            if publish.outcome.done() or waited < min(self._config.write_timeout, half):
                continue
            other = self._next_link(publish)
            if other is None or other in self._silent or moved == MOVED_MAX:
                break
            if self._has_attempts(publish):
                moved += 1
                publish.unanswered += 1
                self.expire_in(publish)
                # It keeps its place on the silent connection, which may still answer, in order.
                self._send(publish, other, is_late=True)
        if moved:
            text = (
                "nsqd %s does not answer: %d publishes were also sent to other nsqds "
                "and may be stored twice"
            )
            log.warning(text, silent.address, moved, extra={"nsqd": silent.address})

    # The queue

    def _enqueue(self, publish: PendingPublish) -> None:
        self.expire_in(publish)
        self._queue[publish] = None
        self._queue_bytes += publish.size
        self.queue_empty.clear()

    def _dequeue(self, publish: PendingPublish) -> None:
        """Remove a publish from the queue, if it is there."""
        if publish in self._queue:
            del self._queue[publish]
            self._queue_bytes -= publish.size
            if not self._queue:
                self.queue_empty.set()

    def send_queued(self) -> None:
        """Send queued publishes in order, while a connection can take them."""
        while self._queue:
            publish = next(iter(self._queue))
            if (link := self._next_link(publish)) is None:
                return
            self._dequeue(publish)
            self._send(publish, link, is_late=True)

    # Outcomes

    def _end_publish(self, publish: PendingPublish) -> None:
        if publish.timer is not None:
            publish.timer.cancel()
        self.under_way -= 1
        if not self.under_way:
            self.idle.set()

    def _fail(self, publish: PendingPublish, error: Exception) -> None:
        if publish.outcome.done():
            return  # cancelled: `forget` follows, and ends it
        if isinstance(error, RemoteError) and publish.unanswered:
            error.unanswered = publish.unanswered
            error.add_note(f"{publish.unanswered} earlier sends had no answer and may be stored")
        self.failed += publish.message_count
        publish.outcome.set_exception(error)
        self._end_publish(publish)

    def _expire(self, publish: PendingPublish) -> None:
        self._dequeue(publish)
        publish.unanswered += publish.link is not None
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
        known = {**dict.fromkeys(self._draining, DRAINING), **self._errors}
        reasons = "; ".join(f"{at}: {why}" for at, why in known.items())
        return f" ({reasons})" if reasons else ""
