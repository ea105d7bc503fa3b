"""Asking nsqds for their figures: found by nsqlookupd or given; broken and hostile answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sparq.tools import cluster as module
from sparq.tools.cluster import Cluster, nodes_in
from tests.servers import NsqdServer, Server, free_port, spawn_nsqd, spawn_nsqlookupd


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqlookupd for all."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookup")) as server:
        yield server


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory, lookupd: Server) -> Iterator[NsqdServer]:
    """One nsqd, with a topic `here` and its channels `one` and `two`."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd"), lookupds=(lookupd,)) as server:
        server.post("/topic/create?topic=here")
        for channel in ("one", "two"):
            server.post(f"/channel/create?topic=here&channel={channel}")
        yield server


def cluster(nsqds: list[str], lookupds: list[str], **only: str) -> Cluster:
    return Cluster(nsqds, lookupds, connect_seconds=1.0, request_seconds=2.0, **only)


def channels(stats: dict[str, Any]) -> dict[str, list[str]]:
    return {
        topic["topic_name"]: [channel["channel_name"] for channel in topic["channels"]]
        for topic in stats["topics"] or ()
    }


async def asked(asking: Cluster) -> dict[str, dict[str, list[str]]]:
    async with asking:
        return {address: channels(stats) for address, stats in (await asking.stats()).items()}


@pytest.mark.parametrize("by", ["host:port", "URL", "nsqlookupd", "nsqlookupd, by topic"])
async def test_nsqds_are_found(by: str, nsqd: NsqdServer, lookupd: Server) -> None:
    """Given or listed, each is known by one address, with all that it has."""
    asking = {
        "host:port": lambda: cluster([nsqd.http], []),
        "URL": lambda: cluster([f"http://{nsqd.http}/"], []),
        "nsqlookupd": lambda: cluster([], [lookupd.http]),
        "nsqlookupd, by topic": lambda: cluster([], [f"http://{lookupd.http}"], topic="here"),
    }[by]()

    assert {nsqd.http: {"here": ["one", "two"]}} == await asked(asking)
    assert {} == asking.errors
    assert asking.answered_at.keys() == {nsqd.http}


async def test_only_what_is_asked_for(nsqd: NsqdServer, lookupd: Server) -> None:
    """One channel; an unknown topic, of which nsqlookupd knows no nsqd."""
    one = cluster([nsqd.http], [], topic="here", channel="two")
    nothing = cluster([], [lookupd.http], topic="elsewhere")

    assert {nsqd.http: {"here": ["two"]}} == await asked(one)
    assert {} == await asked(nothing)
    assert {} == nothing.errors


async def test_who_does_not_answer_is_told(nsqd: NsqdServer) -> None:
    """The others' figures are there all the same."""
    gone = f"127.0.0.1:{free_port()}"
    asking = cluster([nsqd.http, gone], [])

    assert [nsqd.http] == list(await asked(asking))
    assert {gone: "connection refused"} == asking.errors


@asynccontextmanager
async def answering(answer: bytes, *, hangs: bool = False) -> AsyncIterator[str]:
    """The address of a server that says this to whoever asks, and hangs up; or does not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if hangs:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"127.0.0.1:{port}"


def http(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_while_no_nsqlookupd_answers_the_nsqds_stay(nsqd: NsqdServer) -> None:
    """Those of the last answer are asked on."""
    host, port = nsqd.http.split(":")
    listed = {"producers": [{"broadcast_address": host, "http_port": int(port)}]}
    server = answering(http(json.dumps(listed).encode()))
    lookupd = await server.__aenter__()
    async with cluster([], [lookupd]) as asking:
        before = list(await asking.stats())
        await server.__aexit__(None, None, None)

        assert [nsqd.http] == before == list(await asking.stats())
        assert {lookupd: "connection refused"} == asking.errors


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (http(b"[]"), "an answer that is no JSON object"),
        (http(b"[" * 100_000), "an answer that is nested too deep"),
        (http(b"{", more=""), "Expecting property name"),
        (http(b"", "302 Found", "Location: http://127.0.0.1:1/\r\n"), "status 302"),
        (http(b"{}", "500 Oh"), "status 500"),
        (http(b"no", "403 Forbidden"), "status 403"),
        (http(b'{"https_port": true}', "403 Forbidden"), "status 403"),
        (http(b'{"https_port": 65536}', "403 Forbidden"), "status 403"),
        (http(b"x" * 2_000), "an answer of more than 1000 bytes"),
        (b"\x1b[2J\r\n\r\n", "an answer that is not HTTP: is this the port for HTTP?"),
    ],
)
async def test_a_broken_answer_is_told(
    answer: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded, redirects not followed, and told in words that no terminal obeys."""
    limit = 1_000 if b"x" * 2_000 in answer else 1 << 20
    monkeypatch.setattr(module, "STATS_SIZE_MAX", limit)
    async with answering(answer) as address:
        asking = cluster([address], [])

        assert {} == await asked(asking)

    told = asking.errors[address]
    assert reason in told
    assert told.isprintable()


async def test_an_answer_that_hangs_is_given_up() -> None:
    """After the time that an answer may take; one that ends too early is none."""
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n") as address:
        cut = cluster([address], [])
        assert {} == await asked(cut)
    async with answering(b"", hangs=True) as address:
        silent = Cluster([address], [], connect_seconds=1.0, request_seconds=0.1)
        assert {} == await asked(silent)

    assert 1 == len(cut.errors)
    assert {address: "no answer in time"} == silent.errors


def test_an_nsqd_without_a_usable_address_is_left_out() -> None:
    """The others of the answer count; the old form of an answer is read, too."""
    listed = [
        {"broadcast_address": "a.example", "http_port": 4151},
        {"broadcast_address": "::1", "http_port": 4151},
        {"broadcast_address": "b.example", "http_port": -1},
        {"broadcast_address": "c.example"},
        "d.example",
    ]

    assert {"a.example:4151", "[::1]:4151"} == nodes_in({"producers": listed})
    with pytest.raises(ValueError, match="without a list of producers"):
        nodes_in({})


async def test_an_answer_of_the_old_form_is_read() -> None:
    """nsqlookupd before 1.0 wraps what it says in `data`."""
    wrapped = json.dumps({"status_code": 200, "data": {"topics": []}}).encode()
    async with answering(http(wrapped)) as address:
        assert {address: {}} == await asked(cluster([address], []))


def test_an_address_that_is_none_is_refused() -> None:
    """When it is given, with the text that is wrong."""
    for nsqds, lookupds in ([["nonsense"], []], [[], ["ftp://a.example"]]):
        with pytest.raises(ValueError, match=r"nonsense|ftp"):
            cluster(nsqds, lookupds)


async def test_one_port_taken_for_another_is_told(nsqd: NsqdServer, lookupd: Server) -> None:
    """An nsqlookupd given as an nsqd, the reverse, and a TCP port where HTTP is spoken."""
    tcp = "it speaks NSQ's TCP protocol: give the HTTP port"
    reasons = {
        (nsqd.tcp, ""): tcp,
        (lookupd.http, ""): "status 404: is this nsqd's HTTP port (4151 by default)?",
        ("", lookupd.tcp): tcp,
        ("", nsqd.http): "status 404: is this nsqlookupd's HTTP port (4161 by default)?",
    }
    for (given, listing), reason in reasons.items():
        asking = cluster([given] if given else [], [listing] if listing else [], topic="here")

        assert {} == await asked(asking)
        assert asking.errors[given or listing].startswith(reason)


async def test_a_topic_that_an_nsqlookupd_does_not_know_is_no_failure(lookupd: Server) -> None:
    """It answers 404 to that, as to a question that it does not understand."""
    asking = cluster([], [lookupd.http], topic="nowhere")

    assert {} == await asked(asking)
    assert {} == asking.errors
