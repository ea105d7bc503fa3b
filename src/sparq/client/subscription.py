"""A subscription: one connection of a consumer.

1. It tracks messages in flight and sends the responses. Messages that arrive together are kept
   together (`ReceivedMessages`) until the program accesses one of them: counting, expiring and
   responding to a thousand messages costs as much as for one.
2. A message expires when its timeout is over: its ``expires_at`` decides, not a timer. A response
   after that is sent, since nsqd may not have noticed yet, but it counts as expired.
3. It reports each response to the consumer (backoff, RDY) *before* it sends the response, so that
   nsqd sees ``RDY 0`` before the ``REQ`` that caused it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from sparq.client.backoff import BackoffSignal
from sparq.client.config import Config, milliseconds
from sparq.client.connection import DONE, Connection
from sparq.client.errors import WrongPeerError
from sparq.client.log_fields import FieldLogger
from sparq.client.message import Message, Respond, Response
from sparq.client.rdy import RdyWindow
from sparq.protocol import commands
from sparq.protocol.dead_letters import unseal
from sparq.protocol.receiver import MessageRun

log = FieldLogger(__name__)

RDY_COUNT_MAX: Final = 2500
"""NSQ's default for ``--max-rdy-count``, if nsqd does not report its own."""

NEVER: Final = float("inf")
GONE: Final = -NEVER

WARN_SECONDS: Final = 60.0


@dataclass(slots=True)
class Counters:
    """Counts of a consumer since its start.

    Attributes:
        received: messages delivered; a redelivery counts again.
        finished: FINs sent in time.
        requeued: REQs sent in time, with or without backoff.
        touched: TOUCHes sent.
        given_up: messages delivered more than ``max_attempts`` times.
        expired: messages without a response in time; nsqd redelivers them.
        lost: messages in flight when their connection was lost; nsqd redelivers them.
    """

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    given_up: int = 0
    expired: int = 0
    lost: int = 0


class ReceivedMessages:
    """Messages of one connection that arrived together and are handled as one unit.

    They are one entry in the consumer's queue: counted, expired and responded to together. ``open``
    makes them separate ``Message`` objects. The attributes are those of `Message`, for all of them;
    ``attempts`` is the highest of any.
    """

    __slots__ = (
        *("_respond", "_subscription", "attempts", "expires_at"),
        *("responded", "run", "untouched_until"),
    )

    def __init__(self, subscription: Subscription, run: MessageRun, expires_at: float) -> None:
        self._subscription = subscription
        self._respond = subscription.respond_from_anywhere
        self.run = run
        self.attempts = run.attempts_max
        self.expires_at = self.untouched_until = expires_at
        self.responded = False

    def __len__(self) -> int:
        return len(self.run)

    def bodies(self) -> list[bytes]:
        """Return the body of each message; of dead letters, without their history."""
        bodies = self.run.bodies()
        return [unseal(body)[1] for body in bodies] if self._subscription.has_letters else bodies

    def split(self, count: int) -> ReceivedMessages:
        """Remove the first ``count`` messages and return them as a new ``ReceivedMessages``."""
        first = ReceivedMessages(self._subscription, self.run.split(count), self.untouched_until)
        first.expires_at = self.expires_at
        if self in self._subscription.unopened:
            self._subscription.unopened[first] = first
        return first

    def open(self) -> list[Message]:
        """Return the messages as separate objects, each with its own response."""
        return self._subscription.open(self)


class Subscription:
    """A subscribed connection.

    Attributes:
        window: its RDY and number of messages in flight.
        outstanding: the opened messages in flight by id, oldest first.
        has_letters: whether its topic is a dead-letter topic.
        unopened: the received groups not opened yet, oldest first, each by itself.
        respond_from_anywhere: ``respond``, or a function that calls it on the consumer's thread.
    """

    def __init__(
        self,
        connection: Connection,
        config: Config,
        counters: Counters,
        received: Callable[[ReceivedMessages], None],
        answering: Callable[[BackoffSignal], None],
    ) -> None:
        self.connection = connection
        self.address = connection.address
        facts = connection.facts
        most = _number(facts, "max_rdy_count", RDY_COUNT_MAX)
        self.window = RdyWindow(most, self._send_ready)
        self.outstanding: dict[bytes, Message] = {}
        self.has_letters = False
        self.unopened: dict[ReceivedMessages, ReceivedMessages] = {}
        self.respond_from_anywhere: Respond = self.respond
        # An nsqd that reports no timeout still has one: without its length, none is assumed here.
        self._timeout = _number(facts, "msg_timeout", 0) / 1000 or NEVER
        longest = _number(facts, "max_msg_timeout", 0) / 1000 or NEVER
        # nsqd counts `--max-msg-timeout` from the delivery, so all touches together extend the
        # message timeout by at most this difference.
        self._touchable = NEVER if NEVER in (self._timeout, longest) else longest - self._timeout
        self._config = config
        self._counters = counters
        self._received = received
        self._answering = answering
        self._warn_at = 0.0
        connection.on_messages = self._messages_received

    def _send_ready(self, count: int) -> None:
        if self.connection.live:
            self.connection.send(commands.rdy(count))

    def _messages_received(self, run: MessageRun) -> None:
        now, window = time.monotonic(), self.window
        received = ReceivedMessages(self, run, now + self._timeout)
        self.unopened[received] = received
        window.in_flight += len(run)
        window.last_message = now
        self._counters.received += len(run)
        self._received(received)
        if window.in_flight > window.most:
            # Messages that timed out here are nsqd's to redeliver, whatever the RDY.
            self.expire(now)
            if window.in_flight > window.most and self.connection.live:
                text = f"{window.in_flight} messages received, far more than RDY allows"
                self.connection.fail(WrongPeerError(text))

    def open(self, received: ReceivedMessages) -> list[Message]:
        """Make the ``Message`` objects of a received group."""
        respond, untouched = self.respond_from_anywhere, received.untouched_until
        decoded = received.run.messages()
        messages = [Message(respond, self.address, untouched, each) for each in decoded]
        if self.has_letters:
            for message in messages:
                message.split_dead_letter()
        if received.expires_at != untouched or received.responded:
            for message in messages:
                message.expires_at = received.expires_at
                message.responded = received.responded
        if received not in self.unopened:
            return messages
        del self.unopened[received]
        outstanding = self.outstanding
        before = len(outstanding)
        older = [found for each in messages if (found := outstanding.get(each.raw_id)) is not None]
        outstanding.update((message.raw_id, message) for message in messages)
        # An id already outstanding was redelivered: its earlier delivery has expired at nsqd.
        for message in older:
            message.expires_at = GONE
        self._counters.expired += len(older)
        self.window.in_flight -= before + len(messages) - len(outstanding)
        return messages

    # Responses

    def respond(
        self, each: Message | ReceivedMessages, kind: Response, delay: float | None, backoff: bool
    ) -> Awaitable[None]:
        """Send FIN, REQ or TOUCH for a message, or for all of a group.

        Args:
            each: the message or the group; in the backoff, a group is one outcome.
            kind: which.
            delay: of REQ, in seconds; None: a default that grows with ``attempts``.
            backoff: whether REQ counts as a failure in the backoff.
        """
        now, connection = time.monotonic(), self.connection
        is_late = each.expires_at <= now
        key: Any = each
        in_flight: dict[Any, Any] = self.unopened
        if isinstance(each, Message):
            in_flight, key, ids = self.outstanding, each.raw_id, [each.raw_id]
        else:
            ids = each.run.ids()
        if kind == "touch":
            return self._touch(each, ids, now)
        if in_flight.get(key) is each:
            del in_flight[key]
            self.window.in_flight -= len(ids)
            if is_late:
                self._count_expired(len(ids))
        if not connection.live:
            return DONE
        if kind == "finish":
            command, outcome = commands.fins(ids), BackoffSignal.SUCCESS
        else:
            command = self._requeue_command(ids, delay, each.attempts)
            outcome = BackoffSignal.FAILURE if backoff else BackoffSignal.NEUTRAL
        if is_late:
            self._warn()
            if outcome is BackoffSignal.SUCCESS:
                outcome = BackoffSignal.NEUTRAL
        elif kind == "finish":
            self._counters.finished += len(ids)
        else:
            self._counters.requeued += len(ids)
        self._answering(outcome)
        connection.send(command)
        return connection.drained() if connection.is_full else DONE

    def _requeue_command(self, ids: list[bytes], delay: float | None, attempts: int) -> bytes:
        if delay is None:
            config = self._config
            delay = min(config.default_requeue_delay * attempts, config.max_requeue_delay)
        delay_ms = milliseconds(delay)
        return b"".join([commands.req(raw_id, delay_ms) for raw_id in ids])

    def _touch(
        self, each: Message | ReceivedMessages, ids: list[bytes], now: float
    ) -> Awaitable[None]:
        connection = self.connection
        if not connection.live:
            return DONE
        self._counters.touched += len(ids)
        if now < each.expires_at:  # within nsqd's `--max-msg-timeout`
            each.expires_at = min(now + self._timeout, each.untouched_until + self._touchable)
        connection.send(b"".join(map(commands.touch, ids)))
        return connection.drained()

    def _count_expired(self, count: int) -> None:
        self._counters.expired += count
        self._warn()

    def _warn(self) -> None:
        """Warn of expired messages, once a minute: a small timeout would fill the log."""
        now = time.monotonic()
        if now < self._warn_at or not self.connection.live:
            return
        self._warn_at = now + WARN_SECONDS
        log.warning(
            "nsqd %s: messages were not answered within msg_timeout (%g s), so nsqd delivers them "
            "again and they are handled twice: raise msg_timeout, call touch() during long work, "
            "or lower max_in_flight",
            self.address,
            self._timeout,
            extra={"nsqd": self.address},
        )

    # Ending

    def expire(self, now: float) -> None:
        """Drop messages whose timeout is over from those in flight, and count them as expired."""
        groups = [each for each in self.unopened if each.expires_at <= now]
        messages = [each for each in self.outstanding.values() if each.expires_at <= now]
        for group in groups:
            del self.unopened[group]
        for message in messages:
            del self.outstanding[message.raw_id]
        if groups or messages:
            count = sum(map(len, groups)) + len(messages)
            self.window.in_flight -= count
            self._count_expired(count)

    def forget(self) -> None:
        """Mark all messages in flight as stale: the connection is lost."""
        for received in self.unopened:
            received.expires_at = GONE
        for message in self.outstanding.values():
            message.expires_at = GONE
        self._counters.lost += self.window.in_flight
        self.unopened.clear()
        self.outstanding.clear()
        self.window.in_flight = 0

    def start_closing(self) -> Awaitable[object]:
        """Send CLS at once; the result waits until nsqd confirms it or the connection is lost."""
        if not self.connection.live:
            return DONE
        # nsqd delivers nothing after CLS. With the old RDY, a batch would wait for messages that do
        # not come (`Consumer._is_full`).
        self.window.ready = 0
        return asyncio.gather(self.connection.request(commands.cls()), return_exceptions=True)


def _number(facts: dict[str, Any], name: str, default: int) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and value > 0 else default
