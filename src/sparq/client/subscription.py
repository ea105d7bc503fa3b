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

import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from sparq.client.backoff import BackoffSignal
from sparq.client.config import Config, milliseconds
from sparq.client.connection import DONE, Connection
from sparq.client.errors import ConnectionLostError, WrongPeerError
from sparq.client.log_fields import FieldLogger
from sparq.client.message import Message
from sparq.client.rdy import RdyWindow
from sparq.protocol import commands
from sparq.protocol.dead_letters import unseal
from sparq.protocol.errors import RemoteError
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
    makes them separate ``Message`` objects. Attributes and methods are those of `Message`, for all
    of them.

    Attributes:
        attempts: the highest ``attempts`` of any message.
        expires_at: when their message timeout ends; monotonic seconds; -inf: connection lost.
        untouched_until: when their timeout would have ended without a touch.
        responded: whether they were finished or requeued.
    """

    __slots__ = (
        *("_run", "_subscription", "attempts"),
        *("expires_at", "responded", "untouched_until"),
    )

    def __init__(self, subscription: Subscription, run: MessageRun, expires_at: float) -> None:
        self._subscription = subscription
        self._run = run
        self.attempts = run.attempts_max
        self.expires_at = self.untouched_until = expires_at
        self.responded = False

    def __len__(self) -> int:
        return len(self._run)

    def bodies(self) -> list[bytes]:
        """Return the body of each message; of dead letters, without their history."""
        bodies = self._run.bodies()
        return [unseal(body)[1] for body in bodies] if self._subscription.has_letters else bodies

    def split(self, count: int) -> ReceivedMessages:
        """Remove the first ``count`` messages and return them as a new ``ReceivedMessages``."""
        first = ReceivedMessages(self._subscription, self._run.split(count), self.untouched_until)
        first.expires_at = self.expires_at
        if self in self._subscription.unopened:
            self._subscription.unopened[first] = None
        return first

    def open(self) -> list[Message]:
        """Return the messages as separate objects, each with its own response."""
        messages = self._subscription.open(self, self._run)
        if self.responded:
            for message in messages:
                message.responded = True
        return messages

    def finish(self) -> Awaitable[None]:
        """Send FIN for all."""
        self.responded = True
        return self._subscription.answer_all(
            self, commands.fins(self._run.ids()), BackoffSignal.SUCCESS
        )

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> Awaitable[None]:
        """Send REQ for all; in the backoff they count as one failure."""
        self.responded = True
        subscription = self._subscription
        delay_ms = milliseconds(subscription.requeue_delay(delay, self.attempts))
        command = b"".join(commands.req(raw_id, delay_ms) for raw_id in self._run.ids())
        outcome = BackoffSignal.FAILURE if backoff else BackoffSignal.NEUTRAL
        return subscription.answer_all(self, command, outcome)

    def touch(self) -> Awaitable[None]:
        """Send TOUCH for all."""
        return self._subscription.touch_all(self, self._run.ids())


class Subscription:
    """A subscribed connection.

    Attributes:
        window: its RDY and number of messages in flight.
        outstanding: the opened messages in flight by id, oldest first.
        has_letters: whether its topic is a dead-letter topic.
        unopened: the received groups not opened yet, oldest first; a dict used as an ordered set.
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
        self.window = RdyWindow(max_rdy_count=_number(facts, "max_rdy_count", RDY_COUNT_MAX))
        self.outstanding: dict[bytes, Message] = {}
        self.has_letters = False
        self.unopened: dict[ReceivedMessages, None] = {}
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

    @property
    def live(self) -> bool:
        """Whether commands can be sent."""
        return self.connection.live

    def ready(self, count: int) -> None:
        """Send RDY."""
        if self.live:
            self.connection.send(commands.rdy(count))

    def _messages_received(self, run: MessageRun) -> None:
        now = time.monotonic()
        received = ReceivedMessages(self, run, now + self._timeout)
        self.unopened[received] = None
        self.window.in_flight += len(run)
        self.window.last_message = now
        self._counters.received += len(run)
        self._received(received)
        if self.window.in_flight > self.window.most:
            self._check_flood(now)

    def _check_flood(self, now: float) -> None:
        """Close the connection to an nsqd that ignores RDY."""
        # Messages that timed out here are nsqd's to redeliver, whatever the RDY.
        self.expire(now)
        if self.window.in_flight > self.window.most and self.live:
            text = f"{self.window.in_flight} messages received, far more than RDY allows"
            self.connection.fail(WrongPeerError(text))

    def open(self, received: ReceivedMessages, run: MessageRun) -> list[Message]:
        """Make the ``Message`` objects of a received group."""
        expires_at = received.untouched_until
        messages = [Message(self, expires_at, decoded) for decoded in run.messages()]
        if self.has_letters:
            for message in messages:
                message.split_dead_letter()
        if received.expires_at != expires_at:
            for message in messages:
                message.expires_at = received.expires_at
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

    # Responses to one message: message.Responder

    def finish(self, message: Message) -> Awaitable[None]:
        """Send FIN; a faster copy of `_answer`, as most messages take this path."""
        if message.expires_at <= time.monotonic():
            return self._answer(message, commands.fin(message.raw_id), BackoffSignal.SUCCESS)
        raw_id, connection = message.raw_id, self.connection
        if self.outstanding.get(raw_id) is message:
            del self.outstanding[raw_id]
            self.window.in_flight -= 1
        if not connection.live:
            return DONE
        self._counters.finished += 1
        self._answering(BackoffSignal.SUCCESS)
        connection.send(commands.fin(raw_id))
        return connection.drained()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> Awaitable[None]:
        """Send REQ; ``delay`` is in seconds; None: the default delay."""
        delay = self.requeue_delay(delay, message.attempts)
        command = commands.req(message.raw_id, milliseconds(delay))
        return self._answer(
            message, command, BackoffSignal.FAILURE if backoff else BackoffSignal.NEUTRAL
        )

    def touch(self, message: Message) -> Awaitable[None]:
        """Send TOUCH."""
        if not self.live:
            return DONE
        self._counters.touched += 1
        self._touched(message)
        self.connection.send(commands.touch(message.raw_id))
        return self.connection.drained()

    def _touched(self, each: Message | ReceivedMessages) -> None:
        """Restart the message timeout, within nsqd's ``--max-msg-timeout``."""
        now = time.monotonic()
        if now < each.expires_at:
            each.expires_at = min(now + self._timeout, each.untouched_until + self._touchable)

    def _answer(self, message: Message, command: bytes, outcome: BackoffSignal) -> Awaitable[None]:
        is_late = message.stale
        if self.outstanding.get(message.raw_id) is message:
            del self.outstanding[message.raw_id]
            self._left(1, is_late)
        return self._send_answer(1, command, outcome, is_late)

    def _send_answer(
        self, count: int, command: bytes, outcome: BackoffSignal, is_late: bool
    ) -> Awaitable[None]:
        connection = self.connection
        if not connection.live:
            return DONE
        if is_late:
            self._warn()
            if outcome is BackoffSignal.SUCCESS:
                outcome = BackoffSignal.NEUTRAL
        elif outcome is BackoffSignal.SUCCESS:
            self._counters.finished += count
        else:
            self._counters.requeued += count
        self._answering(outcome)
        connection.send(command)
        return connection.drained()

    def _left(self, count: int, is_late: bool) -> None:
        """Count messages as no longer in flight, and as expired if their timeout is over."""
        self.window.in_flight -= count
        if is_late:
            self._counters.expired += count
            self._warn()

    def _warn(self) -> None:
        """Warn of expired messages, once a minute: a small timeout would fill the log."""
        now = time.monotonic()
        if now < self._warn_at or not self.live:
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

    def requeue_delay(self, delay: float | None, attempts: int) -> float:
        """Return the requeue delay in seconds: as given, or a default that grows with attempts."""
        if delay is not None:
            return delay
        config = self._config
        return min(config.default_requeue_delay * attempts, config.max_requeue_delay)

    # Responses to an unopened group

    def answer_all(
        self, received: ReceivedMessages, command: bytes, outcome: BackoffSignal
    ) -> Awaitable[None]:
        """Send the responses to an unopened group; in the backoff they are one outcome."""
        count, is_late = len(received), received.expires_at <= time.monotonic()
        if received in self.unopened:
            del self.unopened[received]
            self._left(count, is_late)
        return self._send_answer(count, command, outcome, is_late)

    def touch_all(self, received: ReceivedMessages, ids: list[bytes]) -> Awaitable[None]:
        """Send TOUCH for an unopened group."""
        if not self.live:
            return DONE
        self._counters.touched += len(ids)
        self._touched(received)
        self.connection.send(b"".join(map(commands.touch, ids)))
        return self.connection.drained()

    # Ending

    def expire(self, now: float) -> None:
        """Drop messages whose timeout is over from those in flight, and count them as expired."""
        for received in [each for each in self.unopened if each.expires_at <= now]:
            del self.unopened[received]
            self._left(len(received), is_late=True)
        for message in [each for each in self.outstanding.values() if each.expires_at <= now]:
            del self.outstanding[message.raw_id]
            self._left(1, is_late=True)

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

    def start_closing(self) -> Awaitable[None]:
        """Send CLS at once; the result waits until nsqd confirms it or the connection is lost."""
        if not self.live:
            return DONE
        # nsqd delivers nothing after CLS. With the old RDY, a batch would wait for messages that do
        # not come (`Consumer._is_full`).
        self.window.ready = 0
        return _settled(self.connection.request(commands.cls()))


async def _settled(answer: Awaitable[bytes]) -> None:
    """Wait for an answer; ignore an error frame or a lost connection."""
    with contextlib.suppress(ConnectionLostError, RemoteError):
        await answer


def _number(facts: dict[str, Any], name: str, default: int) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and value > 0 else default
