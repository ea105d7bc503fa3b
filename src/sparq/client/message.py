"""A message as a consumer receives it, with the methods that respond to it.

1. It is responded to once, with FIN or REQ; before that it can be touched any number of times.
2. It has no reference to a connection: responses go to its ``Responder``, the subscription that
   received it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from sparq.client.arguments import check_delay
from sparq.client.errors import AlreadyRespondedError
from sparq.protocol.dead_letters import unseal


class Responder(Protocol):
    """Sends the responses to a message: the subscription that received it."""

    @property
    def address(self) -> str:
        """The nsqd's ``host:port`` or path."""

    def finish(self, message: Message) -> Awaitable[None]:
        """Send FIN."""

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> Awaitable[None]:
        """Send REQ."""

    def touch(self, message: Message) -> Awaitable[None]:
        """Send TOUCH."""


class Message:
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
        "_responder",
        "attempts",
        "auto_respond",
        "body",
        "expires_at",
        "raw_id",
        "responded",
        "timestamp_ns",
        "untouched_until",
    )

    def __init__(
        self, responder: Responder, expires_at: float, decoded: tuple[int, int, bytes, bytes]
    ) -> None:
        self._responder = responder
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

    @property
    def nsqd(self) -> str:
        """The address of the nsqd that delivered it."""
        return self._responder.address

    def finish(self) -> Awaitable[None]:
        """Send FIN: the message is processed.

        Raises:
            AlreadyRespondedError: it was finished or requeued before.
        """
        if self.responded:
            raise _already(self)
        self.responded = True
        return self._responder.finish(self)

    def requeue(
        self, delay_seconds: float | None = None, *, backoff: bool = True
    ) -> Awaitable[None]:
        """Send REQ: nsqd redelivers the message after the delay.

        The default delay grows with ``attempts``. With ``backoff``, it counts as a failure in the
        backoff of the whole consumer.

        Raises:
            AlreadyRespondedError: it was finished or requeued before.
            ValueError: the delay is negative or too long for nsqd.
        """
        if delay_seconds is not None:
            check_delay(delay_seconds)
        if self.responded:
            raise _already(self)
        self.responded = True
        return self._responder.requeue(self, delay_seconds, backoff)

    def touch(self) -> Awaitable[None]:
        """Send TOUCH: nsqd restarts the message timeout from now.

        The total time stays limited by nsqd's ``--max-msg-timeout`` (default: 15 minutes);
        ``expires_at`` takes that into account.

        Raises:
            AlreadyRespondedError: it was finished or requeued before.
        """
        if self.responded:
            raise _already(self)
        return self._responder.touch(self)

    def redirect(self, by: Callable[[Responder], Responder]) -> None:
        """Wrap the responder, so that responses no longer go to the subscription directly."""
        self._responder = by(self._responder)

    def __repr__(self) -> str:
        return f"<Message {self.id} from {self.nsqd} attempts={self.attempts} {self.body!r:.60}>"


def _already(message: Message) -> AlreadyRespondedError:
    return AlreadyRespondedError(f"message {message.id} was already finished or requeued")
