"""The nsqds of a cluster, asked over HTTP for their figures (`/stats`).

1. All are asked at once; one that fails costs its own figures only, and `errors` says why. Which
   nsqds there are is asked anew each time; while no nsqlookupd answers, those of before count.
2. An answer is bounded: in bytes, which are taken as they come and never inflated, and in the
   nsqds that it lists. Redirects are not followed, cookies not kept.
3. An nsqd that demands TLS says on which port it is asked over HTTPS, as NSQ's does: there it is
   verified by the system's authorities.
4. What a peer says is not trusted: a text in `errors` has no control characters.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any, Final, Self

import aiohttp
from yarl import URL

from sparq.client.address import PORT_MAX, Address, lookupd_url, parse_address
from sparq.client.reasons import http_reason

STATS_SIZE_MAX: Final = 64 << 20
"""1,000 topics with five channels each are about 4 MB."""

LIST_SIZE_MAX: Final = 8 << 20
NSQDS_MAX: Final = 1000
FOUND, FORBIDDEN, MISSING = 200, 403, 404
UNKNOWN_TOPIC: Final = b"TOPIC_NOT_FOUND"
"""In the 404 of an nsqlookupd that does not know the topic; an nsqd's has ``NOT_FOUND`` only."""
CHUNK_SIZE: Final = 65_536
FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)


class Cluster:
    """Asks nsqds that are given, or that nsqlookupds list.

    Args:
        nsqds: addresses of nsqds for HTTP, ``host:port`` or URL.
        lookupds: addresses of nsqlookupds, ``host:port`` or URL.
        connect_seconds: for each connection.
        request_seconds: for each question as a whole.
        topic: only what concerns this topic; "": all.
        channel: only what concerns this channel; "": all.

    Attributes:
        errors: why a daemon did not answer the last time that it was asked, by its address.
        answered_at: when each nsqd answered the last time, in seconds of the monotonic clock.

    Raises:
        ValueError: an address is not one.
    """

    def __init__(
        self,
        nsqds: Iterable[str],
        lookupds: Iterable[str],
        *,
        connect_seconds: float,
        request_seconds: float,
        topic: str = "",
        channel: str = "",
    ) -> None:
        self.errors: dict[str, str] = {}
        self.answered_at: dict[str, float] = {}
        self._nsqds = {address_of(URL(lookupd_url(text))): lookupd_url(text) for text in nsqds}
        self._lookups = [_lookup(text, topic) for text in lookupds]
        self._timeout = aiohttp.ClientTimeout(total=request_seconds, connect=connect_seconds)
        only = {"topic": topic, "channel": channel}
        self._query = {
            **{"format": "json", "include_clients": "false", "include_mem": "false"},
            **{name: value for name, value in only.items() if value},
        }

    async def __aenter__(self) -> Self:
        """Keep connections from now on."""
        self._session = aiohttp.ClientSession(
            timeout=self._timeout,
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self._session.close()

    async def stats(self) -> dict[str, dict[str, Any]]:
        """Each nsqd's `/stats`, by its address; those that did not answer are in `errors`."""
        self.errors.clear()
        if self._lookups:
            await self._look_up()
        nodes = list(self._nsqds.items())
        found = await asyncio.gather(*(self._stats(address, url) for address, url in nodes))
        return {
            address: stats
            for (address, _), stats in zip(nodes, found, strict=True)
            if stats is not None
        }

    async def clients(self, topic: str, channel: str) -> dict[str, dict[str, Any]]:
        """`/stats` of one channel with its clients, by nsqd; nsqds that do not answer are left out.

        The nsqds are those of the last time; `errors` stays as it is.
        """
        only = {**self._query, "topic": topic, "channel": channel, "include_clients": "true"}
        nodes = list(self._nsqds.items())
        found = await asyncio.gather(*(self._one_channel(url, only) for _, url in nodes))
        return {address: stats for (address, _), stats in zip(nodes, found, strict=True) if stats}

    async def _one_channel(self, base: str, query: dict[str, str]) -> dict[str, Any] | None:
        try:
            return _answered(*await self._get(URL(base) / "stats" % query, STATS_SIZE_MAX))
        except FAILURES:
            return None

    async def _look_up(self) -> None:
        found = await asyncio.gather(*(self._nodes(url) for url in self._lookups))
        answers = [nodes for nodes in found if nodes is not None]
        if answers:
            nodes = sorted(set().union(*answers))[:NSQDS_MAX]
            self._nsqds = {address: f"http://{address}" for address in nodes}

    async def _nodes(self, url: URL) -> set[str] | None:
        try:
            status, answer = await self._get(url, LIST_SIZE_MAX)
            if status == MISSING and UNKNOWN_TOPIC in answer:
                return set()
            if status == MISSING:
                raise ValueError("status 404: is this nsqlookupd's HTTP port (4161 by default)?")
            return nodes_in(_answered(status, answer))
        except FAILURES as error:
            self._failed(address_of(url), error)
            return None

    async def _stats(self, address: str, base: str) -> dict[str, Any] | None:
        try:
            status, answer = await self._get(URL(base) / "stats" % self._query, STATS_SIZE_MAX)
            self.answered_at[address] = time.monotonic()
            if status == MISSING:
                raise ValueError("status 404: is this nsqd's HTTP port (4151 by default)?")
            return _answered(status, answer)
        except FAILURES as error:
            self._failed(address, error)
            return None

    def _failed(self, address: str, error: Exception) -> None:
        self.errors[address] = http_reason(error)

    async def _get(self, url: URL, size_max: int) -> tuple[int, bytearray]:
        status, answer = await self._ask(url, size_max)
        if status == FORBIDDEN and url.scheme == "http":
            port = https_port_in(answer)
            status, answer = await self._ask(url.with_scheme("https").with_port(port), size_max)
        return status, answer

    async def _ask(self, url: URL, size_max: int) -> tuple[int, bytearray]:
        async with self._session.get(url, allow_redirects=False) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(CHUNK_SIZE):
                body += chunk
                if len(body) > size_max:
                    raise ValueError(f"an answer of more than {size_max} bytes")
        return response.status, body


def address_of(url: URL) -> str:
    """A daemon's ``host:port`` in the one spelling by which it is known here."""
    return str(Address(url.host or "", url.port or 0))


def _lookup(text: str, topic: str) -> URL:
    """What an nsqlookupd is asked: all nsqds, or those of a topic."""
    base = URL(lookupd_url(text))
    return base / "lookup" % {"topic": topic} if topic else base / "nodes"


def _answered(status: int, answer: bytes | bytearray) -> dict[str, Any]:
    """A document of either form: bare, or as before 1.0 wrapped in ``data``.

    Raises:
        ValueError: the status is not 200, or it is no such document.
    """
    if status != FOUND:
        raise ValueError(f"status {status}")
    try:
        document = json.loads(answer)
    except RecursionError:
        raise ValueError("an answer that is nested too deep") from None
    if isinstance(document, dict) and isinstance(document.get("data"), dict):
        document = document["data"]
    if not isinstance(document, dict):
        raise ValueError("an answer that is no JSON object")
    return document


def https_port_in(answer: bytes | bytearray) -> int:
    """Where an nsqd that demands TLS (status 403) wants to be asked.

    Raises:
        ValueError: it does not say so.
    """
    try:
        port = _answered(FOUND, answer).get("https_port")
    except ValueError:
        port = None
    if type(port) is not int or not 0 < port <= PORT_MAX:
        raise ValueError(f"status {FORBIDDEN}")
    return port


def nodes_in(answer: dict[str, Any]) -> set[str]:
    """The nsqds' addresses for HTTP in an answer of ``/nodes`` or ``/lookup``.

    Raises:
        ValueError: it has no list of them. One of its nsqds that cannot be asked is left out.
    """
    producers = answer.get("producers")
    if not isinstance(producers, list):
        raise ValueError("an answer without a list of producers")
    found = set()
    for producer in producers[:NSQDS_MAX]:
        try:
            address = Address(str(producer["broadcast_address"]), int(producer["http_port"]))
            found.add(str(parse_address(str(address))))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return found
