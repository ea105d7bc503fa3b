"""Fast path for publishes over HTTP: the same answers as aiohttp's, in a third of the time.

Each connection begins here. A plain POST to /pub or /mpub is read, published and answered here. The
first request of any other kind hands the whole connection over to aiohttp, with all unprocessed
bytes, and it stays there.

1. A plain request has: HTTP/1.1, a Content-Length, no chunked or encoded body, no Expect header, a
   body of 1 byte to 256 KiB, a legal topic, and no parameter except the topic and a legal `defer`.
   Here only the broker refuses publishes: aiohttp and its handlers answer invalid requests.
2. A head is parsed by aiohttp's own parser, so that no request has two interpretations. Clients
   send the same few heads again and again: each is parsed once and then looked up by its bytes.
3. Each connection has one request in progress at a time; later ones wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError

from sparq.daemon.http import IDLE_SECONDS, JSON, TEXT, HttpError, parse_query
from sparq.nsqd.http import defer_of, lines_of, publish_error
from sparq.nsqd.turns import instant
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.go_json import to_bytes
from sparq.protocol.names import is_valid_name

if TYPE_CHECKING:
    from sparq.nsqd.server import Nsqd

HEAD_BYTES_MAX: Final = 8 << 10
"""Requests with a longer head are handed over to aiohttp."""

FAST_BODY_BYTES_MAX: Final = 256 << 10
"""Requests with a longer body are handed over to aiohttp, which reads it piece by piece."""

RECEIVED_BYTES_MAX: Final = HEAD_BYTES_MAX + FAST_BODY_BYTES_MAX
"""With more unanswered input than this, reading pauses."""

HEADS_MAX: Final = 4_096
"""Maximum number of cached heads; when it is reached, the cache is cleared."""

END: Final = b"\r\n\r\n"
PLAIN_HEADERS: Final = frozenset(
    ("host", "user-agent", "accept", "accept-encoding", "content-length", "content-type")
)
"""Headers without effect here; `Connection: keep-alive` is the only other one accepted."""


class Head(NamedTuple):
    """A publish request, as its request line and headers describe it.

    Attributes:
        topic: the topic to publish to.
        many: whether each line of the body is a message (/mpub).
        size: size of the body, in bytes.
        defer_ms: delay of the messages, in milliseconds; 0: none.
    """

    topic: str
    many: bool
    size: int
    defer_ms: int


class FastPublishPath:
    """State shared by the connections of one listener.

    Attributes:
        connections: connections that have not been handed over.
    """

    def __init__(self, nsqd: Nsqd, to_aiohttp: Callable[[], asyncio.Protocol]) -> None:
        """`to_aiohttp` makes the protocol that takes over a connection."""
        self.nsqd = nsqd
        self.to_aiohttp = to_aiohttp
        self.connections: set[PublishConnection] = set()
        self._heads: dict[bytes, Head | None] = {}
        self._ok = b""
        self._ok_second = 0

    def enter(self) -> PublishConnection:
        """Make the protocol of a new connection."""
        return PublishConnection(self)

    def read(self, head: bytes) -> Head | None:
        """Parse a head; None: the request is not plain."""
        try:
            # A look-up takes 0.30 us per request. Parsing each head with `httptools` and a parser
            # kept for the connection was tried: 1.08 us.
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
            # `int` also accepts signs, blanks, underscores and the digits of other scripts.
            and size.isascii()
            and size.isdigit()
            and not (message.should_close or message.upgrade or message.chunked)
        )
        if not plain or not 0 < int(size) <= min(FAST_BODY_BYTES_MAX, limits.max_msg_size):
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
        """Return the answer to a successful publish; rebuilt once a second for its Date header."""
        second = int(time.time())
        if second != self._ok_second:
            self._ok, self._ok_second = _answer("200 OK", TEXT, b"OK"), second
        return self._ok

    def stop(self) -> None:
        """Close each connection, after the answer that it waits for."""
        for connection in tuple(self.connections):
            connection.stop()


def _answer(status: str, content_type: str, body: bytes) -> bytes:
    """Encode an answer, with the same headers as aiohttp's answers."""
    head = (
        f"HTTP/1.1 {status}\r\nServer: sparq\r\nX-Nsq-Content-Type: nsq; version=1.0\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"Date: {formatdate(usegmt=True)}\r\n\r\n"
    )
    return head.encode() + body


class PublishConnection(asyncio.Protocol):
    """A client of the HTTP port, as long as it only publishes."""

    def __init__(self, path: FastPublishPath) -> None:
        self._path = path
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
        self._path.connections.add(self)
        self._heard_at = time.monotonic()
        self._watch(IDLE_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up; the result of a publish in progress is dropped."""
        self._leave()

    def _leave(self) -> None:
        self._ending = True
        self._path.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, seconds: float) -> None:
        self._timer = self._path.nsqd.loop.call_later(seconds, self._check_idle)

    def _check_idle(self) -> None:
        """Close a connection that has sent no whole request for `IDLE_SECONDS`."""
        # Requests only note the time: one check per idle period replaces a timer per request.
        left = IDLE_SECONDS - (time.monotonic() - self._heard_at)
        if self._waits:
            self._watch(IDLE_SECONDS)
        elif left > 0:
            self._watch(left)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Store the bytes, and start the next request if it is complete."""
        left = len(self._received) - self._at
        self._received = self._received[self._at :] + data if left else data
        self._at = 0
        if not (self._waits or self._is_slow):
            self._next()
        elif len(self._received) > RECEIVED_BYTES_MAX:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """Hold requests back: the client does not read its answers."""
        self._is_slow = True

    def resume_writing(self) -> None:
        """Go on with requests: the client reads again."""
        self._is_slow = False
        self._go_on()

    def eof_received(self) -> bool:
        """Keep the connection until a pending answer has been sent."""
        if not self._waits:
            return False
        self._ending = True
        return True

    def stop(self) -> None:
        """Close after a pending answer, when nsqd stops."""
        self._ending = True
        if not self._waits:
            self._transport.close()

    def _next(self) -> None:
        """Start the next request if it is complete and plain; hand over one that is not plain."""
        received, at = self._received, self._at
        if at == len(received):
            return
        body_at = received.find(END, at, at + HEAD_BYTES_MAX) + len(END)
        if body_at < len(END):
            # The head is incomplete; one that cannot become a publish is handed over at once.
            is_post = b"POST /".startswith(received[at : at + 6])
            if not is_post or len(received) - at >= HEAD_BYTES_MAX:
                self._hand_over()
            return
        head = self._path.read(received[at:body_at])
        if head is None:
            self._hand_over()
            return
        body = received[body_at : body_at + head.size]
        if len(body) != head.size:
            return
        bodies = lines_of(body) if head.many else BodySlices(body, [0], [len(body)])
        if not len(bodies):  # line ends alone
            self._hand_over()
            return
        self._at = body_at + head.size
        self._heard_at = time.monotonic()
        self._publish(head, bodies)

    def _publish(self, head: Head, bodies: BodySlices) -> None:
        nsqd = self._path.nsqd
        self._waits = True
        if nsqd.exiting:
            self.answered(RemoteError("E_PUB_FAILED", "PUB failed exiting"))
            return
        now = instant()
        nsqd.broker.publish(head.topic, bodies, now, self, defer_ms=head.defer_ms)
        nsqd.turns.schedule()

    def answered(self, error: RemoteError | None) -> None:
        """Send the answer: the publish was stored, or refused with `error`."""
        self._waits = False
        if self._transport.is_closing():
            return
        if error is None:
            self._transport.write(self._path.ok())
        else:
            code = publish_error(error).code
            body = to_bytes({"message": code})
            self._transport.write(_answer("503 Service Unavailable", JSON, body))
        if self._ending:
            self._transport.close()
        elif self._at < len(self._received):
            # Not called here: while nsqd stops, each publish is answered at once, so a client's
            # pipelined requests would recurse.
            self._path.nsqd.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not (self._waits or self._is_slow or self._ending or self._transport.is_closing()):
            if len(self._received) - self._at <= RECEIVED_BYTES_MAX:
                self._transport.resume_reading()
            self._next()

    def _hand_over(self) -> None:
        """Hand the connection and its unanswered input over to aiohttp."""
        self._leave()
        received, self._received = self._received[self._at :], b""
        protocol = self._path.to_aiohttp()
        self._transport.set_protocol(protocol)
        # `set_protocol` does not call it.
        protocol.connection_made(self._transport)
        protocol.data_received(received)
