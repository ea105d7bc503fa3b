"""One publish: its command, the receiver of its outcome, and its state so far.

1. A command is checked before it is sent: nsqd closes the connection after an invalid command, and
   other publishes share that connection.
2. An outcome is delivered once: a receipt or an error. A publish that was cancelled or timed out
   gets no further outcome.
3. The head of a command is built once per topic, not once per message.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence, Sized
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from sparq.client.arguments import check_delay, check_name
from sparq.client.config import milliseconds
from sparq.client.requests import PendingRequest
from sparq.protocol.errors import RemoteError

if TYPE_CHECKING:
    from sparq.client.connection import Connection

BODY_BYTES_MAX: Final = 2**31 - 1
"""The protocol's size limit; nsqd's own limits (--max-msg-size, --max-body-size) are lower."""

_SIZE: Final = struct.Struct(">i")


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


Outcome = Receipt | Exception
OnDone = Callable[[Outcome], object]


class ResultSink(Protocol):
    """The receiver of an outcome: a future that a task awaits, or a ``Callback``."""

    def done(self) -> bool:
        """Whether the publish has an outcome or was cancelled."""

    def set_result(self, result: Receipt, /) -> None:
        """Report that nsqd has acknowledged the publish."""

    def set_exception(self, exception: Exception, /) -> None:
        """Report that the publish has failed permanently."""


class Callback:
    """Passes the outcome to a function; its exceptions go to the loop's exception handler."""

    __slots__ = ("_call", "_done", "_loop")

    def __init__(self, call: OnDone, loop: asyncio.AbstractEventLoop) -> None:
        if not callable(call):
            raise TypeError(f"on_done must be a function, not {type(call).__name__}")
        self._call = call
        self._loop = loop
        self._done = False

    def done(self) -> bool:
        """Whether the function was called."""
        return self._done

    def set_result(self, result: Outcome, /) -> None:
        """Call the function with the outcome."""
        self._done = True
        try:
            if (left := self._call(result)) is not None and asyncio.iscoroutine(left):
                # Otherwise Python warns as well that the coroutine was never awaited.
                left.close()
                raise TypeError("on_done is called, not awaited: use a function that is not async")
        except Exception as error:
            # A failing callback must not stop the callbacks of later answers.
            context = {"message": f"publish_nowait: {self._call!r} failed", "exception": error}
            self._loop.call_exception_handler(context)

    set_exception = set_result


class Outcomes(Protocol):
    """The sender of publishes, which handles nsqd's answers to them: a dispatcher."""

    def confirmed(self, publishes: Sequence[PendingPublish]) -> None:
        """Handle OK for each of these, on one connection."""

    def confirmed_late(self, publish: PendingPublish, address: str) -> None:
        """Handle OK from the nsqd at this address, after the publish was sent to another one."""

    def misunderstood(self, publish: PendingPublish, data: bytes) -> None:
        """Handle an answer that no nsqd gives to a publish."""

    def failed_one(self, publish: PendingPublish, error: Exception) -> None:
        """Handle a refusal, or the loss of the connection."""


class PendingPublish(PendingRequest):
    """One pending publish; its connection passes it nsqd's answer.

    Attributes:
        dispatcher: sends it and handles nsqd's answers.
        command: the bytes to send.
        message_count: number of messages that it publishes.
        sink: receives the outcome.
        deadline: when it is given up; loop time.
        link: the connection of the last send; None: it waits to be sent.
        attempts: number of sends.
        spared: number of sends that nsqd certainly did not execute, for reasons outside this
            publish (another command's error, draining).
        unanswered: number of sends without an answer.
        moved: number of those given up while their connection was still open.
        resent: number of sends without an answer that were followed by another send.
        refusal: an nsqd's refusal to store it; another nsqd may accept it.
        refused_by: addresses of the nsqds that refused to store it.
        timer: gives the publish up at its deadline.
    """

    dispatcher: Outcomes

    # Class attributes as defaults: they seldom change, and there is one instance per message. Hence
    # no `__slots__`, unlike in the other requests: a slot cannot have a default.
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
        self, command: bytes, message_count: int, sink: ResultSink, asked_at: float, deadline: float
    ) -> None:
        self.command = command
        self.size = len(command)
        self.message_count = message_count
        self.sink = sink
        self.asked_at = asked_at
        self.deadline = deadline

    def confirm(self) -> None:
        """Handle OK."""
        self.dispatcher.confirmed((self,))

    @classmethod
    def confirm_all(cls, requests: Sequence[PendingPublish]) -> None:
        """Handle OK for several publishes, in one call of the dispatcher that they share."""
        requests[0].dispatcher.confirmed(requests)

    def respond(self, data: bytes) -> None:
        """Handle an answer that no nsqd gives to a publish."""
        if not self.sink.done():
            self.dispatcher.misunderstood(self, data)

    def fail(self, error: Exception) -> None:
        """Handle a refusal, or the loss of the connection."""
        if not self.sink.done():
            self.dispatcher.failed_one(self, error)


class ResentPublish(PendingRequest):
    """Takes the place of a publish on a silent connection, once it was sent on another as well."""

    __slots__ = ("_link", "_publish")

    def __init__(self, publish: PendingPublish, link: Connection) -> None:
        self.size = publish.size
        self.asked_at = publish.asked_at
        self._publish = publish
        self._link = link

    def confirm(self) -> None:
        """Handle a late OK, unless the publish already has an outcome."""
        if not self._publish.sink.done():
            self._publish.dispatcher.confirmed_late(self._publish, self._link.address)

    def respond(self, data: bytes) -> None:
        """Ignore an invalid answer; the other send gets its own answer."""

    def fail(self, error: Exception) -> None:
        """Ignore a refusal or a lost connection; the other send gets its own answer."""


# Commands


def publish_command(topic: str, body: bytes) -> bytes:
    """Build PUB.

    Raises:
        ValueError: the topic name is not valid, or the body is empty or has over 2^31 - 1 bytes.
        TypeError: the body is not bytes.
    """
    return _head("PUB", topic) + _sized(body)


def multi_publish_command(topic: str, bodies: Sequence[bytes]) -> bytes:
    """Build MPUB.

    Raises:
        ValueError: as for ``publish_command``, or there are no bodies.
        TypeError: a body is not bytes, or ``bodies`` is not a sequence.
    """
    if isinstance(bodies, bytes | bytearray | memoryview | str) or not isinstance(bodies, Sized):
        raise TypeError(f"bodies must be a sequence of bytes, not {type(bodies).__name__}")
    if not bodies:
        raise ValueError("bodies is empty: at least one message is needed")
    messages = b"".join(map(_sized, bodies))
    return _head("MPUB", topic) + _sized(_SIZE.pack(len(bodies)) + messages)


def publish_deferred_command(topic: str, body: bytes, delay_seconds: float) -> bytes:
    """Build DPUB.

    Raises:
        ValueError: as for ``publish_command``, or the delay is negative or too long for nsqd.
        TypeError: the body is not bytes, or the delay is not a number.
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
    raise TypeError(f"a message must be bytes, not {type(body).__name__}{hint}")


def _bad_size(size: int) -> str:
    if not size:
        return "a message must not be empty"
    return f"{size} bytes do not fit into one command: at most {BODY_BYTES_MAX}"
