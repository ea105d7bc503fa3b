"""`/stats`: the figures of a real broker in NSQ's JSON and text forms."""

import re
import time

import pytest

from sparq.protocol.commands import pub, rdy, sub
from tests.nsqd.daemon import Consumer, Daemon
from tests.support.waiting import until

MEMORY_KEYS = [
    "heap_objects",
    "heap_idle_bytes",
    "heap_in_use_bytes",
    "heap_released_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
    "next_gc_bytes",
    "gc_total_runs",
]
TOPIC_KEYS = [
    "topic_name",
    "channels",
    "depth",
    "backend_depth",
    "message_count",
    "message_bytes",
    "paused",
    "e2e_processing_latency",
]
CHANNEL_KEYS = [
    "channel_name",
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "message_count",
    "global_msg_count",
    "requeue_count",
    "timeout_count",
    "client_count",
    "clients",
    "paused",
    "e2e_processing_latency",
]
CLIENT_KEYS = [
    "client_id",
    "hostname",
    "version",
    "remote_address",
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
    "connect_ts",
    "sample_rate",
    "deflate",
    "snappy",
    "user_agent",
    "topology_zone",
    "topology_region",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]


@pytest.mark.behaviour("TestHTTPgetStatusJSON")
async def test_stats_of_an_empty_nsqd(nsqd: Daemon) -> None:
    """NSQ's keys are in NSQ's order, sparq's after them; `include_mem=false` omits memory."""
    stats = await nsqd.stats()

    nsqs = ["version", "health", "start_time", "topics", "memory", "producers"]
    assert list(stats) == [*nsqs, "reserve", "sparq_version"]
    assert list(stats["reserve"]) == ["bytes", "target_bytes", "finishes", "is_short"]
    assert (stats["version"], stats["health"]) == ("1.3.0", "OK")
    assert (stats["topics"], stats["producers"]) == ([], None)
    assert list(stats["memory"]) == MEMORY_KEYS
    assert 1 << 24 < stats["memory"]["heap_in_use_bytes"] < 1 << 40
    assert "memory" not in await nsqd.stats("include_mem=false")


async def test_stats_of_topic_channel_and_clients(nsqd: Daemon) -> None:
    """NSQ's keys come first, in NSQ's order and with its types, then sparq's keys."""
    producer = await Consumer.identified(nsqd, pub("t", b"hello"), pub("u", b"x"), pub("t", b"y"))
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    assert await consumer.messages(1, finish=False) == [b"hello"]
    stats = await nsqd.stats("topic=t")

    (topic,) = stats["topics"]
    assert list(topic)[:8] == TOPIC_KEYS
    assert (topic["message_count"], topic["message_bytes"]) == (2, 6)
    assert topic["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    (channel,) = topic["channels"]
    assert list(channel)[:13] == CHANNEL_KEYS
    assert channel["global_msg_count"] == 1
    assert (channel["depth"], channel["in_flight_count"], channel["client_count"]) == (1, 1, 1)
    (client,) = channel["clients"]
    assert list(client) == CLIENT_KEYS
    assert abs(client.pop("connect_ts") - time.time()) < 60
    assert re.fullmatch(r"127\.0\.0\.1:\d+", client.pop("remote_address"))
    expected = dict.fromkeys(CLIENT_KEYS, 0) | {
        "client_id": "me",
        "hostname": "h",
        "version": "V2",
        "state": 3,
        "in_flight_count": 1,
        "message_count": 1,
        "user_agent": "test/1",
        **dict.fromkeys(("topology_zone", "topology_region"), ""),
        **dict.fromkeys(("tls_cipher_suite", "tls_version", "tls_negotiated_protocol"), ""),
        **dict.fromkeys(("deflate", "snappy", "tls", "tls_negotiated_protocol_is_mutual"), False),
    }
    assert client == {k: v for k, v in expected.items() if k in client}
    (listed,) = stats["producers"]
    assert listed["pub_counts"] == [{"topic": "t", "count": 2}]
    await producer.close()
    await consumer.close()


@pytest.mark.behaviour("TestHTTPClientStats", "TestStats")
async def test_filters_of_stats(nsqd: Daemon) -> None:
    """Names match exactly; without a match the list is null or empty; clients can be omitted."""
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    await nsqd.post("/topic/create?topic=u")

    names = [topic["topic_name"] for topic in (await nsqd.stats())["topics"]]
    assert names == ["t", "u"]
    none = await nsqd.stats("topic=none")
    assert (none["topics"], none["producers"]) == (None, None)
    (found,) = (await nsqd.stats("channel=c"))["topics"]
    assert found["topic_name"] == "t"
    half = await nsqd.stats("topic=t&channel=none")
    assert (half["topics"], half["producers"]) == ([], None)
    for query in ("", "&include_clients=true", "&include_clients=nonsense"):
        (channel,) = (await nsqd.stats(f"topic=t{query}"))["topics"][0]["channels"]
        assert [client["client_id"] for client in channel["clients"]] == ["me"]
    without = await nsqd.stats("topic=t&include_clients=false")
    (channel,) = without["topics"][0]["channels"]
    assert (channel["clients"], channel["client_count"]) == (None, 1)
    assert without["producers"] is None
    assert (await nsqd.ask("GET", "/stats?x=%"))[0] == 400
    await consumer.close()


async def test_one_client_is_listed_by_its_address(nsqd: Daemon) -> None:
    """With `client`, lists have only the client with this address; counts stay."""
    mine = await Consumer.identified(nsqd, sub("t", "c"), pub("t", b"x"))
    other = await Consumer.identified(nsqd, sub("t", "c"), pub("t", b"x"))
    address = f"127.0.0.1:{port_of(mine)}"

    stats = await nsqd.stats(f"topic=t&channel=c&client={address}")
    (channel,) = stats["topics"][0]["channels"]
    found = [
        [one["remote_address"] for one in some] for some in (channel["clients"], stats["producers"])
    ]
    assert found == [[address], [address]]
    assert channel["client_count"] == 2
    status, text = await nsqd.ask("GET", f"/stats?include_mem=0&client={address}")
    assert (status, text.decode().count("[V2 h:")) == (200, 2)
    await mine.close()
    await other.close()


@pytest.mark.behaviour("TestHTTPgetStatusText")
async def test_stats_as_text(nsqd: Daemon) -> None:
    """The lines have NSQ's columns, because scripts split them by column."""
    consumer = await Consumer.identified(nsqd, sub("t", "c"), pub("u", b"x"))
    await nsqd.post("/channel/create?topic=t&channel=a-rather-long-name-of-a-channel")
    await nsqd.post("/channel/pause?topic=t&channel=c")
    await nsqd.post("/topic/pause?topic=u")
    await nsqd.post("/mpub?topic=t", b"1\n2")
    status, answer = await nsqd.ask("GET", "/stats")
    await consumer.close()

    assert status == 200
    lines = answer.decode().split("\n")
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/python3\.\d+\.\d+\) sparq [0-9.]+\S*", lines[0])
    assert re.fullmatch(r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)", lines[1])
    assert re.fullmatch(r"uptime \d[0-9.hmsµ]*s", lines[2])
    assert lines[3:7] == ["", "Health: OK", "", "Memory:"]
    for line, key in zip(lines[7:16], MEMORY_KEYS, strict=True):
        assert re.fullmatch(rf"   {key:<25}\t\d+", line)
    client = lines[21].replace(f":{port_of(consumer)} ", ":12345 ")
    assert lines[16:21] == [
        "",
        "Topics:",
        "   [t              ] depth: 0     be-depth: 0     msgs: 2        e2e%: ",
        "      [a-rather-long-name-of-a-channel] depth: 2     be-depth: 0     inflt: 0    def: 0   "
        " re-q: 0     timeout: 0     msgs: 2        e2e%: ",
        "   *P [c                        ] depth: 2     be-depth: 0     inflt: 0    def: 0   "
        " re-q: 0     timeout: 0     msgs: 2        e2e%: ",
    ]
    assert re.fullmatch(
        r"        \[V2 h:12345 test/1       \] msgs: 1        topics: u=1 connected: \ds", client
    )
    assert lines[22:25] == [
        "",
        "*P [u              ] depth: 1     be-depth: 0     msgs: 1        e2e%: ",
        "",
    ]
    assert lines[25] == "Producers:"
    assert lines[26] == "   " + lines[21].strip()
    assert lines[27:] == [""]


async def test_text_with_and_without_clients(nsqd: Daemon) -> None:
    """Without topics and producers the text has None; a consumer is shown with its RDY."""
    text = (await nsqd.ask("GET", "/stats?include_mem=0"))[1].decode()
    assert text.split("\n")[3:] == [
        "",
        "Health: OK",
        "",
        "Topics: None",
        "",
        "Producers: None",
        "",
    ]
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    consumer.send(rdy(7))

    async def has_its_window() -> bool:
        return (await nsqd.channel("t", "c"))["clients"][0]["ready_count"] == 7

    await until(has_its_window)
    text = (await nsqd.ask("GET", "/stats?include_mem=0"))[1].decode()
    await consumer.close()
    assert re.search(
        r"^        \[V2 h:\d+ test/1 +\] state: 3 inflt: 0    rdy: 7    fin: 0        re-q: 0      "
        r"  msgs: 0        connected: \ds$",
        text,
        re.MULTILINE,
    )


def port_of(consumer: Consumer) -> int:
    return int(consumer.writer.get_extra_info("sockname")[1])
