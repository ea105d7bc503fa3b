"""One HTTP request for a handler: its path, query and body, and a streamed answer.

1. An invalid request raises `HttpError`, which becomes the answer.
2. A body is read in pieces, up to a limit set by the handler, and is never decompressed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from aiohttp import web

from sparq.daemon.address import peer_host
from sparq.protocol.names import is_valid_name

if TYPE_CHECKING:
    from sparq.daemon.access.access import Caller

BODY_SECONDS = 60.0
"""Maximum time between two pieces of a body; after it the request fails."""

_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
PLAIN_HEADER = {"Server": "sparq"}


class HttpError(Exception):
    """A refused request: the HTTP status and NSQ's error code."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Panic(HttpError):
    """A handler failed because of a bug."""

    def __init__(self) -> None:
        super().__init__(500, "INTERNAL_ERROR")


class Call:
    """One request, for a handler.

    Attributes:
        caller: the sender; None: the daemon has no access checks.
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
        self._target = request.raw_path
        self._query: dict[str, str] | None = None

    @property
    def client(self) -> str:
        """The client's IP address, or "a unix socket"."""
        return peer_host((self.request.remote or "", 0)) or "a unix socket"

    @property
    def path(self) -> str:
        """The path, unescaped."""
        # Proxies send an absolute URL (RFC 9112, 3.2.2): its path begins after the host.
        if not self._target.startswith("/"):
            return self.request.rel_url.path
        return unquote_path(self._target.partition("?")[0])

    @property
    def raw_query(self) -> str:
        """The query as sent. (A fragment counts as part of it, as in Go; clients send none.)"""
        return self._target.partition("?")[2]

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
        return {"true": True, "1": True, "false": False, "0": False}.get(
            self.query.get(name, ""), default
        )

    async def body(self, limit: int, too_big: str) -> bytes:
        """Read the request's body.

        Raises:
            HttpError: 413 with the code `too_big` above `limit` bytes, announced or received;
                500 INTERNAL_ERROR if the body breaks off or takes too long.
        """
        if (self.request.content_length or 0) > limit:
            raise HttpError(413, too_big)
        pieces = []
        size = 0
        try:
            async with asyncio.timeout(self._body_seconds):
                await self._say_continue()
                while piece := await self._next_piece():
                    size += len(piece)
                    if size > limit:
                        raise HttpError(413, too_big)
                    pieces.append(piece)
        except (OSError, TimeoutError, web.RequestPayloadError):
            raise HttpError(500, "INTERNAL_ERROR") from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

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

    async def _say_continue(self) -> None:
        """Send 100 Continue if the client waits for it (curl does above 1 MiB)."""
        # A web.Server leaves this to its handlers; a web.Application does it before them. Here it
        # follows `body`'s check of the announced size: a client does not send what is refused.
        request = self.request
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # Do not count these bytes as part of the final answer.
            request.writer.output_size = 0

    async def _next_piece(self) -> bytes:
        content = self.request.content
        if content.is_eof():
            return content.read_nowait()
        async with asyncio.timeout(BODY_SECONDS):
            return await content.readany()


def topic_channel(call: Call) -> tuple[str, str]:
    """Return the arguments `topic` and `channel`.

    Raises:
        HttpError: 400, one is missing or is not a legal name.
    """
    names = []
    for name in ("topic", "channel"):
        value = call.argument(name)
        if not is_valid_name(value):
            raise HttpError(400, f"INVALID_ARG_{name.upper()}")
        names.append(value)
    return names[0], names[1]


def unquote_path(text: str) -> str:
    """Resolve the escapes of a path; a plus sign stays a plus sign."""
    return unquote_plus(text.replace("+", "%2B")) if "%" in text else text


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
