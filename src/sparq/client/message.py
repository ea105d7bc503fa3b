"""A message as a consumer receives it, with the methods that respond to it.

1. It is responded to once, with FIN or REQ; before that it can be touched any number of times.
2. It has no reference to a connection: responses go to its ``Respond``, a method of the
   subscription that received it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

from sparq.client.arguments import check_delay
from sparq.client.errors import AlreadyRespondedError
from sparq.protocol.dead_letters import unseal

Response = Literal["finish", "requeue", "touch"]

Respond = Callable[[Any, Response, float | None, bool], Awaitable[None]]
"""Sends a response to a message or a group: FIN, REQ (delay in seconds, with backoff) or TOUCH."""

Around = Callable[[str], AbstractContextManager[object]]
"""Makes the context in which a response is sent; takes ``finish`` or ``requeue``."""


class Delivered(ABC):
    """What a consumer hands out: a message, or a batch of them.

    Attributes:
        responded: whether it was finished or requeued, as a whole.
    """

    __slots__ = ()

    responded: bool

    def finish(self) -> Awaitable[None]:
        """Send FIN: it is processed. For a batch: FIN for each message without a response.

        Raises:
            AlreadyRespondedError: it was finished or requeued before.
        """
        return self._respond_once("finish")

    def requeue(
        self, delay_seconds: float | None = None, *, backoff: bool = True
    ) -> Awaitable[None]:
        """Send REQ: nsqd redelivers it after the delay. For a batch: each without a response.

        The default delay grows with ``attempts``. With ``backoff``, it counts as one failure in the
        backoff of the whole consumer.

        Raises:
            AlreadyRespondedError: it was finished or requeued before.
            ValueError: the delay is negative or too long for nsqd.
        """
        if delay_seconds is not None:
            check_delay(delay_seconds)
        return self._respond_once("requeue", delay_seconds, backoff)

    def touch(self) -> Awaitable[None]:
        """Send TOUCH: nsqd restarts the message timeout from now.

        The total time stays limited by nsqd's ``--max-msg-timeout`` (default: 15 minutes);
        ``expires_at`` takes that into account. A batch touches each message without a response.

        Raises:
            AlreadyRespondedError: it was finished or requeued before.
        """
        return self._respond_once("touch")

    @abstractmethod
    def _respond_once(
        self, kind: Response, delay: float | None = None, backoff: bool = True
    ) -> Awaitable[None]:
        """Respond, unless it was finished or requeued before."""


class Message(Delivered):
    """One delivery of a message.

    ``finish`` and ``requeue`` respond to it, once; ``touch`` extends its timeout before that. All
    three take effect when called, without an await; awaiting the result only applies
    back-pressure, while nsqd reads too slowly. If the connection is lost, a response has no effect
    and nsqd redelivers the message.

    Attributes:
        body: the published bytes.
        timestamp_ns: when nsqd received the message, in nanoseconds since 1970.
        attempts: number of deliveries, including this one.
        nsqd: the address of the nsqd that delivered it, ``host:port`` or a path.
        raw_id: its id as on the wire, 16 bytes.
        responded: whether it was finished or requeued.
        auto_respond: whether a consumer with a handler responds when the handler is done.
        expires_at: when its message timeout ends; monotonic seconds; -inf: its connection is lost.
        untouched_until: when its timeout would have ended without a ``touch``.
    """

    __slots__ = (
        "_letter",
        "_respond",
        "attempts",
        "auto_respond",
        "body",
        "expires_at",
        "nsqd",
        "raw_id",
        "responded",
        "timestamp_ns",
        "untouched_until",
    )

    def __init__(
        self, respond: Respond, nsqd: str, expires_at: float, decoded: tuple[int, int, bytes, bytes]
    ) -> None:
        self._respond = respond
        self.nsqd = nsqd
        self.timestamp_ns, self.attempts, self.raw_id, self.body = decoded
        self.expires_at = self.untouched_until = expires_at
        self.responded = False
        self.auto_respond = True

    @property
    def id(self) -> str:
        """The id: 16 hexadecimal digits, unique in its topic at its nsqd."""
        return self.raw_id.decode("ascii", "replace")

    @property
    def stale(self) -> bool:
        """Whether nsqd redelivers it regardless of the response.

        Its timeout is over, or its connection is lost.
        """
        return self.expires_at <= time.monotonic()

    @property
    def letter(self) -> Mapping[str, str] | None:
        """The history of a dead letter (docs/policies.md); None for any other message.

        Its fields are ``topic``, ``channel``, ``id``, ``attempts``, ``published``,
        ``last_returned``, ``consumer``, ``reason`` and ``redriven``, all of them str.
        """
        return getattr(self, "_letter", None)  # set only for dead letters: others do not pay for it

    def split_dead_letter(self) -> None:
        """Move the history of a dead letter from its body to ``letter``."""
        fields, body = unseal(self.body)
        if fields:
            self._letter, self.body = fields, body

    def observe(self, around: Around) -> None:
        """Respond within ``around("finish")`` or ``around("requeue")`` from now on."""
        respond = self._respond

        def observed(
            message: Message, kind: Response, delay: float | None, backoff: bool
        ) -> Awaitable[None]:
            if kind == "touch":
                return respond(message, kind, delay, backoff)
            with around(kind):
                return respond(message, kind, delay, backoff)

        self._respond = observed

    def _respond_once(
        self, kind: Response, delay: float | None = None, backoff: bool = True
    ) -> Awaitable[None]:
        if self.responded:
            raise AlreadyRespondedError(f"message {self.id} was already finished or requeued")
        self.responded = kind != "touch"
        return self._respond(self, kind, delay, backoff)

    def __repr__(self) -> str:
        return f"<Message {self.id} from {self.nsqd} attempts={self.attempts} {self.body!r:.60}>"
