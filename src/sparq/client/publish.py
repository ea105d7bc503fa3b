"""One publish: what is sent, to whom its outcome is told, and what has become of it so far.

1. A command is checked before anything is sent: what nsqd would answer by ending the connection
   that others use too is held back here.
2. An outcome is told once: a receipt, or why there is none. Whoever was cancelled meanwhile, or
   has run out of time, is told nothing more.
3. The head of a command is made once a topic, not once a message.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence, Sized
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from sparq.client.arguments import check_delay, check_name
from sparq.client.config import milliseconds
from sparq.client.requests import Request
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from sparq.client.connection import Connection

BODY_BYTES_MAX: Final = 2**31 - 1
"""What the wire's sizes can say; nsqd's own limits (--max-msg-size, --max-body-size) are lower."""

_SIZE: Final = struct.Struct(">i")


class Receipt(NamedTuple):
    """A publish that nsqd has acknowledged.

    Attributes:
        nsqd: the ``host:port`` that said OK.
        attempts: how often it was sent.
        resent: how many earlier sends had no answer; each may have been stored too.
    """

    nsqd: str
    attempts: int = 1
    resent: int = 0


Outcome = Receipt | Exception
OnDone = Callable[[Outcome], object]


class Teller(Protocol):
    """To whom an outcome is told: the future of a task that awaits it, or a ``Callback``."""

    def done(self) -> bool:
        """Whether it was told, or nobody wants to know any more."""

    def set_result(self, result: Receipt, /) -> None:
        """nsqd has acknowledged it."""

    def set_exception(self, exception: Exception, /) -> None:
        """It has failed for good."""


class Callback:
    """Tells a function; what that raises goes to the loop's exception handler."""

    __slots__ = ("_call", "_done", "_loop")

    def __init__(self, call: OnDone, loop: asyncio.AbstractEventLoop) -> None:
        if not callable(call):
            raise TypeError(f"on_done is a function, not {type(call).__name__}")
        self._call = call
        self._loop = loop
        self._done = False

    def done(self) -> bool:
        """Whether it was called."""
        return self._done

    def set_result(self, result: Outcome, /) -> None:
        """Call it with the outcome."""
        self._done = True
        try:
            if (left := self._call(result)) is not None and asyncio.iscoroutine(left):
                left.close()
                raise TypeError("on_done is called, not awaited: give a function that is not async")
        except Exception as error:
            # One callback must not keep the answers behind it from theirs.
            said = {"message": f"publish_nowait: {self._call!r} failed", "exception": error}
            self._loop.call_exception_handler(said)

    set_exception = set_result


class Outcomes(Protocol):
    """Who sends publishes, and is told what nsqd says of them: a dispatcher."""

    def confirmed(self, publishes: Sequence[Publish]) -> None:
        """nsqd has said OK to each, on one connection."""

    def confirmed_late(self, publish: Publish, address: str) -> None:
        """The nsqd at this address has said OK after another one was asked."""

    def misunderstood(self, publish: Publish, data: bytes) -> None:
        """What answers is no nsqd."""

    def failed_one(self, publish: Publish, error: Exception) -> None:
        """nsqd refuses it, or is gone."""


class Publish(Request):
    """One publish on its way; the connection that it was sent on tells it nsqd's answer.

    Attributes:
        dispatcher: who sends it, and is told what nsqd says.
        command: what is sent.
        message_count: how many messages it publishes.
        teller: to whom the outcome is told.
        deadline: when it is given up, by the loop's clock.
        link: the connection that it was sent on last; None: it waits to be sent.
        attempts: how often it was sent.
        spared: how many sends nsqd certainly did not execute, for another's fault.
        unanswered: how many sends had no answer.
        moved: how many of those were not waited for any longer, though their connection stood.
        resent: how many sends without an answer were followed by another send.
        refusal: an nsqd's refusal to store it; others may do.
        refused_by: the nsqds that have refused so.
        timer: gives it up at its deadline.
    """

    dispatcher: Outcomes

    # Of the class until they change, which they seldom do: there is one of these a message.
    link: Connection | None = None
    attempts = 0
    spared = 0
    unanswered = 0
    moved = 0
    resent = 0
    refusal: RemoteError | None = None
    refused_by: tuple[str, ...] = ()
    timer: asyncio.TimerHandle | None = None

    def __init__(
        self, command: bytes, message_count: int, teller: Teller, asked_at: float, deadline: float
    ) -> None:
        self.command = command
        self.size = len(command)
        self.message_count = message_count
        self.teller = teller
        self.asked_at = asked_at
        self.deadline = deadline

    def confirm(self) -> None:
        """nsqd has said OK."""
        self.dispatcher.confirmed((self,))

    @classmethod
    def confirm_all(cls, requests: Sequence[Publish]) -> None:
        """nsqd has said OK to each: their dispatcher, which is one, hears of them together."""
        requests[0].dispatcher.confirmed(requests)

    def respond(self, data: bytes) -> None:
        """nsqd has said what nobody says to a publish."""
        if not self.teller.done():
            self.dispatcher.misunderstood(self, data)

    def fail(self, error: Exception) -> None:
        """nsqd has refused it, or is gone."""
        if not self.teller.done():
            self.dispatcher.failed_one(self, error)


class Moved(Request):
    """Keeps the place of a publish on a silent connection, when it was sent on another as well."""

    __slots__ = ("_link", "_publish")

    def __init__(self, publish: Publish, link: Connection) -> None:
        self.size = publish.size
        self.asked_at = publish.asked_at
        self._publish = publish
        self._link = link

    def confirm(self) -> None:
        """nsqd has said OK after all."""
        if not self._publish.teller.done():
            self._publish.dispatcher.confirmed_late(self._publish, self._link.address)

    def respond(self, data: bytes) -> None:
        """What nobody says to a publish; the other send has its own answer."""

    def fail(self, error: Exception) -> None:
        """nsqd has refused it, or is gone; the other send has its own answer."""


# Commands


def publish_command(topic: str, body: bytes) -> bytes:
    """PUB.

    Raises:
        ValueError: the topic's name is not valid, or the body is empty or too large to say.
        TypeError: the body is no bytes.
    """
    return _head("PUB", topic) + _sized(body)


def multi_publish_command(topic: str, bodies: Sequence[bytes]) -> bytes:
    """MPUB.

    Raises:
        ValueError: as for ``publish_command``, or there is no body.
        TypeError: a body is no bytes.
    """
    if isinstance(bodies, bytes | bytearray | memoryview | str) or not isinstance(bodies, Sized):
        raise TypeError(f"bodies are a sequence of bytes, not {type(bodies).__name__}")
    if not bodies:
        raise ValueError("bodies has no messages")
    messages = b"".join(map(_sized, bodies))
    return _head("MPUB", topic) + _sized(_SIZE.pack(len(bodies)) + messages)


def publish_deferred_command(topic: str, body: bytes, delay_seconds: float) -> bytes:
    """DPUB.

    Raises:
        ValueError: as for ``publish_command``, or the delay is negative or too long.
        TypeError: the body is no bytes, or the delay no number.
    """
    check_delay(delay_seconds)
    delay_ms = milliseconds(delay_seconds)
    return b"%b %d\n%b" % (_head("DPUB", topic)[:-1], delay_ms, _sized(body))


@lru_cache(maxsize=1024)
def _head(command: str, topic: str) -> bytes:
    check_name("topic", topic)
    return f"{command} {topic}\n".encode()


def _sized(body: bytes) -> bytes:
    if type(body) is not bytes:
        body = _as_bytes(body)
    size = len(body)
    if not 0 < size <= BODY_BYTES_MAX:
        raise ValueError(_bad_size(size))
    return _SIZE.pack(size) + body


def _as_bytes(body: Any) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    hint = ": encode it" if isinstance(body, str) else ""
    raise TypeError(f"a message is bytes, not {type(body).__name__}{hint}")


def _bad_size(size: int) -> str:
    if not size:
        return "a message has at least one byte"
    return f"{size} bytes are more than one command can have, {BODY_BYTES_MAX}"
