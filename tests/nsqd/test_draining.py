"""`/drain` and `/topic/drain`: refusals, what is told, kill -9 and restart, the end by itself."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sparq.broker import drain_file
from sparq.broker.drain_file import NONE, Drain, DrainError, Draining
from sparq.client import Consumer as Reader
from sparq.client import Producer
from sparq.nsqd.draining import LEFT_SHOWN
from sparq.nsqd.leaving import LINGER_SECONDS
from sparq.protocol.commands import sub
from tests.nsqadmin.api.house import GO, go_server
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd, start_first
from tests.support.waiting import until, until_seen, wait_for

REFUSED = {"message": "DRAINING"}


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


PUB = b"PUB t\n" + sized(b"one")
MPUB = b"MPUB t\n" + sized(struct.pack(">i", 2) + sized(b"a") + sized(b"b"))
DPUB = b"DPUB t 10\n" + sized(b"later")


async def shown(nsqd: Daemon, method: str = "GET", path: str = "/drain") -> dict[str, Any]:
    status, answer = await nsqd.ask(method, path)
    assert 200 == status, answer
    found: dict[str, Any] = json.loads(answer)
    return found


async def publisher(nsqd: Daemon) -> Consumer:
    """A V2 connection that publishes."""
    return await Consumer.introduced(nsqd)


async def test_off_by_default(nsqd: Daemon) -> None:
    """Nothing drains, and `/stats` has NSQ's keys only."""
    await nsqd.post("/pub?topic=t", b"x")

    found = await shown(nsqd)
    assert {"draining": False, "since": None, "by": None, "exit": False}.items() <= found.items()
    assert {"refused": 0, "draining_topics": {}, "topics": 1, "depth": 1}.items() <= found.items()
    assert "draining" not in await nsqd.stats()
    assert b"nsqd_draining 0" in await metrics(nsqd)
    assert not (Path(nsqd.nsqd.options.data_path) / "drain.json").exists()


async def metrics(nsqd: Daemon) -> bytes:
    status, answer = await nsqd.ask("GET", "/metrics")
    assert 200 == status
    return answer


async def test_publishes_are_refused_and_deliveries_go_on(nsqd: Daemon) -> None:
    """V2 with a fixed text, HTTP with 503; connections stay; what was promised is delivered."""
    producer = await publisher(nsqd)
    producer.send(PUB)
    assert (0, b"OK") == await producer.frame()
    begun = await shown(nsqd, "POST")
    assert {"draining": True, "by": "127.0.0.1", "exit": False}.items() <= begun.items()

    for command, name in ((PUB, "PUB"), (MPUB, "MPUB"), (DPUB, "DPUB"), (PUB, "PUB")):
        producer.send(command)
        refused = f"E_{name}_FAILED {name} failed nsqd is draining".encode()
        assert (1, refused) == await producer.frame()
    bodies = (("/pub?topic=t", b"x"), ("/mpub?topic=new", b"x\ny"), ("/mpub?topic=new", b"\n"))
    for path, body in (*bodies, ("/pub?topic=t&defer=5", b"x")):
        status, answer = await nsqd.ask("POST", path, body)
        assert (503, REFUSED) == (status, json.loads(answer))
    assert ["t"] == list(nsqd.nsqd.broker.topics)  # a refused publish makes no topic
    consumer = await Consumer.introduced(nsqd, sub("t", "c"))
    assert [b"one"] == await consumer.messages(1)
    assert b"nsqd_draining 1" in await metrics(nsqd)
    assert b"nsqd_drain_refused_total 9" in await metrics(nsqd)
    assert (await nsqd.stats())["draining"] is True

    ended = await shown(nsqd, "DELETE")
    assert {"draining": False, "refused": 9}.items() <= ended.items()
    producer.send(PUB)
    assert (0, b"OK") == await producer.frame()
    assert [b"one"] == await consumer.messages(1)
    await nsqd.post("/mpub?topic=new", b"x\ny")
    assert "draining" not in await nsqd.stats()
    for one in (producer, consumer):
        await one.close()


async def test_what_is_left_and_what_holds_it_up(nsqd: Daemon) -> None:
    """Channels without consumers, paused ones and topics, and topics without a channel say so."""
    for topic in ("lone", "paused", "busy", "bare"):
        if topic != "bare":
            await nsqd.post(f"/topic/create?topic={topic}")
            await nsqd.post(f"/channel/create?topic={topic}&channel=c")
        await nsqd.post(f"/mpub?topic={topic}", b"1\n2\n3")
    await nsqd.post("/channel/pause?topic=paused&channel=c")
    consumer = await Consumer.introduced(nsqd, sub("busy", "c"))
    await consumer.messages(1, finish=False)
    await nsqd.post("/topic/create?topic=whole")
    await nsqd.post("/channel/create?topic=whole&channel=c")
    await nsqd.post("/pub?topic=whole&defer=60000", b"x")
    await nsqd.post("/topic/pause?topic=whole")
    await nsqd.post("/pub?topic=whole", b"y")
    found = await shown(nsqd, "POST")

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


async def test_a_list_of_what_is_left_is_bounded(nsqd: Daemon) -> None:
    """However many channels there are, the first ones are shown: those that are held up."""
    await nsqd.post("/topic/create?topic=t")
    for number in range(LEFT_SHOWN + 5):
        await nsqd.post(f"/channel/create?topic=t&channel=c{number}")
    await nsqd.post("/pub?topic=t", b"x")
    found = await shown(nsqd)

    assert (LEFT_SHOWN, LEFT_SHOWN + 5) == (len(found["left"]), found["channels"])


async def test_dead_letters_are_taken(tmp_path: Path) -> None:
    """They are no publish of a client: without them their channel would never be empty."""
    nsqd = await start(tmp_path, max_attempts=1)
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=c")
    await nsqd.post("/pub?topic=t", b"x")
    await shown(nsqd, "POST")
    consumer = await Consumer.introduced(nsqd, sub("t", "c"))
    consumer.send(b"RDY 1\n")
    kind, data = await consumer.frame()
    assert 2 == kind
    consumer.send(b"REQ " + data[10:26] + b" 0\n")

    async def moved() -> bool:
        topics = (await nsqd.stats())["topics"]
        return any(one["topic_name"] == "t.dead" and one["depth"] for one in topics)

    await until(moved)
    await consumer.close()
    await stop(nsqd)


async def test_one_topic_drains(nsqd: Daemon) -> None:
    """Only its publishes are refused, in words of their own; the topic need not be there."""
    told = await shown(nsqd, "POST", "/topic/drain?topic=t")
    assert ("t", True, "127.0.0.1") == (told["topic"], told["draining"], told["by"])
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
    assert ["t"] == list((await shown(nsqd))["draining_topics"])
    assert b"nsqd_draining_topics 1" in await metrics(nsqd)
    await shown(nsqd, "DELETE", "/topic/drain?topic=t")
    producer.send(MPUB)
    assert (0, b"OK") == await producer.frame()
    for method in ("POST", "DELETE"):
        status, answer = await nsqd.ask(method, "/topic/drain?topic=a+b")
        assert (400, {"message": "INVALID_ARG_TOPIC"}) == (status, json.loads(answer))
    await producer.close()


async def test_a_drain_that_cannot_be_written_does_not_hold(tmp_path: Path) -> None:
    """It is refused; publishes go on, and the next one may hold."""
    nsqd = await start(tmp_path)
    (tmp_path / "drain.json.new").mkdir()
    status, answer = await nsqd.ask("POST", "/drain")
    assert 500 == status
    assert json.loads(answer)["message"].startswith("INTERNAL_ERROR")
    await nsqd.post("/pub?topic=t", b"x")
    (tmp_path / "drain.json.new").rmdir()
    assert (await shown(nsqd, "POST"))["draining"] is True
    await stop(nsqd)


async def test_changes_at_the_same_time_are_all_kept(nsqd: Daemon) -> None:
    """Each is made of what the one before has come to."""
    paths = [("POST", f"/topic/drain?topic=t{number}") for number in range(8)]
    await asyncio.gather(*(shown(nsqd, *path) for path in (*paths, ("POST", "/drain"))))
    found = await shown(nsqd)

    assert found["draining"] is True
    assert {f"t{number}" for number in range(8)} == set(found["draining_topics"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b"[]", "list indices"),
        (drain_file.encode(Draining(Drain(1, "me"), {})).replace(b'"me"', b'"we"'), "checksum"),
        (drain_file.encode(NONE).replace(b'"format": 1', b'"format": 2'), "format 2"),
        (drain_file.encode(Draining(None, {"a b": Drain(1, "")})), "invalid topic name"),
    ],
)
def test_a_file_that_is_none(text: bytes, why: str) -> None:
    """What is damaged, or of a later version, is told; nothing is guessed."""
    with pytest.raises(DrainError, match=why):
        drain_file.decode(text)


def test_a_file_is_read_as_it_was_written() -> None:
    """With who has asked, since when and for what."""
    draining = Draining(Drain(5, "me", True), {"t": Drain(6, "she")})

    assert draining == drain_file.decode(drain_file.encode(draining))


def status_of(nsqd: Server) -> int:
    """The status with which a process has ended; it does so by itself."""
    process = nsqd.process
    assert process is not None
    nsqd.process = None
    return process.wait(20)


def test_a_drain_survives_a_kill_and_its_end_does(tmp_path: Path) -> None:
    """Of the nsqd and of a topic; a damaged file is no start."""
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
        assert 1 == status_of(nsqd)
        assert "checksum mismatch" in nsqd.log_text


def test_the_process_ends_once_nothing_is_left(tmp_path: Path) -> None:
    """With status 0, not before, once, and it says so; started again it drains on and stays."""
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
        time.sleep(2 * LINGER_SECONDS)  # longer than an empty nsqd is seen before it ends
        assert process.poll() is None
        nsqd.post("/channel/empty?topic=t&channel=c")
        assert nsqd.get_json("/drain")["empty"] is True  # whoever waits sees it before the end
        assert 0 == status_of(nsqd)
        assert "nsqd exits" in nsqd.log_text
        assert "NSQ: bye" in nsqd.log_text
        nsqd.start()
        found = nsqd.get_json("/drain")
        assert (True, False) == (found["draining"], found["exit"])
        nsqd.request("DELETE", "/drain")
        nsqd.post("/pub?topic=t", b"x")


def test_an_end_that_is_taken_back(tmp_path: Path) -> None:
    """A drain that is ended in time, or asked for without the end, ends no process."""
    with spawn_nsqd(tmp_path) as nsqd:
        for method, path in (("DELETE", "/drain"), ("POST", "/drain")):
            nsqd.post("/drain?exit=true")
            assert nsqd.get_json("/drain")["empty"] is True
            nsqd.request(method, path)
        wait_for(lambda: nsqd.log_text.count("nothing is left; messages refused") >= 1)
        time.sleep(2 * LINGER_SECONDS)  # longer than an empty nsqd is seen before it ends
        assert nsqd.get_json("/drain")["exit"] is False


# Under load


class Load:
    """Producers that publish without pause, and what became of each publish."""

    def __init__(self, producer: Producer, name: str) -> None:
        self.acknowledged: list[bytes] = []
        self.failures: list[Exception] = []
        self.slowest = 0.0
        self._producer = producer
        self._name = name
        self.is_over = False

    async def run(self) -> None:
        number = 0
        while not self.is_over:
            body = f"{self._name}-{number}".encode()
            number += 1
            began = time.monotonic()
            try:
                await self._producer.publish("t", body)
            except Exception as error:
                self.failures.append(error)
            else:
                self.acknowledged.append(body)
            self.slowest = max(self.slowest, time.monotonic() - began)


@pytest.fixture
async def lookupd(tmp_path: Path) -> AsyncIterator[Server]:
    server = await asyncio.to_thread(spawn_nsqlookupd, tmp_path)
    with server:
        yield server


async def cluster(tmp_path: Path, *lookupds: Server) -> list[NsqdServer]:
    return [
        await asyncio.to_thread(spawn_nsqd, tmp_path, lookupds=lookupds, name=f"nsqd{number}")
        for number in range(3)
    ]


async def test_a_node_leaves_under_load(tmp_path: Path, lookupd: Server) -> None:
    """No publish is lost or fails, none takes longer than 1 s; depth 0 at the end, status 0."""
    nsqds = await cluster(tmp_path, lookupd)
    received: set[bytes] = set()
    quick: dict[str, Any] = {"lookupd_http_addresses": lookupd.http, "lookupd_poll_interval": 0.3}
    try:
        await until_seen(lambda: len(lookupd.get_json("/nodes")["producers"]) == 3)
        for nsqd in nsqds:
            await asyncio.to_thread(nsqd.post, "/topic/create?topic=t")
            await asyncio.to_thread(nsqd.post, "/channel/create?topic=t&channel=c")

        async def handle(message: Any) -> None:
            received.add(message.body)

        async with (
            Producer(**quick) as producer,
            Reader("t", "c", handler=handle, max_in_flight=500, **quick),
        ):
            await until(lambda: len(producer.connections) == 3)
            loads = [Load(producer, f"p{number}") for number in range(20)]
            tasks = [asyncio.create_task(load.run()) for load in loads]
            await until(lambda: sum(len(load.acknowledged) for load in loads) > 2_000)
            leaving = nsqds[0]
            await asyncio.to_thread(leaving.post, "/drain?exit=true")
            await until_seen(
                lambda: (
                    sorted(
                        one.get("draining", False)
                        for one in lookupd.get_json("/lookup?topic=t")["producers"]
                    )
                    == [False, False, True]
                )
            )
            assert 0 == await asyncio.to_thread(status_of, leaving)
            at_end = sum(len(load.acknowledged) for load in loads)
            await until(lambda: sum(len(load.acknowledged) for load in loads) > at_end + 2_000)
            for load in loads:
                load.is_over = True
            await asyncio.gather(*tasks)
            acknowledged = {body for load in loads for body in load.acknowledged}
            await until(lambda: acknowledged <= received)

        assert [] == [error for load in loads for error in load.failures]
        assert max(load.slowest for load in loads) < 1.0
        await asyncio.to_thread(leaving.start)
        found = await asyncio.to_thread(leaving.channel, "t", "c")
        assert (0, 0, 0) == (found["depth"], found["in_flight_count"], found["deferred_count"])
    finally:
        for nsqd in nsqds:
            nsqd.close()


async def test_producers_leave_it_out_and_come_back(tmp_path: Path, lookupd: Server) -> None:
    """By what nsqlookupd lists; consumers still find it."""
    nsqds = await cluster(tmp_path, lookupd)
    draining = nsqds[0]
    quick: dict[str, Any] = {"lookupd_http_addresses": lookupd.http, "lookupd_poll_interval": 0.2}
    try:
        await until_seen(lambda: len(lookupd.get_json("/nodes")["producers"]) == 3)
        await asyncio.to_thread(draining.post, "/pub?topic=t", b"kept")
        await asyncio.to_thread(draining.post, "/drain")
        async with Producer(**quick) as producer:
            for _ in range(20):
                assert draining.tcp != (await producer.publish("t", b"x")).nsqd
            assert sorted(nsqd.tcp for nsqd in nsqds[1:]) == sorted(producer.connections)
            received = []

            async def handle(message: Any) -> None:
                received.append(message.body)

            async with Reader("t", "c", handler=handle, max_in_flight=30, **quick):
                await until(lambda: b"kept" in received)
            await asyncio.to_thread(draining.request, "DELETE", "/drain")
            await until(lambda: len(producer.connections) == 3)
            used = {(await producer.publish("t", b"x")).nsqd for _ in range(20)}
            assert {nsqd.tcp for nsqd in nsqds} == used
    finally:
        for nsqd in nsqds:
            nsqd.close()


async def test_an_nsqlookupd_that_comes_back_is_told(tmp_path: Path, lookupd: Server) -> None:
    """In IDENTIFY, and of topics behind it; also by an nsqd that was killed."""
    nsqd = await asyncio.to_thread(spawn_nsqd, tmp_path, lookupds=(lookupd,))
    with nsqd:
        await asyncio.to_thread(nsqd.post, "/drain")
        await asyncio.to_thread(nsqd.post, "/topic/drain?topic=t")

        def listed() -> Any:
            found = lookupd.get_json("/nodes")["producers"]
            return [(one.get("draining"), one.get("draining_topics")) for one in found]

        await until_seen(lambda: listed() == [(True, ["t"])])
        assert b"nsqlookupd_draining 1" in lookupd.request("GET", "/metrics")[1]
        await asyncio.to_thread(lookupd.restart)
        await until_seen(lambda: listed() == [(True, ["t"])])
        await asyncio.to_thread(nsqd.restart)
        await until_seen(lambda: listed() == [(True, ["t"])])
        await asyncio.to_thread(nsqd.request, "DELETE", "/drain")
        await asyncio.to_thread(nsqd.request, "DELETE", "/topic/drain?topic=t")
        await until_seen(lambda: listed() == [(None, None)])


@pytest.mark.skipif(GO["nsqlookupd"] not in os.environ, reason="needs NSQLOOKUPD_GO")
def test_gos_nsqlookupd_goes_on(tmp_path: Path) -> None:
    """It is told nothing that it does not know: the nsqd stays listed, before and after a kill."""
    go = go_server("nsqlookupd", tmp_path / "go", ("--broadcast-address=127.0.0.1",))
    start_first(go)
    with go, spawn_nsqd(tmp_path, lookupds=(go,)) as nsqd:
        nsqd.post("/topic/create?topic=t")

        def listed() -> int:
            found = go.get_json("/lookup?topic=t")["producers"]
            return sum(one["http_port"] == nsqd.http_port for one in found)

        wait_for(lambda: go.request("GET", "/lookup?topic=t")[0] == 200 and listed())
        nsqd.post("/drain")
        nsqd.post("/topic/drain?topic=t")
        nsqd.post("/topic/create?topic=u")  # told behind the drain on the same connection
        wait_for(lambda: "u" in go.get_json("/topics")["topics"])
        assert 1 == listed()
        nsqd.restart()
        wait_for(lambda: listed() == 1)
        nsqd.request("DELETE", "/drain")
        assert "LOOKUPD" in nsqd.log_text
        assert "answered" not in nsqd.log_text
        assert 1 == nsqd.log_text.split("DRAIN: continues")[0].count("connected")
