"""HTTP requests to daemons, with limits on time, answer size and concurrency.

1. Only addresses registered here (`set_configured`, `set_listed`) are called: input from a user or
   a peer cannot add others. Redirects are not followed, cookies not kept, and answers not
   decompressed.
2. A host name is resolved at the time of the call, and the resulting IP addresses are checked too
   (`AddressRule`): a name cannot lead to an address that would not be called itself.
3. The token is sent only to daemons that the operator named, and to nodes that registered with a
   token of their own or whose addresses the operator allows (`trusted`). Anybody can register with
   an nsqlookupd that requires no token, and would otherwise be given the operator's.
4. If a daemon demands TLS (403 with `https_port`, as NSQ's nsqd replies), the request is repeated
   over HTTPS at that port.
5. Every failure becomes an `UpstreamError`, whose text has no control characters.

Which addresses are called: any process that may register with an nsqlookupd decides which addresses
its users call. So these addresses from an nsqlookupd are not called: link-local ones (clouds serve
secrets there), multicast and unspecified ones, ports below 1024 other than HTTP's, and loopback,
unless a configured nsqlookupd is on this machine. An explicit list of allowed addresses replaces
this rule (`AddressRule`). Addresses that the operator configured are exempt.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Self

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from sparq.client.lookup import http_reason
from sparq.protocol import lookup
from sparq.protocol.address import (
    PORT_MAX,
    Address,
    IpAddress,
    lookupd_url,
    parse_address,
    parse_ip,
)
from sparq.protocol.names import one_line

ANSWER_BYTES_MAX: Final = 64 << 20
"""Maximum answer size: `/stats` of 1,000 topics with ten channels each is about 6 MB."""

CALLS_MAX: Final = 64
"""Maximum concurrent calls; others wait, and their timeout starts when they start."""

DNS_SECONDS: Final = 10
QUOTED_MAX: Final = 500
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
        self._configured: frozenset[str] = frozenset()
        self._listed: dict[str, bool] = {}
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

    def set_configured(self, addresses: Iterable[str]) -> None:
        """Set the addresses that the operator configured; they are called unchecked."""
        self._configured = frozenset(addresses)

    def set_listed(self, addresses: Mapping[str, bool]) -> None:
        """Set the other addresses that may be called, and whether each may get the token.

        They replace those set before.
        """
        self._listed = dict(addresses)

    def add_listed(self, addresses: Mapping[str, bool]) -> None:
        """Add addresses that may be called, and whether each may get the token."""
        for address, trusted in addresses.items():
            self._listed[address] = trusted or self._listed.get(address, False)

    def _refusal(self, host: str, ip: str) -> str:
        """Return why a host with this IP address is not called; "" if it may be.

        Hosts that the operator has configured may always be called.
        """
        if any(_url_of(address).host == host for address in self._configured):
            return ""
        found = parse_ip(ip)
        return "not an IP address" if found is None else self.reach.refusal_of(host, found)

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
        if address not in self._configured and address not in self._listed:
            raise UpstreamError(address, "not a node of this cluster: request not sent")
        self.calls += 1
        has_token = address in self._configured or self._listed.get(address, False)
        headers = {**(self._token if has_token else {})}
        if content_type:
            headers["Content-Type"] = content_type
        asked = body, headers, size_max or ANSWER_BYTES_MAX
        try:
            # Not left to aiohttp, which counts the wait for its own limit as part of the timeout.
            async with self._call_slots:
                status, reason, answer = await self._exchange(method, url, *asked)
                port = _fields(answer).get("https_port") if status == FORBIDDEN else None
                # Not `isinstance`: in Python, JSON's true is an int as well.
                if url.scheme == "http" and type(port) is int and 0 < port <= PORT_MAX:
                    url = url.with_scheme("https").with_port(port)
                    status, reason, answer = await self._exchange(method, url, *asked)
        except FAILURES as error:
            self.failures += 1
            raise UpstreamError(address, http_reason(error)) from None
        if status != OK:
            self.failures += 1
            code = _fields(answer).get("message")
            code = one_line(code, QUOTED_MAX) if isinstance(code, str) else ""
            if status == UNAUTHORIZED and self._token and not has_token:
                raise UpstreamError(address, NOT_SHOWN, status, code)
            # A character has at most 4 bytes in UTF-8: no more need be decoded.
            text = one_line(answer[: 4 * QUOTED_MAX].decode("utf-8", "replace"), QUOTED_MAX)
            shown = json.dumps(text, ensure_ascii=False)
            words = f"got response {status} {one_line(reason)} {shown}"
            raise UpstreamError(address, words, status, code)
        return answer

    async def _exchange(
        self, method: str, url: URL, body: bytes, headers: Mapping[str, str], size_max: int
    ) -> tuple[int, str, bytes]:
        session = self._questions if method == "GET" else self._orders
        chunks, size = [], 0
        async with session.request(
            method, url, data=body or None, headers=headers, allow_redirects=False
        ) as response:
            while chunk := await response.content.readany():
                chunks.append(chunk)
                size += len(chunk)
                if size > size_max:
                    raise ValueError(f"answer exceeds the limit of {size_max} bytes")
        return response.status, response.reason or "", b"".join(chunks)


@lru_cache(maxsize=10_000)
def _url_of(address: str) -> URL:
    return URL(lookupd_url(address))


def _url(address: str, path: str, query: dict[str, str]) -> URL:
    """The URL of a request; empty parameters are left out."""
    base = _url_of(address).with_path(path)
    return base % {name: value for name, value in query.items() if value}


def _parsed(answer: bytes) -> Any:
    """Parse a JSON answer; the wrapper used before NSQ 1.0 is removed.

    Half of a surrogate pair is refused: it could not be encoded again.
    """
    document = msgspec.json.decode(answer)
    if isinstance(document, dict) and "status_code" in document and "data" in document:
        return document["data"]
    return document


def _fields(answer: bytes) -> dict[str, Any]:
    """The fields of a JSON object; empty if the answer is not one."""
    try:
        document = _parsed(answer)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


# Which addresses are called

LOW_PORTS: Final = range(1, 1024)
HTTP_PORTS: Final = (80, 443)
ANY_BELOW: Final = "*."
NAME_MAX: Final = 253
NOT_ALLOWED: Final = "not an allowed address"

# Some resolvers read a name whose last part is a number, such as 2852039166 or 0xa9.254.1, as an
# IPv4 address in an old notation.
_NAME: Final = re.compile(r"([a-z0-9_-]{1,63}\.)*(?!\d+\Z|0x)[a-z0-9_-]{1,63}")


class AddressRule:
    """The rule of one cluster.

    Args:
        lookupds: the configured nsqlookupds.
        allowed: IP addresses, networks, host names or `*.domain`; empty: the rule above.
        vouches: whether `allowed` names the operator's own nodes, which may get the token.

    Attributes:
        vouches: an address that this rule allows is one that the operator named.

    Raises:
        ValueError: an entry of `allowed` is none of these.
    """

    def __init__(
        self,
        lookupds: Iterable[str] = (),
        allowed: Iterable[str] = (),
        *,
        vouches: bool = True,
    ) -> None:
        self._networks = []
        self._names: list[str] = []
        for text in allowed:
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                if not _is_name(text.removeprefix(ANY_BELOW)):
                    what = "an IP address, network, host name or *.domain"
                    raise ValueError(f"{text!r} is not {what}") from None
                self._names.append(text.lower().removesuffix("."))
        self._is_listed = bool(self._networks or self._names)
        self.vouches = vouches and self._is_listed
        self._is_local = any(is_here(URL(lookupd_url(text)).host or "") for text in lookupds)

    def refusal(self, host: str, port: int) -> str:
        """Why a node that registered this address is not called; "": it may be called."""
        try:
            parse_address(str(Address(host, port)))
        except ValueError:
            port = 0
        if port <= 0:
            return "not a valid host and port"
        found = parse_ip(host)
        if found is None and not _is_name(host):
            return "not a valid host name"
        why = self.refusal_of(host, found)
        if not why and not self._is_listed and port in LOW_PORTS and port not in HTTP_PORTS:
            why = f"ports below 1024 other than 80 and 443 are not allowed (port {port})"
        return why

    def refusal_of(self, host: str, ip: IpAddress | None) -> str:
        """Why a host with this IP address is not called; "": it may be called.

        Args:
            host: the address or the name.
            ip: None: the name is not resolved yet; it is checked again when it is called.
        """
        name = host.lower().removesuffix(".")
        if self._is_listed:
            # The operator allowed the name itself, so it may lead to any address.
            if any(_is_like(name, allowed) for allowed in self._names):
                return ""
            if ip is None:
                return "" if self._networks else NOT_ALLOWED
            return "" if any(ip in network for network in self._networks) else NOT_ALLOWED
        is_loopback = name == "localhost" or name.endswith(".localhost")
        if ip is not None:
            if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
                return "a link-local, multicast or unspecified address"
            is_loopback = ip.is_loopback
        if is_loopback and not self._is_local:
            return "a loopback address, but no configured nsqlookupd runs on this machine"
        return ""


class GuardedResolver(AbstractResolver):
    """Resolves names as the system does, and leaves out addresses that may not be called."""

    def __init__(self, refusal: Callable[[str, str], str]) -> None:
        """`refusal(host, ip)` gives the reason why an address is not called, or ""."""
        self._refusal = refusal
        # Not aiohttp's default, which depends on whether aiodns is installed.
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name that may be called.

        Raises:
            OSError: the name does not resolve, or none of its addresses may be called.
        """
        found = await self._resolver.resolve(host, port, family)
        good = [one for one in found if not self._refusal(host, one["host"])]
        if found and not good:
            raise socket.gaierror(socket.EAI_FAIL, "none of the name's addresses is allowed")
        return good

    async def close(self) -> None:
        """Close the system's resolver."""
        await self._resolver.close()


def is_here(host: str) -> bool:
    """Whether a host is this machine: a loopback address, `localhost` or its own host name."""
    found = parse_ip(host)
    if found is not None:
        return found.is_loopback
    return host.lower() in ("localhost", socket.gethostname().lower())


def _is_name(text: str) -> bool:
    """Whether a text looks like a host name; a name must not look like an IPv4 address."""
    name = text.lower().removesuffix(".")
    return len(name) <= NAME_MAX and _NAME.fullmatch(name) is not None


def _is_like(name: str, allowed: str) -> bool:
    below = allowed.removeprefix("*")
    return name == allowed or (allowed.startswith(ANY_BELOW) and name.endswith(below))
