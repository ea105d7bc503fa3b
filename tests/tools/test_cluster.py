"""Requests to nsqds for their statistics; the nsqds are given or found through nsqlookupd.

Broken and hostile answers are tested in `tests.cluster` and `tests.protocol`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from sparq.cluster.rows import NodeStats
from sparq.tools.cluster import ANYWHERE, ClusterPoller, fleet_of
from sparq.tools.top import Options
from tests.support.servers import NsqdServer, Server
from tests.support.tool_options import parse
from tests.tools.conftest import GuardedNsqd

Made = AbstractAsyncContextManager[ClusterPoller]


def cluster(nsqds: list[str], lookupds: list[str], topic: str = "", channel: str = "") -> Made:
    """Return the cluster that these flags describe."""
    words = [f"--nsqd-http-address={at}" for at in nsqds]
    words += [f"--lookupd-http-address={at}" for at in lookupds]
    words += ["--http-client-connect-timeout=1s", "--http-client-request-timeout=2s"]
    return opened(words, topic, channel)


@asynccontextmanager
async def opened(
    words: list[str], topic: str = "", channel: str = ""
) -> AsyncIterator[ClusterPoller]:
    """Open the cluster that these flags describe."""
    async with fleet_of(parse(Options, "sparq top", words), ANYWHERE) as fleet:
        yield ClusterPoller(fleet, topic, channel)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Run a server that sends this answer to each request and closes; its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"127.0.0.1:{port}"


def http(body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def channels(stats: NodeStats) -> dict[str, list[str]]:
    """Return the channels of each topic."""
    names = stats.names
    named = {topic: [names.keys[at][1] for at in places] for topic, places in names.places.items()}
    return {topic: [name for name in some if name] for topic, some in named.items()}


async def asked(making: Made) -> tuple[dict[str, dict[str, list[str]]], dict[str, str]]:
    """Return the channels of each nsqd, and the errors of those that did not answer."""
    async with making as asking:
        stats = await asking.stats()
        return {address: channels(each) for address, each in stats.items()}, asking.errors


async def test_without_an_nsqlookupd_the_last_known_nsqds_are_asked(nsqd: NsqdServer) -> None:
    """The nsqds of nsqlookupd's last answer are still asked."""
    host, port = nsqd.http.split(":")
    listed = {"producers": [{"broadcast_address": host, "http_port": int(port)}]}
    server = answering(http(json.dumps(listed).encode()))
    lookupd = await server.__aenter__()
    async with cluster([], [lookupd]) as asking:
        before = list(await asking.stats())
        await server.__aexit__(None, None, None)

        assert [nsqd.http] == before == list(await asking.stats())
        assert {lookupd: "connection refused"} == asking.errors


async def test_a_wrong_port_is_an_error_with_a_hint(nsqd: NsqdServer, lookupd: Server) -> None:
    """An address with the wrong port or of the wrong daemon gets an error with a hint."""
    tcp = "it speaks NSQ's TCP protocol: give the HTTP port"
    reasons = {
        (nsqd.tcp, ""): tcp,
        (lookupd.http, ""): "is this nsqd's HTTP port (4151 by default)?",
        ("", lookupd.tcp): tcp,
        ("", nsqd.http): "is this nsqlookupd's HTTP port (4161 by default)?",
    }
    for (given, listing), reason in reasons.items():
        making = cluster([given] if given else [], [listing] if listing else [], topic="t")
        found, errors = await asked(making)

        assert {} == found
        assert reason in errors[given or listing]


async def test_the_token_is_shown_to_no_stranger(guarded: GuardedNsqd) -> None:
    """An nsqd that is only listed gets the token if it showed nsqlookupd one, and else none."""
    host, port = guarded.nsqd.http.split(":")
    found = []
    for shown in (True, False):
        producer = {"broadcast_address": host, "http_port": int(port), "authenticated": shown}
        async with answering(http(json.dumps({"producers": [producer]}).encode())) as lookupd:
            words = [guarded.token, f"--lookupd-http-address={lookupd}"]
            found.append(await asked(opened([*words, "--http-client-request-timeout=2s"])))

    assert ({guarded.nsqd.http: {"t": ["c"]}}, {}) == found[0]
    assert {} == found[1][0]
    assert "which was not sent" in found[1][1][guarded.nsqd.http]
