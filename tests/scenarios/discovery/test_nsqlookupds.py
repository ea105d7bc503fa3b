"""Real processes: nsqds register with nsqlookupds, and new topics get their channels from them."""

import time
from pathlib import Path
from typing import Any

from sparq.protocol.commands import pub
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import until_seen, wait_for


def ports(lookupd: Server, topic: str) -> list[int]:
    """The TCP ports that an nsqlookupd lists for a topic."""
    status, _ = lookupd.request("GET", f"/lookup?topic={topic}")
    if status == 404:
        return []
    found: Any = lookupd.get_json(f"/lookup?topic={topic}")
    return sorted(producer["tcp_port"] for producer in found["producers"])


def both(*nsqds: NsqdServer) -> list[int]:
    return sorted(nsqd.tcp_port for nsqd in nsqds)


async def test_a_new_topic_gets_the_channels_listed_by_nsqlookupd(tmp_path: Path) -> None:
    """A topic that is new to this nsqd gets the channels that nsqlookupd lists, with all messages.

    Ephemeral channels are not created.
    """
    with spawn_nsqlookupd(tmp_path) as lookupd, spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd:
        lookupd.post("/channel/create?topic=t&channel=elsewhere")
        lookupd.post("/channel/create?topic=t&channel=gone%23ephemeral")
        nsqd.post("/pub?topic=t", b"first")

        await until_seen(lambda: nsqd.channel("t", "elsewhere").get("depth") == 1)
        (topic,) = nsqd.get_json("/stats?format=json&topic=t")["topics"]
        assert [channel["channel_name"] for channel in topic["channels"]] == ["elsewhere"]


async def test_a_dead_nsqlookupd_delays_publishes_less_than_two_seconds(tmp_path: Path) -> None:
    """With a dead nsqlookupd, publishes take less than 2 s.

    New channels get messages within 6 s.
    """
    with spawn_nsqlookupd(tmp_path) as lookupd:
        lookupd.kill9()
        with spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd:
            began = time.monotonic()
            nsqd.post("/pub?topic=t", b"first")
            assert time.monotonic() - began < 2
            nsqd.post("/channel/create?topic=t&channel=c")
            await until_seen(lambda: nsqd.channel("t", "c")["depth"] == 1, seconds=6)


def test_a_topic_is_found_right_after_the_ok_of_its_first_publish(tmp_path: Path) -> None:
    """A look-up right after the OK finds the nsqd, also for an #ephemeral topic, as with Go's."""
    with (
        spawn_nsqlookupd(tmp_path) as lookupd,
        spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd,
        V2Client(nsqd) as client,
    ):
        nsqd.post("/topic/create?topic=first")
        wait_for(lambda: ports(lookupd, "first") == both(nsqd))
        for number in range(30):
            topic = f"t{number}#ephemeral"
            assert client.ask(pub(topic, b"x")) == OK
            assert ports(lookupd, topic.replace("#", "%23")) == both(nsqd), topic
