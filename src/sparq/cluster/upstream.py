"""HTTP requests to daemons, with limits on time, answer size and concurrency.

1. Only addresses registered here (`own`, `know`) are called: input from a user or a peer cannot
   add others. Redirects are not followed, cookies not kept, and answers not decompressed.
2. A host name is resolved at the time of the call, and the resulting IP addresses are checked too
   (`address_rule.AddressRule`): a name cannot lead to an address that would not be called itself.
3. The token is sent only to daemons that the operator named, and to nodes that registered with a
   token of their own or whose addresses the operator allows (`trusted`). Anybody can register with
   an nsqlookupd that requires no token, and would otherwise be given the operator's.
4. If a daemon demands TLS (403 with `https_port`, as NSQ's nsqd replies), the request is repeated
   over HTTPS at that port.
5. Every failure becomes an `UpstreamError`, whose text has no control characters.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, Self

import aiohttp
from yarl import URL

from sparq.client.lookup import http_reason
from sparq.cluster.address_rule import AddressRule, GuardedResolver
from sparq.protocol import lookup
from sparq.protocol.address import PORT_MAX, lookupd_url
from sparq.protocol.bounded import collected
from sparq.protocol.names import one_line

ANSWER_BYTES_MAX: Final = 64 << 20
"""Maximum answer size: `/stats` of 1,000 topics with ten channels each is about 6 MB."""

CALLS_MAX: Final = 64
"""Maximum concurrent calls; others wait, and their timeout starts when they start."""

DNS_SECONDS: Final = 10
QUOTED_MAX: Final = 500
CHUNK_BYTES: Final = 65_536
OK, UNAUTHORIZED, FORBIDDEN, MISSING = 200, 401, 403, 404
NO_ROUTE: Final = "NOT_FOUND"
LOOKUPD_HINT: Final = "is this nsqlookupd's HTTP port (4161 by default)?"
NOT_SHOWN: Final = (
    "requires a token, which was not sent, because anybody may register this address: run"
    " nsqlookupd with --require-token, or name the node with --nsqd-http-address (in nsqadmin also"
    " with --allow-node-address)"
)
FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class UpstreamError(Exception):
    """A request to a daemon failed.

    Attributes:
        address: the daemon's address.
        reason: why, in words that do not name the daemon.
        status: the HTTP status of the answer; 0: there was no answer.
        code: the `message` of the answer, such as `TOPIC_NOT_FOUND`; "" without one.
    """

    def __init__(self, address: str, reason: str, status: int = 0, code: str = "") -> None:
        super().__init__(error_text(address, reason))
        self.address, self.reason = address, reason
        self.status, self.code = status, code

    def hinted(self, hint: str) -> UpstreamError:
        """The same error with a hint added if the daemon does not know the requested path."""
        # With another code, such as TOPIC_NOT_FOUND, it is the right daemon after all.
        if self.status != MISSING or self.code not in ("", NO_ROUTE):
            return self
        return UpstreamError(self.address, f"{self.reason}: {hint}", self.status, self.code)


def error_text(address: str, reason: str) -> str:
    """Error text with the address; NSQ's words come first, since scripts search for them."""
    return f"{reason} ({address})"


class Upstream:
    """An HTTP client for daemons; an async context manager, since it keeps connections.

    Args:
        connect_seconds: timeout of a connection attempt.
        request_seconds: timeout of a whole call.
        tls: for daemons called over HTTPS; None: the system's authorities.
        token: bearer token sent to each daemon (`--http-token` of sparq's); "": none.

    Attributes:
        reach: restricts the addresses of names that the operator did not configure.
        calls: number of calls.
        failures: number of failed calls.
    """

    def __init__(
        self,
        *,
        connect_seconds: float = 2.0,
        request_seconds: float = 5.0,
        tls: ssl.SSLContext | None = None,
        token: str = "",
    ) -> None:
        self.reach = AddressRule()
        self.calls = 0
        self.failures = 0
        self._timeout = aiohttp.ClientTimeout(total=request_seconds, connect=connect_seconds)
        self._tls = tls
        self._token = {"Authorization": f"Bearer {token}"} if token else {}
        self._own: frozenset[str] = frozenset()
        self._found: frozenset[str] = frozenset()
        self._trusted: frozenset[str] = frozenset()
        self._call_slots = asyncio.Semaphore(CALLS_MAX)

    async def __aenter__(self) -> Self:
        """Open the sessions, which keep connections."""
        self._questions = self._session()
        # Every request that changes something gets a new connection: on a kept connection it may
        # fail because the daemon was restarted, and it must not be sent twice.
        self._orders = self._session(force_close=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._questions.close()
        await self._orders.close()

    def _session(self, *, force_close: bool = False) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=CALLS_MAX,
            ssl=self._tls or True,
            resolver=GuardedResolver(self._refusal),
            ttl_dns_cache=DNS_SECONDS,
            force_close=force_close,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            headers=lookup.HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    def own(self, addresses: Iterable[str]) -> None:
        """Set the addresses that the operator configured; they are called unchecked."""
        self._own = frozenset(addresses)

    def know(self, addresses: Mapping[str, bool]) -> None:
        """Set the other addresses that may be called, and whether each may get the token.

        They replace those set before.
        """
        self._found = frozenset(addresses)
        self._trusted = frozenset(address for address, trusted in addresses.items() if trusted)

    def know_too(self, addresses: Mapping[str, bool]) -> None:
        """Add addresses that may be called, and whether each may get the token."""
        self._trusted |= {address for address, trusted in addresses.items() if trusted}
        self._found |= frozenset(addresses)

    def _refusal(self, host: str, ip: str) -> str:
        """Return why a host with this IP address is not called; "" if it may be.

        Hosts that the operator has configured may always be called.
        """
        if any(URL(lookupd_url(address)).host == host for address in self._own):
            return ""
        return self.reach.refusal_resolved(host, ip)

    async def get(self, address: str, path: str, /, **query: str) -> Any:
        """Send a GET request; returns the parsed JSON answer.

        Args:
            address: `host:port` or URL of a registered daemon.
            path: absolute path, such as `/stats`.
            query: parameters; empty ones are left out.

        Raises:
            UpstreamError: the request failed, or the answer is not JSON.
        """
        answer = await self.read(address, path, **query)
        try:
            return _parsed(answer)
        except (ValueError, RecursionError):
            raise UpstreamError(address, "answer is not JSON") from None

    async def look_up(self, lookupd: str, route: str, /, **query: str) -> Any:
        """Query an nsqlookupd (`protocol.lookup` has the routes); returns the parsed answer.

        Raises:
            UpstreamError: the request failed, or the answer is not JSON.
        """
        try:
            url = URL(lookup.question(lookupd, route, **query), encoded=True)
            body = await self._call("GET", lookupd, url, size_max=lookup.ANSWER_BYTES_MAX)
            return lookup.document(body)
        except UpstreamError as error:
            raise error.hinted(LOOKUPD_HINT) from None
        except ValueError as error:
            raise UpstreamError(lookupd, one_line(str(error))) from None

    async def read(self, address: str, path: str, /, **query: str) -> bytes:
        """Send a GET request; returns the answer's raw bytes.

        Raises:
            UpstreamError: there is no answer, or its status is not 200.
        """
        return await self._call("GET", address, _url(address, path, query))

    async def post(
        self,
        address: str,
        path: str,
        body: bytes = b"",
        /,
        *,
        method: str = "POST",
        content_type: str = "",
        **query: str,
    ) -> Any:
        """Send a request that changes something; returns its JSON answer, or None without one.

        Raises:
            UpstreamError: the request failed, or its outcome is unknown.
        """
        url = _url(address, path, query)
        answer = await self._call(method, address, url, body, content_type=content_type)
        try:
            return _parsed(answer) if answer else None
        except (ValueError, RecursionError):
            return None

    async def _call(
        self,
        method: str,
        address: str,
        url: URL,
        body: bytes = b"",
        *,
        size_max: int = 0,
        content_type: str = "",
    ) -> bytes:
        if address not in self._own and address not in self._found:
            raise UpstreamError(address, "not a node of this cluster: request not sent")
        self.calls += 1
        has_token = address in self._own or address in self._trusted
        headers = {**(self._token if has_token else {})}
        if content_type:
            headers["Content-Type"] = content_type
        ask = partial(self._exchange, method, body=body, headers=headers)
        ask = partial(ask, size_max=size_max or ANSWER_BYTES_MAX)
        try:
            # Not left to aiohttp, which counts the wait for its own limit as part of the timeout.
            async with self._call_slots:
                status, reason, answer = await ask(url)
                port = _fields(answer).get("https_port") if status == FORBIDDEN else None
                # Not `isinstance`: in Python, JSON's true is an int as well.
                if url.scheme == "http" and type(port) is int and 0 < port <= PORT_MAX:
                    status, reason, answer = await ask(url.with_scheme("https").with_port(port))
        except FAILURES as error:
            self.failures += 1
            raise UpstreamError(address, http_reason(error)) from None
        if status != OK:
            self.failures += 1
            code = _fields(answer).get("message")
            code = one_line(code) if isinstance(code, str) else ""
            if status == UNAUTHORIZED and self._token and not has_token:
                raise UpstreamError(address, NOT_SHOWN, status, code)
            # A character has at most 4 bytes in UTF-8: no more need be decoded.
            text = one_line(answer[: 4 * QUOTED_MAX].decode("utf-8", "replace"), QUOTED_MAX)
            shown = json.dumps(text, ensure_ascii=False)
            words = f"got response {status} {one_line(reason)} {shown}"
            raise UpstreamError(address, words, status, code)
        return answer

    async def _exchange(
        self, method: str, url: URL, *, body: bytes, headers: Mapping[str, str], size_max: int
    ) -> tuple[int, str, bytes]:
        session = self._questions if method == "GET" else self._orders
        async with session.request(
            method,
            url,
            data=body or None,
            headers=headers,
            allow_redirects=False,
        ) as response:
            answer = await collected(response.content.iter_chunked(CHUNK_BYTES), size_max)
        return response.status, response.reason or "", answer


def _url(address: str, path: str, query: dict[str, str]) -> URL:
    """The URL of a request; empty parameters are left out."""
    base = URL(lookupd_url(address)).with_path(path)
    return base % {name: value for name, value in query.items() if value}


def _parsed(answer: bytes) -> Any:
    """Parse a JSON answer; the wrapper used before NSQ 1.0 is removed."""
    document = json.loads(answer, parse_constant=_no_number)
    if isinstance(document, dict) and "status_code" in document and "data" in document:
        return document["data"]
    return document


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _fields(answer: bytes) -> dict[str, Any]:
    """The fields of a JSON object; empty if the answer is not one."""
    try:
        document = _parsed(answer)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
