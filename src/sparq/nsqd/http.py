"""nsqd over HTTP (docs/http.md): its endpoints, the fast path for publishes, its servers.

Loading this module takes a quarter of a second, mostly for aiohttp: `serving.serve` does it in a
thread, after TCP clients are served. Until then the HTTP ports refuse clients.

1. Checks run in NSQ's order, since clients see the first one that fails.
2. A publish is answered when its messages are stored, a change of topics or channels when it is on
   disk.
3. A publish that storage refuses gets 503 `PUB_FAILED: <reason>`; while nsqd stops it gets 503
   EXITING, while nsqd drains 503 DRAINING.

`/config/<option>` reads every option and changes two of them:

4. An option is named by its key in a configuration file. A text is sent as it is, all other values
   as JSON; values that Go stores as numbers (levels, TLS versions) are sent as those numbers.
5. Options that nsqd determines itself (node id, ports) are returned with their actual values.
6. A URL is returned without its user, password and query; the value of a token is never returned.

The fast path gives the same answers as aiohttp, in a third of the time. Each connection begins
there. A plain POST to /pub or /mpub is read, published and answered there. The first request of any
other kind hands the whole connection over to aiohttp, with all unprocessed bytes, and it stays
there.

7. A plain request has: HTTP/1.1, a Content-Length, no chunked or encoded body, no Expect header, a
   body of 1 byte to 256 KiB, a legal topic, and no parameter except the topic and a legal `defer`.
   Only the broker refuses publishes there: aiohttp and its handlers answer invalid requests.
8. A head is parsed by aiohttp's own parser, so that no request has two interpretations. Clients
   send the same few heads again and again: each is parsed once and then looked up by its bytes.
9. Each connection has one request in progress at a time; later ones wait.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError

from sparq.daemon.access.rules import Role
from sparq.daemon.debug import Debug
from sparq.daemon.http import (
    IDLE_SECONDS,
    JSON,
    TEXT,
    Call,
    Content,
    Gate,
    HttpError,
    Route,
    Site,
    parse_query,
    topic_channel,
)
from sparq.daemon.options import hidden, public
from sparq.daemon.prometheus_text import CONTENT_TYPE
from sparq.daemon.reload import LEVEL_NUMBERS, new_value
from sparq.nsqd import metrics, stats_format
from sparq.nsqd.draining import DrainRoutes
from sparq.nsqd.inspection import Inspection
from sparq.nsqd.message_actions import MessageActions
from sparq.nsqd.options import HTTPS_ADDRESS, NsqdOptions
from sparq.nsqd.parameters import shown_time, target_of
from sparq.nsqd.policies import PolicyRoutes
from sparq.nsqd.turns import instant
from sparq.options.declare import flags_of
from sparq.options.units import MILLISECOND, SECOND
from sparq.protocol import NSQ_VERSION
from sparq.protocol.errors import DRAINING, RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.go_json import to_bytes
from sparq.protocol.names import is_valid_name
from sparq.protocol.runs import parse_body
from sparq.wire.layers import TLS_VERSIONS

if TYPE_CHECKING:
    from sparq.nsqd.main import Listeners
    from sparq.nsqd.reload import Reloader
    from sparq.nsqd.server import Nsqd

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_NEWLINE = 0x0A

DONE_SECONDS = 5.0
"""How long a change may wait for the disk before it is answered with 503 NOT_DONE."""

_TLS_REQUIRED = {"false": 0, "true": 1, "tcp-https": 2}

_SHOWN: dict[str, Callable[[Any], Any]] = {
    "log_level": LEVEL_NUMBERS.__getitem__,
    "tls_required": _TLS_REQUIRED.__getitem__,
    "tls_min_version": lambda name: TLS_VERSIONS[name].value,
    "http_token": hidden,
    "lookupd_token": hidden,
    "auth_http_addresses": lambda urls: [public(url) for url in urls],
}

NOT_IN_GO = ("verbose", "worker_id")
"""Flags of Go's nsqd that are not options in Go: 400 INVALID_OPTION, here too."""

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

GATE_HEADERS = {
    "Server": "sparq",
    "X-Nsq-Content-Type": "nsq; version=1.0",
    "Content-Type": "application/json; charset=utf-8",
}

T = TypeVar("T")

logger = logging.getLogger(__name__)


class NsqdEndpoints:
    """The HTTP handlers of one nsqd."""

    def __init__(self, nsqd: Nsqd, reloader: Reloader) -> None:
        self._nsqd = nsqd
        self._reloader = reloader
        self._broker = nsqd.broker
        self._limits = nsqd.limits
        self._start_ns = time.time_ns()
        self.debug = Debug()
        self._inspection = Inspection(nsqd)

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        broker = self._broker
        return [
            Route("GET", "/ping", self.ping, plain=True, log=False),
            Route("GET", "/live", lambda _call: "OK", plain=True, log=False),
            Route("GET", "/info", self.info),
            Route("GET", "/stats", self.stats, log=False),
            Route("GET", "/metrics", self.metrics, plain=True, log=False),
            Route("POST", "/pub", self.publish, log=False),
            Route("POST", "/mpub", self.multi_publish, log=False),
            *(
                Route("POST", f"/topic/{verb}", partial(self.change_topic, act, is_checked))
                for verb, act, is_checked in (
                    ("create", broker.create_topic, True),
                    # As in NSQ, these do not check the name.
                    ("delete", broker.delete_topic, False),
                    ("pause", partial(broker.pause_topic, paused=True), False),
                    ("unpause", partial(broker.pause_topic, paused=False), False),
                    # Messages that no channel may see yet.
                    ("empty", broker.empty_topic, True),
                )
            ),
            *(
                Route("POST", f"/channel/{verb}", partial(self.change_channel, act))
                for verb, act in (
                    ("create", broker.create_channel),
                    ("delete", broker.delete_channel),
                    # A range reader continues in a paused channel.
                    ("pause", partial(broker.pause_channel, paused=True)),
                    ("unpause", partial(broker.pause_channel, paused=False)),
                    # All messages, including those in flight.
                    ("empty", broker.empty_channel),
                )
            ),
            Route("POST", "/channel/seek", self.seek_channel),
            Route("POST", "/client/close", self.close_client),
            *self._inspection.routes(),
            *MessageActions(self._nsqd, self._inspection, self._change).routes(),
            *PolicyRoutes(self._nsqd).routes(),
            *DrainRoutes(self._nsqd).routes(),
            Route("GET", "/config/:opt", self.read_option),
            Route("PUT", "/config/:opt", self.write_option),
            *(self.debug.routes(of_nsqd=True) if self._nsqd.options.http.debug_routes else ()),
        ]

    # Health, information, statistics

    def ping(self, _call: Call) -> str:
        """Return OK if nsqd is healthy; otherwise 500 with the reason."""
        health = self._broker.health()
        if health != "OK":
            raise HttpError(500, health)
        return health

    def info(self, _call: Call) -> dict[str, Any]:
        """Return names, ports and limits, for nsqadmin and clients."""
        nsqd, limits, broker = self._nsqd, self._limits, self._nsqd.options.broker
        return {
            "version": NSQ_VERSION,
            "broadcast_address": nsqd.options.lookupd.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": nsqd.http_port,
            "tcp_port": nsqd.tcp_port,
            "start_time": self._start_ns // SECOND,
            "max_heartbeat_interval": limits.max_heartbeat_interval_ms * MILLISECOND,
            "max_output_buffer_size": limits.max_output_buffer_size,
            "max_output_buffer_timeout": limits.max_output_buffer_timeout_ms * MILLISECOND,
            "max_deflate_level": limits.max_deflate_level,
            "topology_zone": broker.topology_zone,
            "topology_region": broker.topology_region,
        }

    async def stats(self, call: Call) -> Content:
        """Return the statistics of topics, channels and clients."""
        query, access = call.query, self._nsqd.access
        wanted = stats_format.StatsRequest(
            query.get("topic") or None,
            query.get("channel") or None,
            call.flag("include_clients", True),
            call.flag("include_mem", True),
            # Who may read one topic is not shown the clients of the others.
            all_producers=access is None or access.allows(call, Role.READ),
            client=query.get("client") or None,
        )
        as_json = query.get("format") == "json"
        pieces = (stats_format.json_pieces if as_json else stats_format.text_pieces)(
            self._broker, wanted, self._start_ns, instant()
        )
        body = b"".join(await stats_format.encoded(pieces))
        return Content(body, JSON if as_json else TEXT)

    async def metrics(self, _call: Call) -> Content:
        """Return the figures for Prometheus."""
        pieces = metrics.pieces(self._nsqd, self._start_ns, instant())
        return Content(b"".join(await stats_format.encoded(pieces)), CONTENT_TYPE)

    # Publishing

    async def publish(self, call: Call) -> str:
        """Publish one message."""
        body = await call.body(self._limits.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        topic = valid_topic(call)
        defer_ms = defer_of(call.query, self._limits.max_req_timeout_ms)
        return await self._publish(topic, BodySlices.of([body]), defer_ms)

    async def multi_publish(self, call: Call) -> str:
        """Publish many messages: one per line, or in MPUB's binary form."""
        if (call.request.content_length or 0) > self._limits.max_body_size:
            raise HttpError(413, "BODY_TOO_BIG")
        topic = valid_topic(call)
        defer_ms = defer_of(call.query, self._limits.max_req_timeout_ms)
        binary = is_binary(call)
        body = await call.body(self._limits.max_body_size, "BODY_TOO_BIG")
        bodies = self._bodies(body, is_binary=binary)
        if "channel" in call.query:
            return await self._publish_to_channel(*topic_channel(call), bodies)
        if not len(bodies) and not self._broker.drains.refusal(topic):
            # As in NSQ, naming a topic creates it, even without a message.
            await self._change(topic, lambda now: self._broker.create_topic(topic, now))
            return "OK"
        return await self._publish(topic, bodies, defer_ms)

    def _bodies(self, body: bytes, *, is_binary: bool) -> BodySlices:
        """Return the messages of an /mpub."""
        if is_binary:
            try:
                return parse_body(body, self._limits.max_msg_size, self._limits.max_body_size)
            except RemoteError as error:
                raise HttpError(413, error.code.removeprefix("E_")) from error
        bodies = lines_of(body)
        if len(bodies) and int(np.max(bodies.sizes)) > self._limits.max_msg_size:
            raise HttpError(413, "MSG_TOO_BIG")
        return bodies

    async def _publish(self, topic: str, bodies: BodySlices, defer_ms: int) -> str:
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        try:
            await self._nsqd.publish(topic, bodies, defer_ms)
        except RemoteError as error:
            raise publish_error(error) from error
        return "OK"

    async def _publish_to_channel(self, name: str, channel: str, bodies: BodySlices) -> str:
        """Publish to one channel only, for a topic that moves here (see `sparq admin move`).

        They cannot go to that channel alone if the topic does not pass messages on (it is paused,
        or waits for its channels from nsqlookupd), or if another channel is read by ranges (a range
        of the log contains every message).
        """
        topic = self._broker.topics.get(name)
        if topic is None or channel not in topic.channels:
            raise HttpError(404, "TOPIC_NOT_FOUND" if topic is None else "CHANNEL_NOT_FOUND")
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        if not len(bodies):
            return "OK"
        if not topic.flows:
            raise HttpError(400, f"INVALID_REQUEST: topic {name} is paused")
        for other in topic.channels.values():
            if other.name != channel and other.range_epoch:
                raise HttpError(400, f"INVALID_REQUEST: channel {other.name} is read by ranges")
        begin = partial(self._broker.publish, name, bodies, instant(), only=channel)
        try:
            await self._nsqd.ask(begin)
        except RemoteError as error:
            raise publish_error(error) from error
        return "OK"

    # Topics and channels

    async def change_topic(self, act: Callable[..., object], is_checked: bool, call: Call) -> None:
        """Create, delete, empty, pause or unpause a topic; `act` is the broker's method."""
        topic = valid_topic(call) if is_checked else call.argument("topic")
        await self._change(topic, partial(act, topic))

    async def change_channel(self, act: Callable[..., object], call: Call) -> None:
        """Create, delete, empty, pause or unpause a channel; `act` is the broker's method."""
        topic, channel = topic_channel(call)
        await self._change(topic, partial(act, topic, channel))

    async def seek_channel(self, call: Call) -> dict[str, Any]:
        """Move a channel's cursor; return its new place and how many messages come again.

        With `dry_run` the cursor stays where it is; with `may_skip=false`, also if unfinished
        messages would be skipped.
        """
        topic, channel = topic_channel(call)
        target = target_of(call.query.get("to"), time.time_ns())
        dry_run, may_skip = call.flag("dry_run", False), call.flag("may_skip", True)
        # Skipping unfinished messages has the effect of emptying, so it needs the same role.
        access = self._nsqd.access
        may_empty = access is None or access.allows(call, Role.ADMINISTER, topic)
        seek = await self._change(
            topic,
            lambda now: self._broker.seek(
                topic, channel, target, now, dry_run=dry_run, may_skip=may_skip and may_empty
            ),
        )
        if seek.landing is None and seek.error is None:
            # It had to read more than once.
            await self._change(topic, lambda now: None)
        if seek.error is not None:
            raise HttpError(500, f"INTERNAL_ERROR: {seek.error.reason}")
        if seek.landing is None:  # the channel was deleted before the place was found
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        if seek.refused:
            skips = f"the seek skips {seek.landing.skipped} unfinished messages"
            if not may_empty:
                raise HttpError(403, f"FORBIDDEN: {skips}, which needs the role administer")
            raise HttpError(409, f"WOULD_SKIP: {skips}")
        landing, oldest = seek.landing, seek.landing.oldest_index
        return {
            "index": str(landing.index),
            "time": shown_time(landing.time_ns),
            "again": landing.again,
            "waiting": landing.waiting,
            "skipped": landing.skipped,
            "oldest_index": None if oldest is None else str(oldest),
            "oldest_time": shown_time(landing.oldest_time_ns),
            # So that "older ones are deleted" is not mistaken for "there were none".
            "older_are_gone": landing.older_are_gone,
        }

    # Clients

    async def close_client(self, call: Call) -> None:
        """Close the connection of a client, named by its remote address as in `/stats`."""
        address = call.argument("client")
        # Clients of a Unix socket have no address.
        if not address or not await self._nsqd.disconnect(address):
            raise HttpError(404, "CLIENT_NOT_FOUND")

    # Options

    def read_option(self, call: Call) -> Any:
        """Return an option's value."""
        return self._option(call.parameters["opt"])

    async def write_option(self, call: Call) -> Any:
        """Change an option; return its new value."""
        name = call.parameters["opt"]
        body = await call.body(self._limits.max_msg_size, "INVALID_VALUE")
        # As in NSQ, an empty body gets 413, too.
        if not body:
            raise HttpError(413, "INVALID_VALUE")
        if name not in ("log_level", "nsqlookupd_tcp_addresses"):
            raise HttpError(400, "INVALID_OPTION")
        try:
            value = new_value(name, body)
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        if name == "log_level":
            self._reloader.set_log_level(value)
        else:
            self._reloader.set_lookupd_addresses(value)
        # As in Go, where no list differs from an empty one.
        return Content(b"null", JSON) if body.strip() == b"null" else self._option(name)

    def _option(self, name: str) -> Any:
        nsqd, options = self._nsqd, self._nsqd.options
        flags = {flag.key: flag for flag in flags_of(type(options)) if flag.key not in NOT_IN_GO}
        if name not in flags:
            raise HttpError(400, "INVALID_OPTION")
        determined = {
            "id": self._broker.node_id,
            "broadcast_tcp_port": options.lookupd.broadcast_tcp_port or nsqd.tcp_port,
            "broadcast_http_port": options.lookupd.broadcast_http_port or nsqd.http_port,
        }
        value, unit = determined.get(name, flags[name].value(options)), flags[name].kind.unit
        if unit > 1:
            value *= unit  # Go's durations are nanoseconds
        return _SHOWN[name](value) if name in _SHOWN else value

    async def _change(self, topic: str, apply: Callable[..., T]) -> T:
        """Apply a change to a topic; return its result once it is complete and on disk.

        Raises:
            HttpError: the change is refused; or 503 NOT_DONE with the reason, if the disk does not
                accept it in time. It is retried until it succeeds, also after a restart.
        """
        if self._nsqd.exiting:
            raise HttpError(503, "EXITING")
        try:
            result = apply(now=instant())
        except RemoteError as error:
            raise change_error(error) from error
        try:
            # One limit for all of it: the tasks of other topics come first, however slow they are.
            async with asyncio.timeout(DONE_SECONDS):
                await self._nsqd.turns.wait_until_complete(topic)
        except TimeoutError:
            reason = self._broker.not_durable_reason(topic) or "the disk is busy"
            raise HttpError(503, f"NOT_DONE: {reason}") from None
        return result


def valid_topic(call: Call) -> str:
    """Return the argument `topic`.

    Raises:
        HttpError: 400, it is missing or is not a legal name.
    """
    topic = call.argument("topic")
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_TOPIC")
    return topic


def defer_of(query: Mapping[str, str], longest_ms: int) -> int:
    """Return the parameter `defer` in milliseconds; 0 if it is missing.

    Raises:
        HttpError: 400 INVALID_DEFER, it is not a number from 0 to `longest_ms`.
    """
    text = query.get("defer")
    if text is None:
        return 0
    defer_ms = int(text) if _NUMBER.fullmatch(text) else -1
    if not 0 <= defer_ms <= longest_ms:
        raise HttpError(400, "INVALID_DEFER")
    return defer_ms


def is_binary(call: Call) -> bool:
    """Whether an /mpub is in binary form; any text that is not a boolean means yes, as in NSQ."""
    if "binary" not in call.query:
        return False
    binary = call.flag("binary", True)
    if call.query["binary"] not in ("true", "1", "false", "0"):
        logger.warning('deprecated value "%s" used for /mpub?binary=', call.query["binary"])
    return binary


def lines_of(body: bytes) -> BodySlices:
    """Split a body at newlines (only those) into messages; empty lines are left out."""
    # Not `splitlines`, which also splits at \r; not `split`, which copies each body. These are
    # slices of the one buffer.
    breaks = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)
    starts = np.concatenate(([0], breaks + 1)).astype(np.int64)
    sizes = np.concatenate((breaks, [len(body)])).astype(np.int64) - starts
    filled = sizes > 0
    return BodySlices(body, starts[filled], sizes[filled])


def publish_error(error: RemoteError) -> HttpError:
    """Return the HTTP error for a refused publish."""
    if error.drained:
        return HttpError(503, "DRAINING" if error.drained == DRAINING else "TOPIC_DRAINING")
    command = error.code.removeprefix("E_").removesuffix("_FAILED")
    reason = error.text.removeprefix(f"{command} failed ")
    if reason == "exiting":
        return HttpError(503, "EXITING")
    return HttpError(503, f"PUB_FAILED: {reason}")


def change_error(error: RemoteError) -> HttpError:
    """Return the HTTP error for a refused change: NSQ's code, with the reason unless nsqd stops."""
    code = error.code.removeprefix("E_")
    if code == "EXITING":
        return HttpError(error.http_status, code)
    return HttpError(error.http_status, f"{code}: {error.text}" if error.text else code)


# The fast path


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


# The servers


def tls_requirement(options: NsqdOptions, https_port: int) -> Gate | None:
    """Return the check that answers plain HTTP with 403 if TLS is required (docs/http.md).

    The answer names the HTTPS port. Every plain request is refused, including /ping, before the
    path is examined; requests over HTTPS pass. None if plain HTTP is allowed.

    Args:
        options: of `tls_required`, only the value "true" applies to HTTP.
        https_port: the port bound for HTTPS; -1 if there is none.
    """
    if options.tls.required != "true":
        return None
    # As NSQ spells it: with spaces, and 0 for no port.
    text = f'{{"message": "TLS_REQUIRED", "https_port": {max(0, https_port)}}}'

    def refuse_plain(request: web.BaseRequest) -> web.Response | None:
        return None if request.secure else web.Response(status=403, text=text, headers=GATE_HEADERS)

    return refuse_plain


async def start_http(nsqd: Nsqd, reloader: Reloader, listeners: Listeners) -> Site:
    """Start the HTTP and HTTPS servers on their listeners, if there are any."""
    _, http, https = listeners
    gate = tls_requirement(nsqd.options, nsqd.https_port)
    options = nsqd.options
    site = Site(
        NsqdEndpoints(nsqd, reloader).routes(),
        gate,
        nsqd.http_connections_max,
        nsqd.access,
        options.http.request_timeout_ns / SECOND,
    )
    if http is not None:
        # Requests that need a check (TLS gate, token, timeout) go through aiohttp's handlers.
        asks = nsqd.access is not None and nsqd.access.needs_token
        is_open = gate is None and not asks and not options.http.request_timeout_ns
        await site.start(http, fast_path=FastPublishPath(nsqd, site.protocol) if is_open else None)
        logger.info("HTTP: listening on %s", http.text)
    if https is not None and (certificates := nsqd.tls) is not None:
        await site.start(https, certificates.listening_context)
        logger.info("HTTPS: listening on %s", https.text)
        is_everywhere = https.text.startswith(("0.0.0.0:", "[::]:"))
        if options.listen.https_address == HTTPS_ADDRESS and not is_everywhere:
            logger.warning(
                "HTTPS: the port is open on the host of --http-address alone, where Go's nsqd"
                " listens on every address: --https-address=0.0.0.0:%d does that",
                https.port,
            )
    return site
