"""NSQ's API, what it shows: every GET route in its shape, with its errors, in both modes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.nsqadmin.api.house import Admin, House, consumer

TOPIC_KEYS = {
    *("node", "hostname", "topic_name", "depth", "memory_depth", "backend_depth", "message_count"),
    *("delivery_msg_count", "nodes", "channels", "paused", "e2e_processing_latency"),
}
CHANNEL_KEYS = {
    *("node", "hostname", "topic_name", "channel_name", "depth", "memory_depth", "backend_depth"),
    *("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "message_count"),
    *("client_count", "nodes", "clients", "paused", "e2e_processing_latency"),
}
CLIENT_KEYS = {
    *("node", "remote_address", "version", "client_id", "hostname", "user_agent", "connect_ts"),
    *("connected", "in_flight_count", "ready_count", "finish_count", "requeue_count"),
    *("message_count", "sample_rate", "deflate", "snappy", "authed", "auth_identity"),
    *("auth_identity_url", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol"),
    "tls_negotiated_protocol_is_mutual",
}
NODE_KEYS = {
    *("remote_addresses", "remote_address", "hostname", "broadcast_address", "tcp_port"),
    *("http_port", "version", "topics", "out_of_date"),
}
LATENCY_KEYS = {"count", "percentiles", "topic", "channel", "host"}


async def test_topics(either: Admin, house: House) -> None:
    """Their names, sorted."""
    house.fill("list_b", messages=0)
    house.fill("list_a", messages=0)
    found = await either.done("GET", "/api/topics")

    assert {"topics", "message"} == found.keys()
    assert {"list_a", "list_b"} <= set(found["topics"])
    assert sorted(found["topics"]) == found["topics"]


async def test_topics_that_no_node_has(by_lookupd: Admin, direct: Admin, house: House) -> None:
    """With their channels; none where the nodes are given."""
    house.fill("had", messages=0)
    for lookupd in house.lookupds:
        lookupd.post("/topic/create?topic=idle0")
        lookupd.post("/channel/create?topic=idle1&channel=c")
    found = (await by_lookupd.done("GET", "/api/topics?inactive=true"))["topics"]

    assert (None, ["c"]) == (found["idle0"], found["idle1"])
    assert "had" not in found
    assert {} == (await direct.done("GET", "/api/topics?inactive=true"))["topics"]


async def test_a_topic(either: Admin, house: House) -> None:
    """Summed over both nodes, with its parts and its channels; no clients."""
    house.fill("whole", messages=3)
    found = await either.done("GET", "/api/topics/whole")

    assert TOPIC_KEYS | {"message"} == found.keys()
    assert ("*", "", "whole", 6, False) == (
        found["node"],
        found["hostname"],
        found["topic_name"],
        found["message_count"],
        found["paused"],
    )
    assert sorted(nsqd.http for nsqd in house.nsqds) == sorted(n["node"] for n in found["nodes"])
    (channel,) = found["channels"]
    assert CHANNEL_KEYS == channel.keys()
    assert (6, None) == (channel["depth"], channel["clients"])
    for part in found["nodes"]:
        assert TOPIC_KEYS == part.keys()
        assert (3, None) == (part["message_count"], part["nodes"])
        assert [3] == [one["depth"] for one in part["channels"]]
    assert LATENCY_KEYS == found["e2e_processing_latency"].keys()
    assert ("whole", "*") == (
        found["e2e_processing_latency"]["topic"],
        found["e2e_processing_latency"]["host"],
    )


async def test_a_topic_without_a_channel(either: Admin, house: House) -> None:
    """What a node has told stays an empty list, what is put together is null."""
    house.make_bare("bare")
    found = await either.done("GET", "/api/topics/bare")

    assert found["channels"] is None
    assert [[], []] == [part["channels"] for part in found["nodes"]]
    node = await either.done("GET", f"/api/nodes/{house.nsqds[0].http}")
    assert [] in [topic["channels"] for topic in node["topics"]]


async def test_a_channel(either: Admin, house: House) -> None:
    """Summed over both nodes, each client once, with what `depth` is on disk."""
    house.fill("deep", messages=3)
    async with consumer(house.nsqds[0], "deep", "c"), consumer(house.nsqds[1], "deep", "c"):
        found = await either.done("GET", "/api/topics/deep/c")

    assert CHANNEL_KEYS | {"message"} == found.keys()
    assert (6, 6, 2) == (found["depth"], found["message_count"], found["client_count"])
    assert found["memory_depth"] == found["depth"] - found["backend_depth"]
    assert house.is_sparqs is (found["backend_depth"] > 0)
    assert [None, None] == [part["clients"] for part in found["nodes"]]
    assert sorted(nsqd.http for nsqd in house.nsqds) == [c["node"] for c in found["clients"]]
    for client in found["clients"]:
        assert CLIENT_KEYS == client.keys()
        assert ("me", "here", "test/1", "V2") == (
            client["client_id"],
            client["hostname"],
            client["user_agent"],
            client["version"],
        )
        assert 0 <= client["connected"] < 60_000_000_000
        assert client["connected"] % 1_000_000_000 == 0


async def test_nodes_by_nsqlookupd(by_lookupd: Admin, house: House) -> None:
    """Each with who lists it, its topics and their tombstones."""
    house.fill("listed", messages=0)
    for lookupd in house.lookupds:
        lookupd.post(f"/topic/tombstone?topic=listed&node={house.nsqds[0].http}")
    nodes = (await by_lookupd.done("GET", "/api/nodes"))["nodes"]

    assert {nsqd.http_port for nsqd in house.nsqds} == {node["http_port"] for node in nodes}
    for node in nodes:
        assert NODE_KEYS == node.keys()
        assert ("127.0.0.1", False) == (node["broadcast_address"], node["out_of_date"])
        listed = [text.partition("/") for text in node["remote_addresses"]]
        assert [lookupd.http for lookupd in house.lookupds] == [at for at, _, _ in listed]
        assert node["remote_address"] in [peer for _, _, peer in listed]
        is_first = node["http_port"] == house.nsqds[0].http_port
        assert {"topic": "listed", "tombstoned": is_first} in node["topics"]


async def test_nodes_that_were_given(direct: Admin, house: House) -> None:
    """In their order, listed by nobody."""
    nodes = (await direct.done("GET", "/api/nodes"))["nodes"]

    assert [nsqd.http_port for nsqd in house.nsqds] == [node["http_port"] for node in nodes]
    assert [None, None] == [node["remote_addresses"] for node in nodes]
    assert [NODE_KEYS, NODE_KEYS] == [node.keys() for node in nodes]


async def test_a_node(either: Admin, house: House) -> None:
    """All that it has, with the clients, and its totals."""
    house.fill("at_node")
    nsqd = house.nsqds[1]
    async with consumer(nsqd, "at_node", "c"):
        found = await either.done("GET", f"/api/nodes/{nsqd.http}")

    assert {"node", "topics", "total_messages", "total_clients", "message"} == found.keys()
    assert (nsqd.http, 1) == (found["node"], found["total_clients"])
    assert found["total_messages"] == sum(topic["message_count"] for topic in found["topics"])
    (topic,) = [topic for topic in found["topics"] if topic["topic_name"] == "at_node"]
    assert (nsqd.http, None) == (topic["node"], topic["nodes"])
    assert [CLIENT_KEYS] == [client.keys() for client in topic["channels"][0]["clients"]]


async def test_the_counter(either: Admin, house: House) -> None:
    """How much came to each channel at each node."""
    house.fill("counted", messages=4)
    stats = (await either.done("GET", "/api/counter"))["stats"]

    for nsqd in house.nsqds:
        expected = {
            "node": nsqd.http,
            "topic_name": "counted",
            "channel_name": "c",
            "message_count": 4,
        }
        assert expected == stats[f"counted:c:{nsqd.http}"]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/nodes/127.0.0.1:1", 404, "NODE_NOT_FOUND"),
        ("/api/nodes/x", 404, "NODE_NOT_FOUND"),
        ("/api/topics/wrong/nope", 404, "CHANNEL_NOT_FOUND"),
        ("/api/topics?inactive=%zz", 400, "INVALID_REQUEST"),
        ("/api/nope", 404, "NOT_FOUND"),
        ("/api/topics/a/b/c", 404, "NOT_FOUND"),
        ("/api/graphite", 400, "INVALID_ARG_METRIC"),
        ("/api/graphite?metric=depth&target=x", 400, "INVALID_ARG_METRIC"),
        ("/api/graphite?metric=rate", 400, "INVALID_ARG_TARGET"),
        ("/render?target=x", 404, "NOT_FOUND"),
    ],
)
async def test_errors(either: Admin, house: House, path: str, status: int, message: str) -> None:
    """NSQ's codes, but an unknown channel, which is a bug there, is not found."""
    house.fill("wrong", messages=0)

    assert (status, {"message": message}) == await either.ask("GET", path)


async def test_an_unknown_topic(by_lookupd: Admin, direct: Admin, house: House) -> None:
    """502 with NSQ's sentence: nobody knows it, or no node has it."""
    _, by_name = await by_lookupd.ask("GET", "/api/topics/nobody")
    prefix = "UPSTREAM_ERROR: failed to query any nsqlookupd: got response 404 Not Found "
    assert by_name["message"].startswith(prefix + r'"{\"message\":\"TOPIC_NOT_FOUND\"}" (')
    for lookupd in house.lookupds:
        lookupd.post("/topic/create?topic=unproduced")
    for found, path in (
        (by_lookupd, "/api/topics/unproduced"),
        (by_lookupd, "/api/topics/unproduced/c"),
        (direct, "/api/topics/nobody"),
        (direct, "/api/topics/nobody/c"),
    ):
        said = {"message": "UPSTREAM_ERROR: failed to query any nsqd: "}
        assert (502, said) == await found.ask("GET", path)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/api/topics", 405),
        ("POST", "/api/nodes", 405),
        ("DELETE", "/config/log_level", 405),
        ("GET", "/api/topics/", 301),
        ("GET", "/API/Topics", 301),
        ("POST", "/api/topics/", 307),
        ("GET", "/ping", 200),
    ],
)
async def test_the_router_is_nsqs(by_lookupd: Admin, method: str, path: str, status: int) -> None:
    """Methods, trailing slashes and case as Go's router has them."""
    found, headers, body = await by_lookupd.raw(method, path)

    assert status == found
    if found == 405:
        assert b'{"message":"METHOD_NOT_ALLOWED"}' == body
        assert headers["Allow"]
    elif found == 200:
        assert b"OK" == body
    else:
        assert "/api/topics" == headers["Location"]


async def test_answers_are_json_of_nsq(by_lookupd: Admin) -> None:
    """NSQ's two headers; compressed for who takes it."""
    _, headers, _ = await by_lookupd.raw("GET", "/api/topics")
    assert "application/json; charset=utf-8" == headers["Content-Type"]
    assert "nsq; version=1.0" == headers["X-NSQ-Content-Type"]
    for coding in ("gzip", "deflate"):
        _, headers, _ = await by_lookupd.raw("GET", "/metrics", headers={"Accept-Encoding": coding})
        assert coding == headers["Content-Encoding"]


def without(document: Any, *names: str) -> Any:
    """A document without these keys, anywhere in it."""
    if isinstance(document, dict):
        return {k: without(v, *names) for k, v in document.items() if k not in names}
    if isinstance(document, list):
        return [without(one, *names) for one in document]
    return document
