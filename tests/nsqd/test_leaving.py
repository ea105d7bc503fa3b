"""Messages left in a draining nsqd, why they are held up, and the exit of its process."""

from __future__ import annotations

import time
from pathlib import Path

from sparq.nsqd.leaving import LINGER_SECONDS
from sparq.protocol.commands import sub
from tests.nsqd.daemon import Consumer, Daemon
from tests.nsqd.test_draining import drain_state, exit_status_of
from tests.support.servers import spawn_nsqd
from tests.support.waiting import wait_for


async def test_remaining_channels_have_the_reason(nsqd: Daemon) -> None:
    """`held_up` has the reason: no consumers, paused, topic paused or no channel."""
    for topic in ("lone", "paused", "busy", "bare"):
        if topic != "bare":
            await nsqd.post(f"/topic/create?topic={topic}")
            await nsqd.post(f"/channel/create?topic={topic}&channel=c")
        await nsqd.post(f"/mpub?topic={topic}", b"1\n2\n3")
    await nsqd.post("/channel/pause?topic=paused&channel=c")
    consumer = await Consumer.identified(nsqd, sub("busy", "c"))
    await consumer.messages(1, finish=False)
    await nsqd.post("/topic/create?topic=whole")
    await nsqd.post("/channel/create?topic=whole&channel=c")
    await nsqd.post("/pub?topic=whole&defer=60000", b"x")
    await nsqd.post("/topic/pause?topic=whole")
    await nsqd.post("/pub?topic=whole", b"y")
    found = await drain_state(nsqd, "POST")

    left = {(one["topic"], one["channel"]): one["held_up"] for one in found["left"]}
    assert {
        ("lone", "c"): "no consumers",
        ("paused", "c"): "paused",
        ("busy", "c"): "",
        ("bare", None): "no channel",
        ("whole", "c"): "topic paused",
        ("whole", None): "topic paused",
    } == left
    sums = {name: found[name] for name in ("topics", "channels", "depth", "in_flight", "deferred")}
    assert {"topics": 5, "channels": 4, "depth": 12, "in_flight": 1, "deferred": 1} == sums
    assert found["empty"] is False
    await consumer.close()


def test_a_drained_nsqd_exits_once_it_is_empty(tmp_path: Path) -> None:
    """With exit=true an empty nsqd exits with 0; after a restart it drains but does not exit."""
    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=c")
        nsqd.post("/pub?topic=t", b"x")
        nsqd.post("/drain?exit=true")
        nsqd.restart()
        assert nsqd.get_json("/drain")["exit"] is True
        assert nsqd.get_json("/drain")["depth"] == 1
        process = nsqd.process
        assert process is not None
        time.sleep(2 * LINGER_SECONDS)  # longer than an empty nsqd lingers before it exits
        assert process.poll() is None
        nsqd.post("/channel/empty?topic=t&channel=c")
        assert nsqd.get_json("/drain")["empty"] is True  # a polling client sees it before the exit
        assert 0 == exit_status_of(nsqd)
        assert "nsqd exits" in nsqd.log_text
        assert "NSQ: bye" in nsqd.log_text
        nsqd.start()
        found = nsqd.get_json("/drain")
        assert (True, False) == (found["draining"], found["exit"])
        nsqd.request("DELETE", "/drain")
        nsqd.post("/pub?topic=t", b"x")


def test_a_cancelled_exit_does_not_happen(tmp_path: Path) -> None:
    """nsqd does not exit if the drain is ended in time, or requested again without exit=true."""
    with spawn_nsqd(tmp_path) as nsqd:
        for method, path in (("DELETE", "/drain"), ("POST", "/drain")):
            nsqd.post("/drain?exit=true")
            assert nsqd.get_json("/drain")["empty"] is True
            nsqd.request(method, path)
        wait_for(lambda: nsqd.log_text.count("nothing is left; messages refused") >= 1)
        time.sleep(2 * LINGER_SECONDS)  # longer than an empty nsqd lingers before it exits
        assert nsqd.get_json("/drain")["exit"] is False
