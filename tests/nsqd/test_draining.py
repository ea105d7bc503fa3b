"""`/drain` and `/topic/drain`: refused publishes, the answers, kill -9 and restart."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

from sparq.nsqd.draining import LEFT_SHOWN, LINGER_SECONDS
from sparq.protocol.commands import sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.servers import Server, spawn_nsqd
from tests.support.waiting import until, wait_for

REFUSED = {"message": "DRAINING"}


def with_size(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


PUB = b"PUB t\n" + with_size(b"one")
MPUB = b"MPUB t\n" + with_size(struct.pack(">i", 2) + with_size(b"a") + with_size(b"b"))
DPUB = b"DPUB t 10\n" + with_size(b"later")


async def drain_state(nsqd: Daemon, method: str = "GET", path: str = "/drain") -> dict[str, Any]:
    status, answer = await nsqd.ask(method, path)
    assert 200 == status, answer
    found: dict[str, Any] = json.loads(answer)
    return found


async def publisher(nsqd: Daemon) -> Consumer:
    """Open a V2 connection that publishes."""
    return await Consumer.identified(nsqd)


async def test_nothing_drains_by_default(nsqd: Daemon) -> None:
    """By default nothing drains, `/stats` has no `draining` key, and drain.json does not exist."""
    await nsqd.post("/pub?topic=t", b"x")

    found = await drain_state(nsqd)
    assert {"draining": False, "since": None, "by": None, "exit": False}.items() <= found.items()
    assert {"refused": 0, "draining_topics": {}, "topics": 1, "depth": 1}.items() <= found.items()
    assert "draining" not in await nsqd.stats()
    assert b"nsqd_draining 0" in await metrics(nsqd)
    assert not (Path(nsqd.nsqd.options.data_path) / "drain.json").exists()


async def metrics(nsqd: Daemon) -> bytes:
    status, answer = await nsqd.ask("GET", "/metrics")
    assert 200 == status
    return answer


async def test_publishes_are_refused_and_deliveries_continue(nsqd: Daemon) -> None:
    """Publishes fail, over HTTP with 503; connections stay open and messages are delivered."""
    producer = await publisher(nsqd)
    producer.send(PUB)
    assert (0, b"OK") == await producer.frame()
    begun = await drain_state(nsqd, "POST")
    assert {"draining": True, "by": "127.0.0.1", "exit": False}.items() <= begun.items()

    for command, name in ((PUB, "PUB"), (MPUB, "MPUB"), (DPUB, "DPUB"), (PUB, "PUB")):
        producer.send(command)
        refused = f"E_{name}_FAILED {name} failed nsqd is draining".encode()
        assert (1, refused) == await producer.frame()
    bodies = (("/pub?topic=t", b"x"), ("/mpub?topic=new", b"x\ny"), ("/mpub?topic=new", b"\n"))
    for path, body in (*bodies, ("/pub?topic=t&defer=5", b"x")):
        status, answer = await nsqd.ask("POST", path, body)
        assert (503, REFUSED) == (status, json.loads(answer))
    assert ["t"] == list(nsqd.nsqd.broker.topics)  # a refused publish creates no topic
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    assert [b"one"] == await consumer.messages(1)
    assert b"nsqd_draining 1" in await metrics(nsqd)
    assert b"nsqd_drain_refused_total 9" in await metrics(nsqd)
    assert (await nsqd.stats())["draining"] is True

    ended = await drain_state(nsqd, "DELETE")
    assert {"draining": False, "refused": 9}.items() <= ended.items()
    producer.send(PUB)
    assert (0, b"OK") == await producer.frame()
    assert [b"one"] == await consumer.messages(1)
    await nsqd.post("/mpub?topic=new", b"x\ny")
    assert "draining" not in await nsqd.stats()
    for one in (producer, consumer):
        await one.close()


async def test_the_list_of_remaining_channels_is_bounded(nsqd: Daemon) -> None:
    """`left` has at most LEFT_SHOWN channels; `channels` counts all of them."""
    await nsqd.post("/topic/create?topic=t")
    for number in range(LEFT_SHOWN + 5):
        await nsqd.post(f"/channel/create?topic=t&channel=c{number}")
    await nsqd.post("/pub?topic=t", b"x")
    found = await drain_state(nsqd)

    assert (LEFT_SHOWN, LEFT_SHOWN + 5) == (len(found["left"]), found["channels"])


async def test_a_draining_nsqd_moves_dead_letters(tmp_path: Path) -> None:
    """A draining nsqd still moves dead letters: otherwise their channel would never be empty."""
    nsqd = await start(tmp_path, max_attempts=1)
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    await nsqd.post("/pub?topic=t", b"x")
    await drain_state(nsqd, "POST")
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    consumer.send(b"RDY 1\n")
    kind, data = await consumer.frame()
    assert 2 == kind
    consumer.send(b"REQ " + data[10:26] + b" 0\n")

    async def moved() -> bool:
        topics = (await nsqd.stats())["topics"]
        return any(one["topic_name"] == "t.dead" and one["message_count"] for one in topics)

    await until(moved)
    await consumer.close()
    await stop(nsqd)


async def test_draining_one_topic_refuses_only_its_publishes(nsqd: Daemon) -> None:
    """Only publishes to that topic are refused, with another error; it need not exist."""
    drain = await drain_state(nsqd, "POST", "/topic/drain?topic=t")
    assert ("t", True, "127.0.0.1") == (drain["topic"], drain["draining"], drain["by"])
    producer = await publisher(nsqd)
    producer.send(MPUB)

    assert (1, b"E_MPUB_FAILED MPUB failed topic is draining at this nsqd") == (
        await producer.frame()
    )
    status, answer = await nsqd.ask("POST", "/pub?topic=t", b"x")
    assert (503, {"message": "TOPIC_DRAINING"}) == (status, json.loads(answer))
    assert not nsqd.nsqd.broker.topics
    await nsqd.post("/pub?topic=other", b"x")
    assert "draining" not in await nsqd.stats()
    assert ["t"] == list((await drain_state(nsqd))["draining_topics"])
    assert b"nsqd_draining_topics 1" in await metrics(nsqd)
    await drain_state(nsqd, "DELETE", "/topic/drain?topic=t")
    producer.send(MPUB)
    assert (0, b"OK") == await producer.frame()
    for method in ("POST", "DELETE"):
        status, answer = await nsqd.ask(method, "/topic/drain?topic=a+b")
        assert (400, {"message": "INVALID_ARG_TOPIC"}) == (status, json.loads(answer))
    await producer.close()


async def test_a_drain_that_cannot_be_written_has_no_effect(tmp_path: Path) -> None:
    """If drain.json cannot be written, /drain gets 500, publishes continue, a retry succeeds."""
    nsqd = await start(tmp_path)
    (tmp_path / "drain.json.new").mkdir()
    status, answer = await nsqd.ask("POST", "/drain")
    assert 500 == status
    assert json.loads(answer)["message"].startswith("INTERNAL_ERROR")
    await nsqd.post("/pub?topic=t", b"x")
    (tmp_path / "drain.json.new").rmdir()
    assert (await drain_state(nsqd, "POST"))["draining"] is True
    await stop(nsqd)


def exit_status_of(nsqd: Server) -> int:
    """Wait up to 20 s until the process exits by itself; return its exit status."""
    process = nsqd.process
    assert process is not None
    nsqd.process = None
    return process.wait(20)


def test_drains_and_their_ends_survive_kill_9(tmp_path: Path) -> None:
    """Drains, and their ends, survive kill -9; nsqd does not start with a damaged drain.json."""
    with spawn_nsqd(tmp_path) as nsqd:
        nsqd.post("/drain")
        nsqd.post("/topic/drain?topic=t")
        since = nsqd.get_json("/drain")["since"]
        nsqd.restart()
        found = nsqd.get_json("/drain")
        assert (True, since, ["t"]) == (
            found["draining"],
            found["since"],
            list(found["draining_topics"]),
        )
        assert (503, b'{"message":"DRAINING"}') == nsqd.request("POST", "/pub?topic=x", b"x")
        assert "DRAIN: continues" in nsqd.log_text
        nsqd.request("DELETE", "/drain")
        nsqd.restart()
        assert nsqd.get_json("/drain")["draining"] is False
        nsqd.post("/pub?topic=x", b"x")
        assert 503 == nsqd.request("POST", "/pub?topic=t", b"x")[0]
        nsqd.request("DELETE", "/topic/drain?topic=t")
        assert not (nsqd.folder / "drain.json").exists()
        nsqd.post("/drain")
        nsqd.kill9()
        path = nsqd.folder / "drain.json"
        path.write_bytes(path.read_bytes().replace(b'"by": "127', b'"by": "128'))
        nsqd.launch()
        assert 1 == exit_status_of(nsqd)
        assert "checksum mismatch" in nsqd.log_text


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
