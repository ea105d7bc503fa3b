"""A message as a consumer has it, and the ways to answer for it.

1. It is answered for once, with FIN or REQ; before that it can be touched any number of times.
2. It knows no connection: answers go to its ``Responder``, the subscription that it came by.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from sparq.client.arguments import check_delay
from sparq.client.errors import AlreadyRespondedError
from sparq.protocol.dead_letters import unseal


class Responder(Protocol):
    """Where a message's answers go: the subscription that it came by."""

    @property
    def address(self) -> str:
        """The nsqd's ``host:port``."""

    def finish(self, message: Message) -> Awaitable[None]:
        """Send FIN."""

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> Awaitable[None]:
        """Send REQ."""

    def touch(self, message: Message) -> Awaitable[None]:
        """Send TOUCH."""


class Message:
    """One delivery of a message.

    ``finish`` and ``requeue`` answer for it, once; ``touch`` asks for more time before that. All
    three take effect when called; awaiting the result waits only while nsqd reads too slowly.
    When the connection is gone, an answer goes nowhere and nsqd delivers the message again.

    Attributes:
        body: the published bytes.
        timestamp_ns: when nsqd took the message, in nanoseconds since 1970.
        attempts: how often it was delivered, this time included.
        nsqd: the ``host:port`` it came from.
        raw_id: its id as on the wire, 16 bytes.
        responded: whether it was finished or requeued.
        auto_respond: whether a consumer with a handler answers when the handler is done.
        expires_at: when nsqd's patience ends, on the monotonic clock.
        untouched_until: when it would have ended without a ``touch``.
        stale: whether nsqd delivers it again whatever the answer: its time is over, or its
            connection is gone.
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
        "stale",
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
        self.stale = False
        self.auto_respond = True

    @property
    def id(self) -> str:
        """The id: 16 hexadecimal digits."""
        return self.raw_id.decode("ascii", "replace")

    @property
    def letter(self) -> Mapping[str, str] | None:
        """Of a dead letter, what became of the message before (docs/policies.md); else None.

        Its fields are ``topic``, ``channel``, ``id``, ``attempts``, ``published``,
        ``last_returned``, ``consumer``, ``reason`` and ``redriven``, all of them texts.
        """
        return getattr(self, "_letter", None)  # no message but a letter pays for it

    def open_letter(self) -> None:
        """Take the history off the body, if it is a dead letter's."""
        fields, body = unseal(self.body)
        if fields:
            self._letter, self.body = fields, body

    @property
    def nsqd(self) -> str:
        """The address of the nsqd it came from."""
        return self._responder.address

    def finish(self) -> Awaitable[None]:
        """FIN: it is done with.

        Raises:
            AlreadyRespondedError: it was answered for before.
        """
        if self.responded:
            raise _already(self)
        self.responded = True
        return self._responder.finish(self)

    def requeue(
        self, delay_seconds: float | None = None, *, backoff: bool = True
    ) -> Awaitable[None]:
        """REQ: deliver it again after the delay; by default a delay that grows with ``attempts``.

        ``backoff`` says that this is a failure on which the whole consumer should step back.

        Raises:
            AlreadyRespondedError: it was answered for before.
            ValueError: the delay is negative.
        """
        if delay_seconds is not None:
            check_delay(delay_seconds)
        if self.responded:
            raise _already(self)
        self.responded = True
        return self._responder.requeue(self, delay_seconds, backoff)

    def touch(self) -> Awaitable[None]:
        """TOUCH: nsqd is to wait one more message timeout from now.

        However often, it waits for its ``--max-msg-timeout`` in all (15 minutes unless it was told
        otherwise); ``expires_at`` knows of that.

        Raises:
            AlreadyRespondedError: it was answered for before.
        """
        if self.responded:
            raise _already(self)
        return self._responder.touch(self)

    def redirect(self, by: Callable[[Responder], Responder]) -> None:
        """Have the answers go another way than to the subscription directly."""
        self._responder = by(self._responder)

    def __repr__(self) -> str:
        return f"<Message {self.id} from {self.nsqd} attempts={self.attempts} {self.body!r:.60}>"


def _already(message: Message) -> AlreadyRespondedError:
    return AlreadyRespondedError(f"message {message.id} was answered for before")
