"""nsqlookupd's HTTP endpoints, with `/metrics` and `/debug`, over real sockets and peers."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from tests.support.options import changed
from tests.support.waiting import until

MILLISECOND = 1_000_000


class Lookup:
    """A running nsqlookupd and an HTTP client for it."""

    def __init__(self, daemon: Nsqlookupd, session: aiohttp.ClientSession) -> None:
        self.daemon = daemon
        self._session = session

    def request(self, method: str, target: str) -> Any:
        return self._session.request(method, f"http://127.0.0.1:{self.daemon.http_port}{target}")

    async def ask(self, method: str, target: str) -> tuple[int, Any]:
        async with self.request(method, target) as answer:
            body = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(body) if is_json else body

    async def get(self, target: str) -> Any:
        status, body = await self.ask("GET", target)
        assert status == 200
        return body


class Peer:
    """An nsqd as nsqlookupd sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        host, port = writer.get_extra_info("sockname")[:2]
        self.address = f"{host}:{port}"

    @classmethod
    async def connect(cls, lookup: Lookup, name: str, *registers: str) -> "Peer":
        peer = cls(*await asyncio.open_connection("127.0.0.1", lookup.daemon.tcp_port))
        facts = {"broadcast_address": name, "hostname": f"{name}.host", "tcp_port": 4150}
        facts |= {"http_port": 4151, "version": "1.3.0", "topology_zone": "z"}
        body = json.dumps(facts).encode()
        await peer.send(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        for words in registers:
            assert await peer.send(f"REGISTER {words}\n".encode()) == b"OK"
        return peer

    async def send(self, data: bytes) -> bytes:
        self._writer.write(data)
        async with asyncio.timeout(10):
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    async def leave(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def options(**changes: Any) -> NsqlookupdOptions:
    here = {"tcp_address": "127.0.0.1:0", "http_address": "127.0.0.1:0"}
    return changed(NsqlookupdOptions(), **here, **changes)


@pytest.fixture
def lookup_options() -> NsqlookupdOptions:
    """The options of a test's nsqlookupd; a test class may override them."""
    return options()


@pytest.fixture
async def lookup(lookup_options: NsqlookupdOptions) -> AsyncIterator[Lookup]:
    """A running nsqlookupd."""
    daemon = Nsqlookupd(lookup_options)
    await daemon.start()
    async with aiohttp.ClientSession() as session:
        yield Lookup(daemon, session)
    await daemon.stop()


def producer(peer: Peer, name: str) -> dict[str, Any]:
    return {
        "remote_address": peer.address,
        "hostname": f"{name}.host",
        "broadcast_address": name,
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        "topology_zone": "z",
        "topology_region": "",
    }


@pytest.mark.behaviour("nsqlookupd.TestPing", "nsqlookupd.TestInfo")
async def test_ping_and_info(lookup: Lookup) -> None:
    """/ping answers OK, and /info NSQ's version."""
    assert await lookup.get("/ping") == await lookup.get("/live") == b"OK"
    assert await lookup.get("/info") == {"version": "1.3.0"}


@pytest.mark.behaviour("nsqlookupd.TestBasicLookupd", "nsqlookupd.TestGetChannels")
async def test_registered_nsqds_are_found(lookup: Lookup) -> None:
    """/topics, /channels, /lookup, /nodes and /debug show the registrations of two nsqds."""
    a = await Peer.connect(lookup, "a", "t c1", "t c2")
    b = await Peer.connect(lookup, "b", "t", "u")

    assert await lookup.get("/topics") == {"topics": ["t", "u"]}
    assert await lookup.get("/channels?topic=t") == {"channels": ["c1", "c2"]}
    assert await lookup.get("/channels?topic=none") == {"channels": []}
    assert await lookup.get("/lookup?topic=t") == {
        "channels": ["c1", "c2"],
        "producers": [producer(a, "a"), producer(b, "b")],
    }
    assert await lookup.get("/nodes") == {
        "producers": [
            {**producer(a, "a"), "tombstones": [False], "topics": ["t"]},
            {**producer(b, "b"), "tombstones": [False, False], "topics": ["t", "u"]},
        ]
    }
    await lookup.ask("POST", "/channel/create?topic=alone&channel=c")
    debug = await lookup.get("/debug")
    # Without `alone`: as in Go, only what has a producer.
    assert list(debug) == ["channel:t:c1", "channel:t:c2", "client::", "topic:t:", "topic:u:"]
    (entry,) = debug["topic:u:"]
    last_update = entry.pop("last_update")
    assert last_update > 1_700_000_000_000_000_000
    facts = producer(b, "b")
    del facts["remote_address"]
    assert entry == {"id": b.address, **facts, "tombstoned": False, "tombstoned_at": 0}
    await a.leave()
    await b.leave()


@pytest.mark.behaviour(
    "nsqlookupd.TestCreateTopic",
    "nsqlookupd.TestDeleteTopic",
    "nsqlookupd.TestGetChannels",
    "nsqlookupd.TestCreateChannel",
    "nsqlookupd.TestDeleteChannel",
)
@pytest.mark.parametrize(
    ("method", "target", "status", "message"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=t", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/topics?x=%", 400, "INVALID_REQUEST"),
        ("GET", "/channels?x=%", 400, "INVALID_REQUEST"),
        ("GET", "/lookup?topic=%", 400, "INVALID_REQUEST"),
        ("POST", "/topic/create?topic=%", 400, "INVALID_REQUEST"),
        ("POST", "/topic/delete?topic=%", 400, "INVALID_REQUEST"),
        ("POST", "/topic/tombstone?topic=t;node=n", 400, "INVALID_REQUEST"),
        ("POST", "/channel/create?topic=t&channel=%zz", 400, "INVALID_REQUEST"),
        ("POST", "/channel/delete?topic=%", 400, "INVALID_REQUEST"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a*", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/create?topic=", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=a*", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=a*", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/delete?topic=a*&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/delete?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=a*", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/none", 404, "NOT_FOUND"),
    ],
)
async def test_bad_requests_have_nsqs_codes(
    lookup: Lookup, method: str, target: str, status: int, message: str
) -> None:
    """Missing, malformed and unknown arguments have different codes."""
    url = f"http://127.0.0.1:{lookup.daemon.http_port}"
    reader, writer = await asyncio.open_connection("127.0.0.1", lookup.daemon.http_port)
    # Not with a client library, which would correct the malformed queries.
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: {url}\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()

    assert int(head.split()[1]) == status
    assert json.loads(body) == {"message": message}


async def samples_of(lookup: Lookup) -> dict[tuple[str, ...], float]:
    """Return the samples of /metrics by name and label values."""
    text = (await lookup.get("/metrics")).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_draining_nsqds_and_topics_are_marked(lookup: Lookup) -> None:
    """Draining nsqds or topics are marked in `/lookup` and `/nodes`; others have no such field.

    `/metrics` counts the nsqds that drain as a whole.
    """
    one, two = await Peer.connect(lookup, "one", "t", "u"), await Peer.connect(lookup, "two", "t")
    assert await one.send(b"DRAIN u\n") == b"OK"
    assert await two.send(b"DRAIN\n") == b"OK"

    async def drains(topic: str) -> dict[str, Any]:
        found = (await lookup.get(f"/lookup?topic={topic}"))["producers"]
        return {each["broadcast_address"]: each.get("draining") for each in found}

    assert {"one": None, "two": True} == await drains("t")
    assert {"one": True} == await drains("u")
    nodes = (await lookup.get("/nodes"))["producers"]
    fields = {each["broadcast_address"]: set(each) for each in nodes}
    assert {"draining"} == fields["two"] - fields["one"]
    assert {"draining_topics"} == fields["one"] - fields["two"]
    assert 1 == (await samples_of(lookup))[("nsqlookupd_draining",)]
    assert await two.send(b"UNDRAIN\n") == b"OK"
    assert {"one": None, "two": None} == await drains("t")
    assert 0 == (await samples_of(lookup))[("nsqlookupd_draining",)]
    for peer in (one, two):
        await peer.leave()


async def test_metrics_have_the_numbers_of_the_registry(lookup: Lookup) -> None:
    """/metrics has the numbers of producers, topics, channels and tombstones."""
    one = await Peer.connect(lookup, "one", "t c", "u")
    two = await Peer.connect(lookup, "two", "t d")
    assert (await lookup.ask("POST", "/topic/tombstone?topic=t&node=two:4151"))[0] == 200
    samples = await samples_of(lookup)

    for name, value in {"producers": 2, "topics": 2, "channels": 2, "tombstones": 1}.items():
        assert samples[(f"nsqlookupd_{name}",)] == value
    assert samples[("nsqlookupd_topic_producers", "t")] == 1
    assert samples[("nsqlookupd_topic_producers", "u")] == 1
    assert ("process_resident_memory_bytes",) in samples
    await one.leave()
    await two.leave()


async def test_the_debug_routes_are_those_of_nsqs_nsqlookupd(lookup: Lookup) -> None:
    """The debug routes have NSQ's paths; none changes state."""
    for name in ("", "goroutine", "block", "heap"):
        assert (await lookup.ask("GET", f"/debug/pprof/{name}"))[0] == 200
    assert (await lookup.ask("GET", "/debug/pprof/profile?seconds=0.05"))[0] == 200
    assert (await lookup.ask("PUT", "/debug/setblockrate?rate=1"))[0] == 404
    assert (await lookup.ask("POST", "/debug/freememory"))[0] == 404


@pytest.mark.behaviour("nsqlookupd.TestBasicLookupd")
async def test_an_nsqd_that_disconnects_is_not_listed(lookup: Lookup) -> None:
    """After an nsqd disconnects, its topics and channels stay known, without producers."""
    a = await Peer.connect(lookup, "a", "t c")
    await a.leave()

    async def is_gone() -> bool:
        return bool(await lookup.get("/nodes") == {"producers": []})

    await until(is_gone)
    assert await lookup.get("/lookup?topic=t") == {"channels": ["c"], "producers": []}


@pytest.mark.behaviour(
    "nsqlookupd.TestCreateTopic",
    "nsqlookupd.TestDeleteTopic",
    "nsqlookupd.TestCreateChannel",
    "nsqlookupd.TestDeleteChannel",
)
async def test_topics_and_channels_are_created_and_deleted(lookup: Lookup) -> None:
    """Creating and deleting answer with an empty 200; deleting a topic deletes its channels."""
    assert await lookup.ask("POST", "/topic/create?topic=t") == (200, b"")
    assert await lookup.ask("POST", "/channel/create?topic=u&channel=c") == (200, b"")
    assert await lookup.get("/topics") == {"topics": ["t", "u"]}
    assert await lookup.ask("POST", "/channel/delete?topic=u&channel=c") == (200, b"")
    assert await lookup.get("/channels?topic=u") == {"channels": []}
    await lookup.ask("POST", "/channel/create?topic=u&channel=d")
    assert await lookup.ask("POST", "/topic/delete?topic=u") == (200, b"")
    assert await lookup.ask("POST", "/topic/delete?topic=u") == (200, b"")
    assert await lookup.get("/topics") == {"topics": ["t"]}
    assert await lookup.get("/channels?topic=u") == {"channels": []}
