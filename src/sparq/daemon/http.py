"""NSQ's HTTP behaviour over aiohttp: answers, errors, 404, 405, redirects, limits on bodies.

A daemon provides a table of routes; this module does the rest (docs/http.md).

1. A handler returns text or bytes (sent unchanged), `Content` (sent with its content type), None
   (an empty 200), an aiohttp response (sent unchanged), or any other value (sent as JSON).
   A handler refuses a request with `HttpError`, which becomes an HTTP answer in one place only.
2. Paths are exact. A path that differs in case, in a trailing slash or in `//`, `/./` and `/../` is
   redirected to the right one with its query, with Go's status: 301 for GET, 307 for the others.
3. No body is held in memory above the limit that its handler sets, including chunked ones, and
   none is decompressed.
4. If a streamed answer (`Call.stream`) breaks off, its connection is closed, so that the client
   does not take the answer for complete.
5. Answers that aiohttp makes without a handler (400 for input that is not HTTP, 500 if the site
   itself fails) have the headers of the site, and do not name the versions of Python and aiohttp.
"""

from __future__ import annotations

import asyncio
import html
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sparq.daemon import files
from sparq.daemon.address import Listener, peer_text
from sparq.daemon.call import (
    BODY_SECONDS,
    PLAIN_HEADER,
    Call,
    HttpError,
    Panic,
    parse_query,
    topic_channel,
    unquote_path,
)
from sparq.daemon.routes import Methods, Result, Route, RouteTable
from sparq.protocol.go_json import to_bytes

if TYPE_CHECKING:
    from sparq.daemon.access.access import Access

Gate: TypeAlias = Callable[[web.BaseRequest], web.Response | None]
Words: TypeAlias = "Callable[[web.BaseRequest, HttpError], web.Response | None]"

__all__ = [
    "BODY_SECONDS",
    "Call",
    "Content",
    "HttpError",
    "Route",
    "Site",
    "answer",
    "parse_query",
    "refusal",
    "topic_channel",
    "unquote_path",
]

IDLE_SECONDS = 75.0
"""A connection without a complete request head is closed after this (nginx: keepalive_timeout)."""

SHUTDOWN_SECONDS = 2.0
"""How long a stop waits for requests in progress."""

LINGER_SECONDS = 1.0
"""How long a refused body is still read, so that the client sees the answer."""

LINE_BYTES_MAX = 64 << 10
"""Maximum length of a request line and of a header; a topic name may be percent-encoded."""

logger = logging.getLogger(__name__)


UNAUTHORIZED = 401
TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
_V1_HEADER = {**PLAIN_HEADER, "X-Nsq-Content-Type": "nsq; version=1.0"}


class Content(NamedTuple):
    """A ready-made answer with its content type."""

    body: bytes
    content_type: str


def answer(result: Result, *, plain: bool = False) -> web.StreamResponse:
    """Make the 200 response for a handler's result (rule 1)."""
    if isinstance(result, web.StreamResponse):
        return result
    headers = dict(PLAIN_HEADER if plain else _V1_HEADER)
    if isinstance(result, Content):
        headers["Content-Type"] = result.content_type
        return web.Response(body=result.body, headers=headers)
    if result is None or isinstance(result, str | bytes):
        body = result.encode() if isinstance(result, str) else result
        if body:  # Go detects the type from the body, so an empty one has none
            headers["Content-Type"] = TEXT
        return web.Response(body=body, headers=headers)
    headers["Content-Type"] = JSON
    return web.Response(body=to_bytes(result), headers=headers)


def refusal(error: HttpError, *, plain: bool = False) -> web.Response:
    """Make the response to a refused request."""
    asks = {"WWW-Authenticate": "Bearer"} if error.status == UNAUTHORIZED else {}
    if plain:
        headers = {**PLAIN_HEADER, **asks, "Content-Type": TEXT}
        return web.Response(status=error.status, body=error.code.encode(), headers=headers)
    headers = {**_V1_HEADER, **asks, "Content-Type": JSON}
    return web.Response(
        status=error.status, body=to_bytes({"message": error.code}), headers=headers
    )


class ConnectionRefusal(asyncio.Protocol):
    """A connection above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection at once."""
        # Not close(): over TLS it waits for the peer, and keeps a file open meanwhile.
        cast(asyncio.Transport, transport).abort()


class _OneLine(logging.Filter):
    """Log a request that is not HTTP in one line, without a traceback: it is the client's error."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record; of a bad request's record, only its error."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.args = "HTTP: %s: %s", (record.getMessage(), error.message[:200])
            record.exc_info = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


_connection_logger = logger.getChild("connection")
_connection_logger.addFilter(_OneLine())


class _Connection(web.RequestHandler):
    """An HTTP connection of a site."""

    __slots__ = ("_headers",)

    def __init__(self, server: web.Server, headers: Mapping[str, str], head_seconds: float) -> None:
        """`headers` are added to answers that no handler makes. Call this in the running loop."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=head_seconds,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,
            access_log=None,  # type: ignore[arg-type] # aiohttp documents None: no log
            logger=_connection_logger,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
        )
        self._headers = headers

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return aiohttp's own error answer, with the headers of the site."""
        response = super().handle_error(request, status, exc, message)
        response.headers.update(self._headers)
        return response


class FastPath(Protocol):
    """A daemon's own protocol in front of aiohttp's, for requests that must be fast."""

    @property
    def connections(self) -> Collection[Any]:
        """Connections that have not been handed over to aiohttp."""

    def enter(self) -> asyncio.BaseProtocol:
        """Make the protocol of a new connection."""

    def stop(self) -> None:
        """Close the connections, after their pending answers."""


class Site:
    """The routes of a daemon, and the HTTP server for them."""

    def __init__(
        self,
        routes: Iterable[Route],
        gate: Gate | None = None,
        connections_max: int = files.UNLIMITED,
        access: Access | None = None,
        request_seconds: float = 0.0,
        *,
        base: str = "",
        headers: Mapping[str, str] | None = None,
        compresses: bool = False,
        words: Words | None = None,
    ) -> None:
        """`gate` is called first for each request; if it returns a response, that is the answer.

        New connections above `connections_max` are closed at once. `access` checks and records
        requests; None: no checks. A request's head, and then its body, may take `request_seconds`
        each; 0: `IDLE_SECONDS` for the head, and `BODY_SECONDS` between two pieces of the body.

        All paths are below `base`. Every answer has these `headers`, unless it sets them itself.
        With `compresses`, answers are compressed if the client accepts it and it saves space.
        `words` may replace the answer to a refused request.
        """
        self._gate = gate
        self._access = access
        self._head_seconds = min(IDLE_SECONDS, request_seconds or IDLE_SECONDS)
        self._body_seconds = request_seconds or None
        self._connections_max = connections_max
        self._is_full = False
        self._table = RouteTable(routes, base)
        self._headers = {**PLAIN_HEADER, **(headers or {})}
        self._compresses = compresses
        self._words = words
        self._server: web.Server | None = None
        self._fast_path: FastPath | None = None

    async def start(
        self,
        listener: Listener,
        tls: ssl.SSLContext | None = None,
        fast_path: FastPath | None = None,
    ) -> None:
        """Serve on a listening socket, with `tls` over HTTPS. May be called for several listeners.

        With `fast_path`, connections of this listener begin with its protocol, which may hand
        them over to one made by `protocol`.
        """
        if self._server is None:
            # Not a web.Application: its router has neither Go's redirects nor NSQ's 404 and 405.
            self._server = web.Server(self.respond)
        self._fast_path = fast_path or self._fast_path
        enter = self.protocol if fast_path is None else fast_path.enter
        await listener.serve(lambda: self._admit(enter), tls)

    def protocol(self) -> asyncio.Protocol:
        """Make the aiohttp protocol for one connection."""
        assert self._server is not None
        return _Connection(self._server, self._headers, self._head_seconds)

    def _admit(self, enter: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        assert self._server is not None
        count = len(self._server.connections)
        if self._fast_path is not None:
            count += len(self._fast_path.connections)
        was_full, self._is_full = self._is_full, count >= self._connections_max
        if not self._is_full:
            return enter()
        # One line when the limit is reached: with one for each refusal, a flood would fill the log.
        if not was_full:
            logger.warning(
                "HTTP: refusing connections: the limit of %d clients is reached",
                self._connections_max,
            )
        return ConnectionRefusal()

    async def stop(self) -> None:
        """Finish requests in progress, then close all connections. Close the listeners first."""
        if self._fast_path is not None:
            self._fast_path.stop()
        if self._server is not None:
            self._server.pre_shutdown()
            await self._server.shutdown(SHUTDOWN_SECONDS)

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        shut = None if self._gate is None else self._gate(request)
        if shut is not None:
            return self._dressed(shut, request)
        began = time.monotonic()
        call = Call(request, self._body_seconds, self._headers)
        found = self._table.find(call.path)
        route = None if found is None else found.methods.get(request.method)
        response: web.StreamResponse
        if route is not None and found is not None:
            call.parameters = found.parameters
            response = await self._serve(route, call)
        else:
            response = self._no_such_route(call, None if found is None else found.methods)
        if route is None or route.log:
            _log(request, response, time.monotonic() - began)
        return self._dressed(response, request)

    async def _serve(self, route: Route, call: Call) -> web.StreamResponse:
        access, failure = self._access, None
        if access is not None:
            call.caller, refused = access.decide(route, call)
            if refused is not None:
                return refusal(refused, plain=route.plain)
        try:
            response = await _handle(route, call)
        except HttpError as error:
            is_plain = route.plain and not isinstance(error, Panic)
            response, failure = self._refused(call.request, error, plain=is_plain), error
        if access is not None:
            await access.note(route, call, failure)
        return response

    def _refused(
        self, request: web.BaseRequest, error: HttpError, *, plain: bool = False
    ) -> web.Response:
        own = None if self._words is None else self._words(request, error)
        return own if own is not None else refusal(error, plain=plain)

    def _dressed(
        self, response: web.StreamResponse, request: web.BaseRequest
    ) -> web.StreamResponse:
        """Return an answer with the site's headers, compressed if that is worthwhile."""
        if response.prepared:  # streamed: its headers have been sent
            return response
        for name, value in self._headers.items():
            response.headers.setdefault(name, value)
        if self._compresses and isinstance(response, web.Response):
            compress(response, request)
        return response

    def _no_such_route(self, call: Call, methods: Methods | None) -> web.Response:
        method = call.request.method
        meant = self._table.meant(call.path, method)
        if meant is not None:
            return _redirect(f"{meant}?{call.raw_query}" if call.raw_query else meant, method)
        if methods is None:
            return self._refused(call.request, HttpError(404, "NOT_FOUND"))
        allow = ", ".join(sorted({*methods, "OPTIONS"}))
        if method == "OPTIONS":
            return web.Response(headers={"Allow": allow})
        response = self._refused(call.request, HttpError(405, "METHOD_NOT_ALLOWED"))
        response.headers["Allow"] = allow
        return response


def _redirect(location: str, method: str) -> web.Response:
    """Make Go's redirect; it has a link for a browser that does not follow it."""
    headers = {**PLAIN_HEADER, "Location": location}
    if method != "GET":
        return web.Response(status=307, headers=headers)
    headers["Content-Type"] = "text/html; charset=utf-8"
    link = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
    return web.Response(status=301, text=link, headers=headers)


async def _handle(route: Route, call: Call) -> web.StreamResponse:
    try:
        result = route.handler(call)
        if isinstance(result, Awaitable):
            result = await result
    except Exception as error:
        if call.streamed is not None:
            return _broken_off(route, call, call.streamed, error)
        if isinstance(error, HttpError):
            raise
        logger.exception("panic in HTTP handler of %s", route.path)
        raise Panic from None
    return answer(result, plain=route.plain)


def _broken_off(
    route: Route, call: Call, begun: web.StreamResponse, error: Exception
) -> web.StreamResponse:
    """Close the connection of a streamed answer that has failed."""
    if not isinstance(error, ConnectionError):  # the client may disconnect at any time
        logger.error("HTTP: the answer to %s was cut off", route.path, exc_info=error)
    if call.request.transport is not None:
        call.request.transport.abort()
    return begun


def _log(request: web.BaseRequest, response: web.StreamResponse, seconds: float) -> None:
    if logger.isEnabledFor(logging.INFO):
        transport = request.transport
        peer = peer_text(transport.get_extra_info("peername")) if transport else ""
        milliseconds = seconds * 1000
        target = request.raw_path
        logger.info(
            "%d %s %s (%s) %.3fms", response.status, request.method, target, peer, milliseconds
        )


BYTES_MIN = 1024
TYPES = ("application/json", "application/javascript", "image/svg+xml")
CODINGS = (web.ContentCoding.gzip, web.ContentCoding.deflate)


def compress(response: web.Response, request: web.BaseRequest) -> None:
    """Compress an answer of `BYTES_MIN` bytes or more, if the client accepts a coding."""
    kind = response.content_type
    if not isinstance(response.body, bytes) or len(response.body) < BYTES_MIN:
        return
    if not (kind.startswith("text/") or kind in TYPES) or "Content-Encoding" in response.headers:
        return
    response.headers["Vary"] = "Accept-Encoding"
    accepted = taken(request.headers.get("Accept-Encoding", ""))
    coding = next((coding for coding in CODINGS if coding.value in accepted), None)
    if coding is not None:
        response.enable_compression(coding)


def taken(accepted: str) -> set[str]:
    """Return the codings that a client accepts, from its Accept-Encoding header."""
    parts = [part.replace(" ", "").lower().partition(";q=") for part in accepted.split(",")]
    return {name for name, _, weight in parts if not weight or weight.strip("0.") != ""}
