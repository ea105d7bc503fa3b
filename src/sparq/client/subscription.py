"""A subscription: one connection's part in a consumer.

It makes messages of frames, knows which are unanswered, and sends the answers. What the answers
mean for the consumer as a whole (backoff, RDY) it tells the consumer *before* it sends them, so
that nsqd sees ``RDY 0`` before the ``REQ`` that caused it.
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
from sparq.client.errors import ConnectionLostError
from sparq.client.message import Message
from sparq.client.rdy import Window
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError

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


class Subscription:
    """A subscribed connection.

    Attributes:
        window: its RDY and how many messages are in flight.
        outstanding: the unanswered messages by id, oldest first.
    """

    def __init__(
        self,
        connection: Connection,
        config: Config,
        counters: Counters,
        received: Callable[[list[Message]], None],
        answering: Callable[[Outcome], None],
    ) -> None:
        self.connection = connection
        self.address = connection.address
        facts = connection.facts
        self.window = Window(max_rdy_count=_number(facts, "max_rdy_count", RDY_COUNT_MAX))
        self.outstanding: dict[bytes, Message] = {}
        self._timeout = _number(facts, "msg_timeout", 0) / 1000 or NEVER
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

    def _messages_received(self, payloads: list[bytes]) -> None:
        now = time.monotonic()
        expires_at = now + self._timeout
        outstanding = self.outstanding
        messages = []
        for payload in payloads:
            message = Message(self, payload, expires_at)
            outstanding[message.raw_id] = message
            messages.append(message)
        self.window.in_flight = len(outstanding)
        self.window.last_message = now
        self._counters.received += len(messages)
        self._received(messages)

    # message.Responder

    def finish(self, message: Message) -> Awaitable[None]:
        """Send FIN."""
        return self._answer(message, commands.fin(message.raw_id), Outcome.SUCCESS)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> Awaitable[None]:
        """Send REQ; without a delay, with the default one."""
        if delay is None:
            config = self._config
            delay = min(config.default_requeue_delay * message.attempts, config.max_requeue_delay)
        command = commands.req(message.raw_id, milliseconds(delay))
        return self._answer(message, command, Outcome.FAILURE if backoff else Outcome.NEUTRAL)

    def touch(self, message: Message) -> Awaitable[None]:
        """Send TOUCH."""
        if not self.live:
            return DONE
        self._counters.touched += 1
        message.expires_at = time.monotonic() + self._timeout
        self.connection.send(commands.touch(message.raw_id))
        return self.connection.drained()

    def _answer(self, message: Message, command: bytes, outcome: Outcome) -> Awaitable[None]:
        if self.outstanding.get(message.raw_id) is message:
            del self.outstanding[message.raw_id]
            self.window.in_flight = len(self.outstanding)
        if not self.live:
            return DONE
        if outcome is Outcome.SUCCESS:
            self._counters.finished += 1
        else:
            self._counters.requeued += 1
        self._answering(outcome)
        self.connection.send(command)
        return self.connection.drained()

    # Ending

    def expire(self, now: float) -> None:
        """Count no longer what nsqd has given up waiting for."""
        for message in [each for each in self.outstanding.values() if each.expires_at < now]:
            message.stale = True
            del self.outstanding[message.raw_id]
            self._counters.expired += 1
        self.window.in_flight = len(self.outstanding)

    def forget(self) -> None:
        """The connection is gone, and what was in flight with it."""
        for message in self.outstanding.values():
            message.stale = True
        self._counters.lost += len(self.outstanding)
        self.outstanding.clear()
        self.window.in_flight = 0

    async def start_closing(self) -> None:
        """CLS: done when nsqd sends no more messages, or the connection is lost."""
        if self.live:
            self.window.ready = 0
            answer = self.connection.request(commands.cls())
            with contextlib.suppress(ConnectionLostError, RemoteError):
                await answer


def _number(facts: dict[str, Any], name: str, default: int) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) and value > 0 else default
