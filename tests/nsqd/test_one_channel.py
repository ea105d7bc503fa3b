"""`/mpub?channel=`: messages for one channel of a topic alone; the others never see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparq.protocol.commands import sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.servers import spawn_nsqd

PATH = "/mpub?topic=t&channel=a"


async def furnish(nsqd: Daemon, *channels: str) -> None:
    await nsqd.post("/topic/create?topic=t")
    for name in channels:
        await nsqd.post(f"/channel/create?topic=t&channel={name}")


async def depths(nsqd: Daemon) -> dict[str, int]:
    return {one["channel_name"]: one["depth"] for one in (await nsqd.topic("t"))["channels"]}


async def test_only_one_channel_gets_them(nsqd: Daemon) -> None:
    """In their order between others; a channel that comes later does not get them, either."""
    await furnish(nsqd, "a", "b", "c")
    reader = await Consumer.introduced(nsqd, sub("t", "b"))
    await nsqd.post("/mpub?topic=t", b"1\n2")
    assert b"OK" == await nsqd.post(PATH, b"x\ny")
    await nsqd.post("/pub?topic=t", b"3")
    assert b"OK" == await nsqd.post(PATH, b"z")
    await nsqd.post("/channel/create?topic=t&channel=late")
    assert {"a": 6, "b": 3, "c": 3, "late": 0} == await depths(nsqd)

    assert [b"1", b"2", b"3"] == await reader.messages(3)
    for name, bodies in (("a", [b"1", b"2", b"x", b"y", b"3", b"z"]), ("c", [b"1", b"2", b"3"])):
        consumer = await Consumer.introduced(nsqd, sub("t", name))
        assert bodies == await consumer.messages(len(bodies))
        await consumer.close()
    # A consumer that has all waits at the end: what is another's passes it.
    await nsqd.post(PATH, b"w")
    await nsqd.post("/pub?topic=t", b"4")
    assert [b"4"] == await reader.messages(1)
    assert 0 == (await depths(nsqd))["b"]
    await reader.close()


def test_it_outlives_a_kill(tmp_path: Path) -> None:
    """What was answered is for that channel alone after kill -9, too."""
    with spawn_nsqd(tmp_path) as nsqd:
        for name in ("a", "b"):
            nsqd.post("/topic/create?topic=t")
            nsqd.post(f"/channel/create?topic=t&channel={name}")
        for number in range(20):
            nsqd.post(PATH, b"x\ny")
            nsqd.post("/pub?topic=t", b"%d" % number)
        nsqd.restart()
        assert [60, 20] == [nsqd.channel("t", name)["depth"] for name in ("a", "b")]


async def test_what_is_refused(tmp_path: Path) -> None:
    """No such topic or channel, a paused topic, a range reader, a drain."""
    nsqd = await start(tmp_path)

    async def refusal(path: str = PATH, body: bytes = b"x") -> Any:
        status, answer = await nsqd.ask("POST", path, body)
        return status, json.loads(answer)["message"]

    assert (404, "TOPIC_NOT_FOUND") == await refusal()
    await furnish(nsqd, "b")
    assert (404, "CHANNEL_NOT_FOUND") == await refusal()
    await furnish(nsqd, "a")
    assert (400, "INVALID_ARG_CHANNEL") == await refusal("/mpub?topic=t&channel=a+b")
    await nsqd.post("/topic/pause?topic=t")
    assert (400, "INVALID_REQUEST: topic t is paused") == await refusal()
    await nsqd.post("/topic/unpause?topic=t")
    nsqd.nsqd.broker.topics["t"].channels["b"].range_epoch = 1
    assert (400, "INVALID_REQUEST: channel b is read by ranges") == await refusal()
    nsqd.nsqd.broker.topics["t"].channels["b"].range_epoch = 0
    assert b"OK" == await nsqd.post(PATH, b"\n")
    await nsqd.post("/topic/drain?topic=t")
    assert (503, "TOPIC_DRAINING") == await refusal()
    await stop(nsqd)
