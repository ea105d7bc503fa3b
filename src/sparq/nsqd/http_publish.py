"""Publishes over HTTP by a short way: the same answers as aiohttp's, in a third of the time.

A connection begins here. A POST to /pub or /mpub of the plain kind is read, published and answered
here; the first request of any other kind hands the whole connection over to aiohttp, with all
bytes that no request has been made of, and there it stays.

1. Plain is: HTTP/1.1, a length, no coding, no expectation, a body of at most 256 KiB that is not
   empty, a legal topic, and no parameter but that and a legal `defer`. Nobody is refused here but
   by the broker: who is to be told what is wrong is told by aiohttp and its handlers.
2. A head is read by aiohttp's own parser, so that no request can mean two things. Clients send the
   same few heads over and over: each is read once and then known by its bytes.
3. One request of a connection is under way at a time; what was sent behind it waits.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError

from sparq.daemon.http import IDLE_SECONDS, JSON, TEXT, HttpError, parse_query
from sparq.nsqd.http import defer_of, lines_of, publish_error
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Bodies
from sparq.protocol.names import is_valid_name

if TYPE_CHECKING:
    from sparq.nsqd.server import Nsqd

HEAD_BYTES_MAX: Final = 8 << 10
"""A longer head is aiohttp's."""

BODY_BYTES_MAX: Final = 256 << 10
"""A longer body is aiohttp's, which takes it piece by piece."""

RECEIVED_BYTES_MAX: Final = HEAD_BYTES_MAX + BODY_BYTES_MAX
"""With more than this unanswered no more is read."""

HEADS_MAX: Final = 4_096
"""So many heads are known at a time."""

END: Final = b"\r\n\r\n"
PLAIN_HEADERS: Final = frozenset(
    ("host", "user-agent", "accept", "accept-encoding", "content-length", "content-type")
)
"""Headers that change nothing here; `Connection: keep-alive` is the only other one taken."""


class Head(NamedTuple):
    """What a head asks for.

    Attributes:
        topic: where to publish.
        many: whether each line of the body is a message.
        size: of the body, in bytes.
        defer_ms: how long the messages wait; 0: not at all.
    """

    topic: str
    many: bool
    size: int
    defer_ms: int


class Door:
    """What the connections of one listener share.

    Attributes:
        connections: those that have not been handed over.
    """

    def __init__(self, nsqd: Nsqd, to_aiohttp: Callable[[], asyncio.Protocol]) -> None:
        """`to_aiohttp` makes the protocol that takes a connection over."""
        self.nsqd = nsqd
        self.to_aiohttp = to_aiohttp
        self.connections: set[Connection] = set()
        self._heads: dict[bytes, Head | None] = {}
        self._ok = b""
        self._ok_second = 0

    def enter(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self)

    def read(self, head: bytes) -> Head | None:
        """What this head asks for; None where that is not for us."""
        try:
            return self._heads[head]
        except KeyError:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            found = self._heads[head] = self._read(head)
            return found

    def _read(self, head: bytes) -> Head | None:
        loop, limits = self.nsqd.loop, self.nsqd.limits
        try:
            parsed, _, _ = HttpRequestParser(BaseProtocol(loop), loop, HEAD_BYTES_MAX).feed_data(
                head
            )
        except HttpProcessingError:
            return None
        if not parsed:  # line ends alone
            return None
        message = parsed[0][0]
        size = message.headers.get("Content-Length", "")
        path, _, raw_query = message.path.partition("?")
        names = {name.lower() for name in message.headers}
        if "connection" in names and message.headers["Connection"].lower() == "keep-alive":
            names.discard("connection")
        plain = (
            message.method == "POST"
            and message.version == HttpVersion11
            and path in ("/pub", "/mpub")
            and names <= PLAIN_HEADERS
            and len(message.headers.getall("Content-Length", ())) == 1
            and size.isascii()
            and size.isdigit()
            and not (message.should_close or message.upgrade or message.chunked)
        )
        if not plain or not 0 < int(size) <= min(BODY_BYTES_MAX, limits.max_msg_size):
            return None
        try:
            query = parse_query(raw_query)
            defer_ms = defer_of(query, limits.max_req_timeout_ms)
        except HttpError:
            return None
        topic = query.get("topic", "")
        if not is_valid_name(topic) or not query.keys() <= {"topic", "defer"}:
            return None
        return Head(topic, path == "/mpub", int(size), defer_ms)

    def ok(self) -> bytes:
        """The answer to a publish that is kept."""
        second = int(time.time())
        if second != self._ok_second:
            self._ok, self._ok_second = _answer("200 OK", TEXT, b"OK"), second
        return self._ok

    def stop(self) -> None:
        """Close each connection, behind the answer that it waits for."""
        for connection in tuple(self.connections):
            connection.stop()


def _answer(status: str, content_type: str, body: bytes) -> bytes:
    """An answer in bytes, with the headers that aiohttp's have."""
    head = (
        f"HTTP/1.1 {status}\r\nServer: sparq\r\nX-NSQ-Content-Type: nsq; version=1.0\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"Date: {formatdate(usegmt=True)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """A client of the HTTP port, for as long as it only publishes."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._transport: asyncio.Transport
        self._received = b""
        self._at = 0
        self._waits = False
        self._is_slow = False
        self._ending = False
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, with a deadline."""
        # uvloop's transports are not registered as asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._door.connections.add(self)
        self._heard_at = time.monotonic()
        self._watch(IDLE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever waits for an answer goes on without one."""
        self._leave()

    def _leave(self) -> None:
        self._ending = True
        self._door.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, seconds: float) -> None:
        self._timer = self._door.nsqd.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """End a connection that has not said anything whole for too long."""
        left = IDLE_SECONDS - (time.monotonic() - self._heard_at)
        if self._waits:
            self._watch(IDLE_SECONDS)
        elif left > 0:
            self._watch(left)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes, and a request if they make one."""
        left = len(self._received) - self._at
        self._received = self._received[self._at :] + data if left else data
        self._at = 0
        if not (self._waits or self._is_slow):
            self._next()
        elif len(self._received) > RECEIVED_BYTES_MAX:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The client does not read its answers: its requests wait."""
        self._is_slow = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_slow = False
        self._go_on()

    def eof_received(self) -> bool:
        """Who waits for an answer still gets it."""
        if not self._waits:
            return False
        self._ending = True
        return True

    def stop(self) -> None:
        """nsqd ends: close, behind an answer that is awaited."""
        self._ending = True
        if not self._waits:
            self._transport.close()

    def _next(self) -> None:
        """Begin the next request, if it is there and ours."""
        received, at = self._received, self._at
        if at == len(received):
            return
        body_at = received.find(END, at, at + HEAD_BYTES_MAX) + len(END)
        if body_at < len(END):
            # Not there in full; what cannot become a publish need not wait for that.
            is_post = b"POST /".startswith(received[at : at + 6])
            if not is_post or len(received) - at >= HEAD_BYTES_MAX:
                self._hand_over()
            return
        head = self._door.read(received[at:body_at])
        if head is None:
            self._hand_over()
            return
        body = received[body_at : body_at + head.size]
        if len(body) != head.size:
            return
        bodies = lines_of(body) if head.many else Bodies(body, [0], [len(body)])
        if not len(bodies):  # line ends alone
            self._hand_over()
            return
        self._at = body_at + head.size
        self._heard_at = time.monotonic()
        self._publish(head, bodies)

    def _publish(self, head: Head, bodies: Bodies) -> None:
        nsqd = self._door.nsqd
        self._waits = True
        if nsqd.exiting:
            self.answered(RemoteError("E_PUB_FAILED", "PUB failed exiting"))
            return
        nsqd.begin_publish(head.topic, bodies, self, head.defer_ms)

    def answered(self, error: RemoteError | None) -> None:
        """The publish is kept, or refused."""
        self._waits = False
        if self._transport.is_closing():
            return
        if error is None:
            self._transport.write(self._door.ok())
        else:
            code = publish_error(error).code
            body = json.dumps({"message": code}, separators=(",", ":")).encode()
            self._transport.write(_answer("503 Service Unavailable", JSON, body))
        if self._ending:
            self._transport.close()
        elif self._at < len(self._received):
            self._door.nsqd.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not (self._waits or self._is_slow or self._ending or self._transport.is_closing()):
            if len(self._received) - self._at <= RECEIVED_BYTES_MAX:
                self._transport.resume_reading()
            self._next()

    def _hand_over(self) -> None:
        """Give the connection to aiohttp, with what it has not had an answer to."""
        self._leave()
        received, self._received = self._received[self._at :], b""
        protocol = self._door.to_aiohttp()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(received)
