"""A subscription: one connection's part in a consumer.

1. It knows what is unanswered, and sends the answers. What arrives together stays together
   (`Received`) until somebody wants a message of its own: counting, expiring and answering for a
   thousand messages costs as much as for one.
2. What the answers mean for the consumer as a whole (backoff, RDY) it tells the consumer *before*
   it sends them, so that nsqd sees ``RDY 0`` before the ``REQ`` that caused it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from sparq.client.backoff import Outcome
from sparq.client.config import Config, milliseconds
from sparq.client.connection import DONE, Connection
from sparq.client.errors import ConnectionLostError, WrongPeerError
from sparq.client.message import Message
from sparq.client.rdy import Window
from sparq.protocol import commands
from sparq.protocol.dead_letters import unseal
from sparq.protocol.errors import RemoteError
from sparq.protocol.receiver import MessageRun

RDY_COUNT_MAX: Final = 2500
"""NSQ's default for ``--max-rdy-count``, for an nsqd that does not say."""

NEVER: Final = float("inf")


@dataclass(slots=True)
class Counters:
    """What a consumer has seen since its start.

    Attributes:
        received: deliveries.
        finished: FINs sent.
        requeued: REQs sent, with or without backoff.
        touched: TOUCHes sent.
        given_up: messages delivered more than ``max_attempts`` times.
        expired: deliveries unanswered for so long that nsqd makes them again.
        lost: deliveries unanswered when their connection was lost: nsqd makes them again.
    """

    received: int = 0
    finished: int = 0
    requeued: int = 0
    touched: int = 0
    given_up: int = 0
    expired: int = 0
    lost: int = 0


class Received:
    """Messages of one connection that arrived together and are not looked at singly.

    They are one thing in the consumer's queue: counted, expired and answered for together. Who
    wants messages opens it; from then on each is on its own. What it says and does is what
    `Message` says and does, for all of them.

    Attributes:
        attempts: no message here was delivered more often.
        expires_at: when nsqd's patience ends, on the monotonic clock.
        untouched_until: when it would have ended without a touch.
        responded: whether they were finished or requeued.
        stale: whether nsqd delivers them again whatever the answer.
    """

    __slots__ = (
        *("_run", "_subscription", "attempts"),
        *("expires_at", "responded", "stale", "untouched_until"),
    )

    def __init__(self, subscription: Subscription, run: MessageRun, expires_at: float) -> None:
        self._subscription = subscription
        self._run = run
        self.attempts = run.attempts_max
        self.expires_at = self.untouched_until = expires_at
        self.responded = False
        self.stale = False

    def __len__(self) -> int:
        return len(self._run)

    def bodies(self) -> list[bytes]:
        """The body of each; of dead letters without their histories."""
        bodies = self._run.bodies()
        return [unseal(body)[1] for body in bodies] if self._subscription.has_letters else bodies

    def split(self, count: int) -> Received:
        """Take the first ``count`` away, as one of their own."""
        first = Received(self._subscription, self._run.split(count), self.untouched_until)
        first.expires_at, first.stale = self.expires_at, self.stale
        if not self.stale:
            self._subscription.unopened[first] = None
        return first

    def open(self) -> list[Message]:
        """The messages, each to be answered for by itself."""
        messages = self._subscription.open(self, self._run)
        if self.stale or self.responded:
            for message in messages:
                message.stale, message.responded = self.stale, self.responded
        return messages

    def finish(self) -> Awaitable[None]:
        """Send FIN for all."""
        self.responded = True
        return self._subscription.answer_all(self, commands.fins(self._run.ids()), Outcome.SUCCESS)

    def requeue(self, delay: float | None = None, *, backoff: bool = True) -> Awaitable[None]:
        """Send REQ for all; one failure, however many they are."""
        self.responded = True
        subscription = self._subscription
        delay_ms = milliseconds(subscription.requeue_delay(delay, self.attempts))
        command = b"".join(commands.req(raw_id, delay_ms) for raw_id in self._run.ids())
        outcome = Outcome.FAILURE if backoff else Outcome.NEUTRAL
        return subscription.answer_all(self, command, outcome)

    def touch(self) -> Awaitable[None]:
        """Send TOUCH for all."""
        return self._subscription.touch_all(self, self._run.ids())


class Subscription:
    """A subscribed connection.

    Attributes:
        window: its RDY and how many messages are in flight.
        outstanding: the unanswered messages by id, oldest first.
        has_letters: whether its topic is a dead-letter topic.
        unopened: what arrived and was not opened yet, oldest first; a dict for its order.
    """

    def __init__(
        self,
        connection: Connection,
        config: Config,
        counters: Counters,
        received: Callable[[Received], None],
        answering: Callable[[Outcome], None],
    ) -> None:
        self.connection = connection
        self.address = connection.address
        facts = connection.facts
        self.window = Window(max_rdy_count=_number(facts, "max_rdy_count", RDY_COUNT_MAX))
        self.outstanding: dict[bytes, Message] = {}
        self.has_letters = False
        self.unopened: dict[Received, None] = {}
        self._timeout = _number(facts, "msg_timeout", 0) / 1000 or NEVER
        longest = _number(facts, "max_msg_timeout", 0) / 1000 or NEVER
        self._touchable = NEVER if NEVER in (self._timeout, longest) else longest - self._timeout
        self._config = config
        self._counters = counters
        self._received = received
        self._answering = answering
        connection.on_messages = self._messages_received

    @property
    def live(self) -> bool:
        """Whether answers can be sent."""
        return self.connection.live

    def ready(self, count: int) -> None:
        """Send RDY."""
        if self.live:
            self.connection.send(commands.rdy(count))

    def _messages_received(self, run: MessageRun) -> None:
        now = time.monotonic()
        received = Received(self, run, now + self._timeout)
        self.unopened[received] = None
        self.window.in_flight += len(run)
        self.window.last_message = now
        self._counters.received += len(run)
        self._received(received)
        if self.window.in_flight > self.window.most:
            self._check_flood(now)

    def _check_flood(self, now: float) -> None:
        """End the connection to an nsqd that heeds no RDY."""
        self.expire(now)
        if self.window.in_flight > self.window.most and self.live:
            text = f"{self.window.in_flight} messages came, far more than RDY allows"
            self.connection.fail(WrongPeerError(text))

    def open(self, received: Received, run: MessageRun) -> list[Message]:
        """Make messages of what arrived."""
        expires_at = received.untouched_until
        messages = [Message(self, expires_at, decoded) for decoded in run.messages()]
        if self.has_letters:
            for message in messages:
                message.open_letter()
        if received.expires_at != expires_at:
            for message in messages:
                message.expires_at = received.expires_at
        if received not in self.unopened:
            return messages
        del self.unopened[received]
        before = len(self.outstanding)
        self.outstanding.update((message.raw_id, message) for message in messages)
        # An id that is here already was delivered again: it counts once.
        self.window.in_flight -= before + len(messages) - len(self.outstanding)
        return messages

    # Answering for one: message.Responder

    def finish(self, message: Message) -> Awaitable[None]:
        """Send FIN; what `_answer` does, without its detours, since this is each message's way."""
        raw_id, connection = message.raw_id, self.connection
        if self.outstanding.get(raw_id) is message:
            del self.outstanding[raw_id]
            self.window.in_flight -= 1
        if not connection.live:
            return DONE
        self._counters.finished += 1
        self._answering(Outcome.SUCCESS)
        connection.send(commands.fin(raw_id))
        return connection.drained()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> Awaitable[None]:
        """Send REQ; without a delay, with the default one."""
        delay = self.requeue_delay(delay, message.attempts)
        command = commands.req(message.raw_id, milliseconds(delay))
        return self._answer(message, command, Outcome.FAILURE if backoff else Outcome.NEUTRAL)

    def touch(self, message: Message) -> Awaitable[None]:
        """Send TOUCH."""
        if not self.live:
            return DONE
        self._counters.touched += 1
        self._touched(message)
        self.connection.send(commands.touch(message.raw_id))
        return self.connection.drained()

    def _touched(self, each: Message | Received) -> None:
        """nsqd waits anew, but no longer than it ever waits for an answer."""
        latest = each.untouched_until + self._touchable
        each.expires_at = min(time.monotonic() + self._timeout, latest)

    def _answer(self, message: Message, command: bytes, outcome: Outcome) -> Awaitable[None]:
        outstanding = self.outstanding
        if outstanding.get(message.raw_id) is message:
            del outstanding[message.raw_id]
            self.window.in_flight -= 1
        connection = self.connection
        if not connection.live:
            return DONE
        if outcome is Outcome.SUCCESS:
            self._counters.finished += 1
        else:
            self._counters.requeued += 1
        self._answering(outcome)
        connection.send(command)
        return connection.drained()

    def requeue_delay(self, delay: float | None, attempts: int) -> float:
        """The delay of a requeue in seconds: as given, or one that grows with the attempts."""
        if delay is not None:
            return delay
        config = self._config
        return min(config.default_requeue_delay * attempts, config.max_requeue_delay)

    # Answering for many

    def answer_all(self, received: Received, command: bytes, outcome: Outcome) -> Awaitable[None]:
        """Send the answers to what was not opened; together they are one outcome."""
        count = len(received)
        if received in self.unopened:
            del self.unopened[received]
            self.window.in_flight -= count
        if not self.live:
            return DONE
        if outcome is Outcome.SUCCESS:
            self._counters.finished += count
        else:
            self._counters.requeued += count
        self._answering(outcome)
        self.connection.send(command)
        return self.connection.drained()

    def touch_all(self, received: Received, ids: list[bytes]) -> Awaitable[None]:
        """Send TOUCH for what was not opened."""
        if not self.live:
            return DONE
        self._counters.touched += len(ids)
        self._touched(received)
        self.connection.send(b"".join(map(commands.touch, ids)))
        return self.connection.drained()

    # Ending

    def expire(self, now: float) -> None:
        """Count no longer what nsqd has given up waiting for."""
        for received in [each for each in self.unopened if each.expires_at <= now]:
            received.stale = True
            del self.unopened[received]
            self._gone(len(received))
        for message in [each for each in self.outstanding.values() if each.expires_at <= now]:
            message.stale = True
            del self.outstanding[message.raw_id]
            self._gone(1)

    def _gone(self, count: int) -> None:
        self.window.in_flight -= count
        self._counters.expired += count

    def forget(self) -> None:
        """The connection is gone, and what was in flight with it."""
        for received in self.unopened:
            received.stale = True
        for message in self.outstanding.values():
            message.stale = True
        self._counters.lost += self.window.in_flight
        self.unopened.clear()
        self.outstanding.clear()
        self.window.in_flight = 0

    def start_closing(self) -> Awaitable[None]:
        """CLS, at once; done when nsqd sends no more messages, or the connection is lost."""
        if not self.live:
            return DONE
        self.window.ready = 0
        return _settled(self.connection.request(commands.cls()))


async def _settled(answer: Awaitable[bytes]) -> None:
    """Wait for an answer, whatever it is."""
    with contextlib.suppress(ConnectionLostError, RemoteError):
        await answer


def _number(facts: dict[str, Any], name: str, default: int) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and value > 0 else default
