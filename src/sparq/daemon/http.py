"""HTTP of the daemons over aiohttp, with NSQ's behaviour (docs/http.md).

A daemon provides a table of routes; this module does the rest.

1. A handler returns text or bytes (sent unchanged), `Content` (sent with its content type), None
   (an empty 200), an aiohttp response (sent unchanged), or any other value (sent as JSON).
   A handler refuses a request with `HttpError`, which becomes an HTTP answer in one place only.
2. Paths are exact. A part that begins with a colon is a parameter, as in `/topics/:topic`, and
   matches any text that is not empty; a literal part takes precedence. A path that differs in case,
   in a trailing slash or in `//`, `/./` and `/../` is redirected to the right one with its query,
   with Go's status: 301 for GET, 307 for the others.
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
import posixpath
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast
from urllib.parse import quote, unquote_plus

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from sparq.daemon import files
from sparq.daemon.access.access import FORBIDDEN, RefusedError
from sparq.daemon.address import Listener, peer_host, peer_text
from sparq.protocol.go_json import to_bytes
from sparq.protocol.names import is_valid_name

if TYPE_CHECKING:
    from sparq.daemon.access.access import Access
    from sparq.daemon.access.rules import Caller

Gate: TypeAlias = Callable[[web.BaseRequest], web.Response | None]
Words: TypeAlias = "Callable[[web.BaseRequest, HttpError], web.Response | None]"
Result: TypeAlias = Any
Handler: TypeAlias = "Callable[[Call], Awaitable[Result] | Result]"

BODY_SECONDS = 60.0
"""Maximum time between two pieces of a body; after it the request fails."""

IDLE_SECONDS = 75.0
"""A connection without a complete request head is closed after this (nginx: keepalive_timeout)."""

SHUTDOWN_SECONDS = 2.0
"""How long a stop waits for requests in progress."""

LINGER_SECONDS = 1.0
"""How long a refused body is still read, so that the client sees the answer."""

LINE_BYTES_MAX = 64 << 10
"""Maximum length of a request line and of a header; a topic name may be percent-encoded."""

PLAIN_HEADER = {"Server": "sparq"}
TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
_V1_HEADER = {**PLAIN_HEADER, "X-Nsq-Content-Type": "nsq; version=1.0"}
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_PARAMETER = re.compile(r"/:(\w+)")

logger = logging.getLogger(__name__)


class HttpError(Exception):
    """A refused request: the HTTP status and NSQ's error code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Call:
    """One request, for a handler.

    Attributes:
        caller: the sender; None: the daemon has no access checks.
        parameters: the values of the path's parameters.
        path: the path, unescaped.
        raw_query: the query as sent. (A fragment counts as part of it, as in Go; clients send
            none.)
        streamed: the streamed answer, once it has begun.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        body_seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`body_seconds`: limit for the whole body; None: no limit, if pieces keep coming.

        `headers`: headers of every answer of the site.
        """
        self.request = request
        self.caller: Caller | None = None
        self.parameters: Mapping[str, str] = {}
        self.streamed: web.StreamResponse | None = None
        self._body_seconds = body_seconds
        self._headers = headers or {}
        path, _, self.raw_query = request.raw_path.partition("?")
        # Proxies send an absolute URL (RFC 9112, 3.2.2): its path begins after the host.
        self.path = request.rel_url.path
        if path.startswith("/"):
            self.path = unquote_path(path) if "%" in path else path
        self._query: dict[str, str] | None = None

    @property
    def client(self) -> str:
        """The client's IP address, or "a unix socket"."""
        return peer_host((self.request.remote or "", 0)) or "a unix socket"

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; for a repeated one, the first value.

        Raises:
            HttpError: 400 INVALID_REQUEST, it cannot be parsed.
        """
        if self._query is None:
            self._query = parse_query(self.raw_query)
        return self._query

    def argument(self, name: str) -> str:
        """Return a required parameter (it may be empty).

        Raises:
            HttpError: 400 MISSING_ARG_<NAME>, or INVALID_REQUEST.
        """
        value = self.query.get(name)
        if value is None:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return value

    def named(self, name: str) -> str:
        """Return a parameter; empty if it is missing or the query cannot be parsed."""
        try:
            return self.query.get(name, "")
        except HttpError:
            return ""

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean parameter: `true`, `1`, `false` or `0`; else the default."""
        text = self.query.get(name, "")
        return text in ("true", "1") if text in ("true", "1", "false", "0") else default

    async def body(self, limit: int, too_big: str) -> bytes:
        """Read the request's body.

        Raises:
            HttpError: 413 with the code `too_big` above `limit` bytes, announced or received;
                500 INTERNAL_ERROR if the body breaks off or takes too long.
        """
        request, content, pieces, size = self.request, self.request.content, [], 0
        if (request.content_length or 0) > limit:
            raise HttpError(413, too_big)
        try:
            async with asyncio.timeout(self._body_seconds):
                # A web.Server leaves this to its handlers. Here it follows the check of the
                # announced size: a client (curl, above 1 MiB) does not send what is refused.
                if request.headers.get("Expect", "").lower() == "100-continue":
                    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    # Do not count these bytes as part of the final answer.
                    request.writer.output_size = 0
                while not content.at_eof():
                    async with asyncio.timeout(BODY_SECONDS):
                        pieces.append(await content.readany())
                    size += len(pieces[-1])
                    if size > limit:
                        raise HttpError(413, too_big)
        except (OSError, TimeoutError, web.RequestPayloadError):
            raise HttpError(500, "INTERNAL_ERROR") from None
        return b"".join(pieces)

    async def stream(
        self, content_type: str, headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """Begin a streamed answer; the handler writes to it and then returns it."""
        all_headers = {
            **PLAIN_HEADER,
            **self._headers,
            **(headers or {}),
            "Content-Type": content_type,
        }
        self.streamed = web.StreamResponse(headers=all_headers)
        await self.streamed.prepare(self.request)
        return self.streamed


def topic_channel(call: Call) -> tuple[str, str]:
    """Return the arguments `topic` and `channel`.

    Raises:
        HttpError: 400, one is missing or is not a legal name.
    """
    query = call.query
    for name in ("topic", "channel"):
        if name not in query:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        if not is_valid_name(query[name]):
            raise HttpError(400, f"INVALID_ARG_{name.upper()}")
    return query["topic"], query["channel"]


def unquote_path(text: str) -> str:
    """Resolve the escapes of a path; a plus sign stays a plus sign."""
    return unquote_plus(text.replace("+", "%2B"))


def parse_query(text: str) -> dict[str, str]:
    """Parse a query as strictly as Go does.

    Raises:
        HttpError: 400 INVALID_REQUEST for a bad escape or a semicolon.
    """
    if ";" in text or _BAD_ESCAPE.search(text):
        raise HttpError(400, "INVALID_REQUEST")
    query: dict[str, str] = {}
    for part in text.split("&"):
        if part:
            name, _, value = part.partition("=")
            query.setdefault(unquote_plus(name), unquote_plus(value))
    return query


class Route(NamedTuple):
    """One endpoint; parts of its path may be parameters, as in `/config/:opt`.

    `plain`: answer as text without NSQ's header (/ping). `log`: log requests at INFO.
    """

    method: str
    path: str
    handler: Handler
    plain: bool = False
    log: bool = True


Methods: TypeAlias = dict[str, Route]


class RouteMatch(NamedTuple):
    """The result of a look-up: the path's routes by method, and the values of its parameters."""

    methods: Methods
    parameters: Mapping[str, str]


class RouteTable:
    """All routes of a site, below `base`: "", or a path with a leading and no trailing slash."""

    def __init__(self, routes: Iterable[Route], base: str = "") -> None:
        self._methods: dict[str, Methods] = {}
        for route in routes:
            path = base if base and route.path == "/" else base + route.path
            self._methods.setdefault(path, {})[route.method] = route
        # False sorts before True: at each part, a literal comes before a parameter (rule 2).
        paths = sorted(self._methods, key=lambda path: [x[:1] == ":" for x in path.split("/")])
        self._patterns = {
            path: _PARAMETER.sub(r"/(?P<\1>[^/]+)", re.escape(path)) for path in paths
        }
        self._parametrised = [path for path in paths if _PARAMETER.search(path)]

    def find(self, path: str) -> RouteMatch | None:
        """Look up an unescaped path; None: no route matches."""
        methods = self._methods.get(path)
        if methods is not None and path not in self._parametrised:
            return RouteMatch(methods, {})
        for known in self._parametrised:
            if match := re.fullmatch(self._patterns[known], path):
                return RouteMatch(self._methods[known], match.groupdict())
        return None

    def meant(self, path: str, method: str) -> str | None:
        """Return the intended path, escaped, if it has a route for the method (rule 2)."""
        # `normpath` would keep two leading slashes.
        cleaned = "/" + posixpath.normpath(path).lstrip("/")
        for known, pattern in self._patterns.items():
            # Go's router ignores case and trailing slashes when it looks for the intended path.
            match = re.fullmatch(pattern.rstrip("/"), cleaned.rstrip("/"), re.IGNORECASE | re.ASCII)
            if match:
                meant = known
                for name, text in match.groupdict().items():
                    meant = meant.replace(f"/:{name}", f"/{quote(text)}", 1)
                return meant if method in self._methods[known] else None
        return None


class Content(NamedTuple):
    """A ready-made answer with its content type."""

    body: bytes
    content_type: str


def answer(result: Result, *, plain: bool = False) -> web.StreamResponse:
    """Make the 200 response for a handler's result (rule 1)."""
    if isinstance(result, web.StreamResponse):
        return result
    if isinstance(result, Content):
        body, kind = result
    elif result is None or isinstance(result, str | bytes):
        body = result.encode() if isinstance(result, str) else result or b""
        kind = TEXT if body else ""  # Go detects the type from the body, so an empty one has none
    else:
        body, kind = to_bytes(result), JSON
    headers = dict(PLAIN_HEADER if plain else _V1_HEADER)
    if kind:
        headers["Content-Type"] = kind
    return web.Response(body=body or None, headers=headers)


def refusal(error: HttpError, *, plain: bool = False) -> web.Response:
    """Make the response to a refused request."""
    response = web.Response(status=error.status, headers=PLAIN_HEADER if plain else _V1_HEADER)
    response.body = error.code.encode() if plain else to_bytes({"message": error.code})
    response.headers["Content-Type"] = TEXT if plain else JSON
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


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
        if (route is None or route.log) and logger.isEnabledFor(logging.INFO):
            peer = request.transport.get_extra_info("peername") if request.transport else None
            milliseconds = (time.monotonic() - began) * 1000
            facts = (response.status, request.method, request.raw_path, peer_text(peer))
            logger.info("%d %s %s (%s) %.3fms", *facts, milliseconds)
        return self._dressed(response, request)

    async def _serve(self, route: Route, call: Call) -> web.StreamResponse:
        """Check the sender's rights, call the handler, and record what it did."""
        access, code, is_refused = self._access, "", False
        try:
            if access is not None:
                call.caller = access.decide(route, call)
            result = route.handler(call)
            response = answer(
                await result if isinstance(result, Awaitable) else result, plain=route.plain
            )
        except RefusedError as error:
            is_known = str(error) == FORBIDDEN
            found = HttpError(403, "FORBIDDEN") if is_known else HttpError(401, "UNAUTHORIZED")
            return refusal(found, plain=route.plain)
        except Exception as error:
            if call.streamed is not None:
                return _broken_off(route, call, call.streamed, error)
            if isinstance(error, HttpError):
                refused, plain = error, route.plain
            else:
                logger.exception("panic in HTTP handler of %s", route.path)
                refused, plain = HttpError(500, "INTERNAL_ERROR"), False
            code, is_refused = refused.code, refused.status == 403
            response = self._refused(call.request, refused, plain=plain)
        if access is not None:
            await access.note(route, call, code, is_refused=is_refused)
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
        """Answer 404 or 405, or redirect to the intended path as Go does."""
        method = call.request.method
        meant = self._table.meant(call.path, method)
        if meant is not None:
            location = f"{meant}?{call.raw_query}" if call.raw_query else meant
            headers = {**PLAIN_HEADER, "Location": location}
            if method != "GET":
                return web.Response(status=307, headers=headers)
            headers["Content-Type"] = "text/html; charset=utf-8"
            # For a browser that does not follow the redirect.
            link = f'<a href="{html.escape(location)}">Moved Permanently</a>.\n\n'
            return web.Response(status=301, text=link, headers=headers)
        if methods is None:
            return self._refused(call.request, HttpError(404, "NOT_FOUND"))
        allow = ", ".join(sorted({*methods, "OPTIONS"}))
        if method == "OPTIONS":
            return web.Response(headers={"Allow": allow})
        response = self._refused(call.request, HttpError(405, "METHOD_NOT_ALLOWED"))
        response.headers["Allow"] = allow
        return response


def _broken_off(
    route: Route, call: Call, begun: web.StreamResponse, error: Exception
) -> web.StreamResponse:
    """Close the connection of a streamed answer that has failed (rule 4)."""
    if not isinstance(error, ConnectionError):  # the client may disconnect at any time
        logger.error("HTTP: the answer to %s was cut off", route.path, exc_info=error)
    if call.request.transport is not None:
        call.request.transport.abort()
    return begun


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
    accepted = accepted_codings(request.headers.get("Accept-Encoding", ""))
    coding = next((coding for coding in CODINGS if coding.value in accepted), None)
    if coding is not None:
        response.enable_compression(coding)


def accepted_codings(accepted: str) -> set[str]:
    """Return the codings that a client accepts, from its Accept-Encoding header."""
    parts = [part.replace(" ", "").lower().partition(";q=") for part in accepted.split(",")]
    return {name for name, _, weight in parts if not weight or weight.strip("0.") != ""}
