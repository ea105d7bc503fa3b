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
4. A publish that had no answer twice is sent alone on its connection until it is answered. Go's
   nsqd resets the connection when a message is too large and more data follow: sent alone, such a
   publish takes no other down with it, and gets the error.
5. A silent connection (`silence`) is skipped while another one is not silent. A publish overdue on
   it is sent on another connection as well. The first OK counts; the receipt counts the other send
   as unanswered. So no publish waits until its deadline for a stopped nsqd, and the receipt shows
   if a message may be stored twice.
6. A draining nsqd (`drained`) is skipped while another one is connected, or wanted but not yet
   connected. A publish that it refuses goes to the next nsqd at once and does not count as an
   attempt, since it certainly was not stored. Without another nsqd, the publish fails with that
   refusal.
7. A publish that is sent once and answered has no task and no timer of its own. One that waits in
   the queue or is sent again has a timer for its deadline.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sparq.client.config import Config
from sparq.client.connection import STORAGE_REFUSALS
from sparq.client.drained import Drained
from sparq.client.errors import (
    ClosedError,
    ConnectionLostError,
    ProducerFullError,
    PublishError,
    WrongPeerError,
)
from sparq.client.log_fields import FieldLogger
from sparq.client.publish import PendingPublish, Receipt, ResentPublish
from sparq.client.requests import PendingRequest
from sparq.client.silence import CHECK_SECONDS, SilenceDetector
from sparq.protocol.errors import DRAINING, RemoteError

if TYPE_CHECKING:
    from sparq.client.connection import Connection

log = FieldLogger(__name__)

CLOSED: Final = "the producer is closed"
LATE: Final = "publish timed out (publish_timeout or timeout_seconds)"
TRIED: Final = "publish failed, no OK within publish_attempts"

SUSPECT: Final = 2
"""A publish with this many unanswered sends is sent alone. One is usual when an nsqd dies."""


class Dispatcher:
    """Sends publishes on connections until each has an outcome.

    Attributes:
        links: the current connections; one that is not ``live`` gets no publishes.
        published: number of messages acknowledged.
        failed: number of messages whose publish failed permanently.
        resent: number of messages sent again because an earlier send got no answer.
        under_way: number of publishes without an outcome.
        lone: whether the last confirmed publish was the only one pending.
        idle: set while no publish is pending.
        linked: set once there has been a connection.
        queue_empty: set while no publish waits to be sent.
        drained: the draining nsqds, which are skipped.
    """

    def __init__(
        self,
        config: Config,
        errors: Mapping[str, str],
        drained: Drained | None = None,
        wanted: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Initialize; ``wanted`` returns the addresses that are connected or being connected to."""
        self.links: list[Connection] = []
        self.published = 0
        self.failed = 0
        self.resent = 0
        self.under_way = 0
        self.lone = False
        self.idle = asyncio.Event()
        self.linked = asyncio.Event()
        self.queue_empty = asyncio.Event()
        self.drained = drained if drained is not None else Drained()
        self._wanted = wanted
        self.idle.set()
        self.queue_empty.set()
        self._config = config
        self._errors = errors
        self._turn = 0
        # Not a deque: a cancelled or expired publish leaves the middle of the queue. Not a dict:
        # finding its first entry means to pass all entries deleted before it.
        self._queue: OrderedDict[PendingPublish, None] = OrderedDict()
        self._queue_bytes = 0
        # One receipt per connection, shared by all publishes that were sent once: most publishes
        # need no receipt of their own.
        self._receipts: dict[str, Receipt] = {}
        self._taken: set[Connection] = set()  # each reserved for one suspect until it is idle
        self._silence = SilenceDetector(config.write_timeout)
        self._silence_timer: asyncio.TimerHandle | None = None
        self._ended = False

    # Called by a producer

    def submit(self, publish: PendingPublish) -> None:
        """Send a publish or queue it; its sink gets the outcome."""
        publish.dispatcher = self
        if not self.under_way:
            self.idle.clear()
            # Only while publishes are pending: nothing can be overdue in an idle producer.
            if self._silence_timer is None:
                self._check_silence_later()
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
        # its sink is done, so the answer has no effect.
        if publish in self._queue:
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
        self._receipts[link.address] = Receipt(link.address)
        self.send_queued()

    def remove(self, link: Connection) -> None:
        """Remove a lost connection."""
        self.links.remove(link)
        self._taken.discard(link)
        self._silence.forget(link)
        del self._receipts[link.address]

    def end(self) -> None:
        """Stop sending; publishes still queued fail."""
        self._ended = True
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        while self._queue:
            publish = next(iter(self._queue))
            self._dequeue(publish)
            self._dispatch(publish)

    # Called by a connection

    def confirmed(self, publishes: Sequence[PendingPublish]) -> None:
        """Handle OK for publishes on one connection."""
        link = publishes[0].link
        assert link is not None
        at_once = self._receipts[link.address]
        # Set before the loop: it lowers `under_way`, and a task that it resumes reads `lone`.
        self.lone = self.under_way == 1
        if self.drained:
            self.drained.took(link.address)
        for publish in publishes:
            if publish.sink.done():
                continue  # cancelled, or failed at its deadline
            self.published += publish.message_count
            if publish.timer is not None:
                publish.timer.cancel()
            # Before the sink runs: it may publish the next message, which is then lone, too.
            self.under_way -= 1
            if publish.attempts == 1:
                publish.sink.set_result(at_once)
            else:
                publish.sink.set_result(Receipt(link.address, publish.attempts, publish.resent))
        if not self.under_way:
            self.idle.set()

    def confirmed_late(self, publish: PendingPublish, address: str) -> None:
        """Handle OK from the first nsqd, after the publish was sent to another one as well."""
        if publish in self._queue:
            self._dequeue(publish)
        self.published += publish.message_count
        publish.sink.set_result(Receipt(address, publish.attempts, publish.resent))
        self._end_publish(publish)

    def misunderstood(self, publish: PendingPublish, data: bytes) -> None:
        """Close a connection whose peer is not an nsqd, and send the publish again."""
        link = publish.link
        assert link is not None
        # This request is no longer among the connection's: the loss does not fail it a second time.
        link.fail(WrongPeerError(f"{link.address} answered a publish with {data[:80]!r}"))
        self._unanswered(publish)

    def failed_one(self, publish: PendingPublish, error: Exception) -> None:
        """Handle a refusal or a lost connection: send again, unless the publish is at fault."""
        if isinstance(error, RemoteError):
            self._refused(publish, error)
        elif isinstance(error, ConnectionLostError) and error.executed is False:
            publish.spared += 1
            self._send_again(publish)
        else:
            self._unanswered(publish)

    def _unanswered(self, publish: PendingPublish) -> None:
        """Send again a publish that may be stored or not."""
        publish.unanswered += 1
        self._send_again(publish)

    def _refused(self, publish: PendingPublish, error: RemoteError) -> None:
        link = publish.link
        assert link is not None
        if error.drained:
            publish.spared += 1  # certainly not stored
        if error.drained == DRAINING:
            self.drained.refused(link.address, asyncio.get_running_loop().time())
            if self._without_drained() is None:
                self._fail(publish, _with_doubt(error, publish))
                return
        elif error.code in STORAGE_REFUSALS:
            # Go's nsqd may have stored the first part of an MPUB.
            partly = error.code == "E_MPUB_FAILED" and "sparq_version" not in link.facts
            publish.unanswered += partly
            publish.refusal = error
            publish.refused_by += (link.address,)
        elif error.code != "E_AUTH_FAILED":
            self._fail(publish, _with_doubt(error, publish))
            return
        self._send_again(publish)

    def _send_again(self, publish: PendingPublish) -> None:
        publish.link = None
        tried = publish.attempts - publish.spared
        late = asyncio.get_running_loop().time() >= publish.deadline
        if late or tried >= self._config.publish_attempts:
            self._fail(publish, self._given_up(publish, LATE if late else TRIED))
        else:
            self.expire_in(publish)
            self._dispatch(publish)

    # Sending

    def _dispatch(self, publish: PendingPublish) -> None:
        """Send, queue or fail a publish that was queued or sent before."""
        if self._ended:
            sent = publish.attempts
            failed = f"publish failed, {CLOSED}"
            self._fail(publish, self._given_up(publish, failed) if sent else ClosedError(CLOSED))
        elif publish.refusal is not None:
            self._dispatch_refused(publish, publish.refusal)
        elif (link := self._next_link(publish)) is not None:
            self._send_late(publish, link)
        else:
            self._enqueue(publish)

    def _dispatch_refused(self, publish: PendingPublish, refusal: RemoteError) -> None:
        # Sent even beyond the limit, which is rare: in the queue it could wait for its own refusal.
        for link in self._without_drained() or ():
            if link.address not in publish.refused_by:
                self._send_late(publish, link)
                return
        self._fail(publish, _with_doubt(refusal, publish))

    def _next_link(self, publish: PendingPublish) -> Connection | None:
        """Return the next connection in turn that can take a publish; None: it must wait."""
        links, taken, silent = self.links, self._taken, self._silence.links
        if self.drained:
            undrained = self._without_drained()
            links = links if undrained is None else undrained
        limit = self._config.max_pending_bytes - publish.size
        # With limit 0, only an idle connection will do. Moved sends do not count: their connection
        # was silent, not lost, so they do not suggest that this publish makes nsqd reset
        # connections.
        if publish.unanswered - publish.moved >= SUSPECT:
            limit = 0
        spare: Connection | None = None
        for _ in links:
            self._turn = (self._turn + 1) % len(links)
            link = links[self._turn]
            used = link.requests.size
            # An idle connection takes any size: a publish above `max_pending_bytes` would otherwise
            # wait until its deadline.
            if link.live and (not used or (used <= limit and link not in taken)):
                if not silent or link not in silent:
                    return link
                spare = link
        # A full connection that answers can take it sooner than a silent one.
        return None if any(link.live and link not in silent for link in links) else spare

    def _without_drained(self) -> list[Connection] | None:
        """Return connections to nsqds that do not drain; None: no such nsqd, connected or not."""
        now, has = asyncio.get_running_loop().time(), self.drained.has
        live = [link for link in self.links if link.live]
        found = [link for link in live if not has(link.address, now)]
        connected = {link.address for link in live}
        if found or any(at not in connected and not has(at, now) for at in self._wanted()):
            return found
        return None

    def _send(self, publish: PendingPublish, link: Connection) -> None:
        if self.drained:
            self.drained.sent(link.address, asyncio.get_running_loop().time())
        if publish.unanswered or self._taken:
            self._note_doubt(publish, link)
        publish.attempts += 1
        publish.link = link
        link.ask(publish.command, publish)

    def _send_late(self, publish: PendingPublish, link: Connection) -> None:
        publish.asked_at = asyncio.get_running_loop().time()
        self._send(publish, link)

    def _note_doubt(self, publish: PendingPublish, link: Connection) -> None:
        # Counted with the next send, not when a connection is lost: without another send the
        # message cannot be stored twice.
        self.resent += publish.message_count * (publish.unanswered - publish.resent)
        publish.resent = publish.unanswered
        if publish.unanswered - publish.moved >= SUSPECT:
            self._taken.add(link)
        else:
            self._taken.discard(link)

    # Silence

    def _check_silence_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._silence_timer = loop.call_later(CHECK_SECONDS, self._check_silence)

    def _check_silence(self) -> None:
        now = asyncio.get_running_loop().time()
        self._silence.check(self.links, now)
        for link in self._silence.links:
            self._move_overdue(link, now)
        # The end of `RETRY_SECONDS` is no event on any connection, so the queue is tried here.
        if self.drained:
            self.send_queued()
        if self.under_way:
            self._check_silence_later()
        else:
            self._silence_timer = None

    def _move_overdue(self, silent: Connection, now: float) -> None:
        """Send publishes that are overdue on a silent connection on other ones as well."""
        moved: dict[PendingRequest, PendingRequest] = {}
        for publish in self._silence.overdue(silent, now):
            link = self._next_link(publish)
            if link is None or link in self._silence.links:
                break
            if publish.attempts - publish.spared < self._config.publish_attempts:
                moved[publish] = ResentPublish(publish, silent)
                publish.unanswered += 1
                publish.moved += 1
                self.expire_in(publish)
                self._send_late(publish, link)
        if moved:
            # The silent nsqd may still answer, in order: a substitute keeps each place, and a late
            # OK counts.
            silent.requests.replace(moved)
            text = (
                "nsqd %s does not answer: %d publishes were also sent to other nsqds "
                "and may be stored twice"
            )
            log.warning(text, silent.address, len(moved), extra={"nsqd": silent.address})

    # The queue

    def _enqueue(self, publish: PendingPublish) -> None:
        self.expire_in(publish)
        self._queue[publish] = None
        self._queue_bytes += publish.size
        self.queue_empty.clear()

    def _dequeue(self, publish: PendingPublish) -> None:
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
            self._send_late(publish, link)

    # Outcomes

    def _end_publish(self, publish: PendingPublish) -> None:
        # After the sink ran: if it has published the next message, ``idle`` stays unset.
        if publish.timer is not None:
            publish.timer.cancel()
        self.under_way -= 1
        if not self.under_way:
            self.idle.set()

    def _fail(self, publish: PendingPublish, error: Exception) -> None:
        if publish.sink.done():
            return  # as in `_expire`: `forget` follows, and ends it
        self.failed += publish.message_count
        publish.sink.set_exception(error)
        self._end_publish(publish)

    def _expire(self, publish: PendingPublish) -> None:
        if publish.sink.done():
            return  # its task was cancelled in this loop iteration
        if publish in self._queue:
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
        known = {**dict.fromkeys(self.drained, DRAINING), **self._errors}
        reasons = "; ".join(f"{at}: {why}" for at, why in known.items())
        return f" ({reasons})" if reasons else ""


def _with_doubt(error: RemoteError, publish: PendingPublish) -> RemoteError:
    error.unanswered = publish.unanswered
    if publish.unanswered:
        error.add_note(f"{publish.unanswered} earlier sends had no answer and may be stored")
    return error
