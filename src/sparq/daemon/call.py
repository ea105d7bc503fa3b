"""One HTTP request as a handler sees it: its path and query, its body, an answer in pieces.

1. What is wrong with a request is an `HttpError`, which becomes its answer.
2. A body is read in pieces, up to the limit that the handler names, and never decompressed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from urllib.parse import unquote_plus

from aiohttp import web

from sparq.protocol.names import is_valid_name

BODY_SECONDS = 60.0
"""A body that takes longer than this between two pieces is given up."""

_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
PLAIN_HEADER = {"Server": "sparq"}


class HttpError(Exception):
    """A refused request: the status and NSQ's code for it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class Panic(HttpError):
    """A handler failed by a bug of ours."""

    def __init__(self) -> None:
        super().__init__(500, "INTERNAL_ERROR")


class Call:
    """One request, as a handler sees it."""

    def __init__(
        self,
        request: web.BaseRequest,
        body_seconds: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`body_seconds`: the time that all of the body has; None: any, if pieces keep coming.

        `headers`: those of every answer of its site.
        """
        self.request = request
        self.parameters: Mapping[str, str] = {}
        self.streamed: web.StreamResponse | None = None
        self._body_seconds = body_seconds
        self._headers = headers or {}
        self._target = request.raw_path
        self._query: dict[str, str] | None = None

    @property
    def path(self) -> str:
        """The path, unescaped."""
        if not self._target.startswith("/"):
            return self.request.rel_url.path
        return unquote_path(self._target.partition("?")[0])

    @property
    def raw_query(self) -> str:
        """The query as it was sent. (A fragment is part of it, as in Go: nobody sends one.)"""
        return self._target.partition("?")[2]

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; of a repeated one the first.

        Raises:
            HttpError: 400 INVALID_REQUEST, it cannot be parsed.
        """
        if self._query is None:
            self._query = parse_query(self.raw_query)
        return self._query

    def argument(self, name: str) -> str:
        """A parameter that must be there (it may be empty).

        Raises:
            HttpError: 400 MISSING_ARG_<NAME>, or INVALID_REQUEST.
        """
        value = self.query.get(name)
        if value is None:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return value

    def named(self, name: str) -> str:
        """A parameter; empty without it, or where the query cannot be parsed."""
        try:
            return self.query.get(name, "")
        except HttpError:
            return ""

    def flag(self, name: str, default: bool) -> bool:
        """A boolean parameter: `true`, `1`, `false` or `0`; any other text is the default."""
        return {"true": True, "1": True, "false": False, "0": False}.get(
            self.query.get(name, ""), default
        )

    async def body(self, limit: int, too_big: str) -> bytes:
        """The request's body.

        Raises:
            HttpError: 413 with the code `too_big` beyond `limit` bytes, announced or real;
                500 INTERNAL_ERROR when it breaks off.
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
        """Begin an answer that comes piece by piece; the handler writes and then returns it."""
        told = {**PLAIN_HEADER, **self._headers, **(headers or {}), "Content-Type": content_type}
        self.streamed = web.StreamResponse(headers=told)
        await self.streamed.prepare(self.request)
        return self.streamed

    async def _say_continue(self) -> None:
        """Call for the body of a client that asks first (curl does above 1 MiB)."""
        request = self.request
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # What was written so far is not part of the answer to come.
            request.writer.output_size = 0

    async def _next_piece(self) -> bytes:
        content = self.request.content
        if content.is_eof():
            return content.read_nowait()
        async with asyncio.timeout(BODY_SECONDS):
            return await content.readany()


def topic_channel(call: Call) -> tuple[str, str]:
    """The arguments of a request about a channel.

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
    """A path with its escapes resolved; a plus sign stays one."""
    return unquote_plus(text.replace("+", "%2B")) if "%" in text else text


def parse_query(text: str) -> dict[str, str]:
    """Read a query as strictly as Go does.

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
