"""A draining nsqd in a cluster: producers stop using it, and consumers still find it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Consumer as Reader
from sparq.client import Producer
from tests.nsqadmin.cluster import GO, go_server
from tests.nsqd.test_draining import exit_status_of
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd, start_first
from tests.support.waiting import until, until_seen, wait_for


class Load:
    """A task that publishes without pause, and the results."""

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


async def test_a_node_is_drained_under_load(tmp_path: Path, lookupd: Server) -> None:
    """Under load no publish is lost, fails or takes longer than 1 s.

    The node ends empty, with status 0.
    """
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
            assert 0 == await asyncio.to_thread(exit_status_of, leaving)
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


async def test_a_restarted_nsqlookupd_learns_of_the_draining(
    tmp_path: Path, lookupd: Server
) -> None:
    """A restarted nsqlookupd or nsqd knows the draining nsqd and topics again."""
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
def test_gos_nsqlookupd_lists_a_draining_nsqd(tmp_path: Path) -> None:
    """Go's nsqlookupd lists a draining nsqd, also after a kill, and gets no unknown command."""
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
        nsqd.post("/topic/create?topic=u")  # sent after the drain on the same connection
        wait_for(lambda: "u" in go.get_json("/topics")["topics"])
        assert 1 == listed()
        nsqd.restart()
        wait_for(lambda: listed() == 1)
        nsqd.request("DELETE", "/drain")
        assert "LOOKUPD" in nsqd.log_text
        assert "answered" not in nsqd.log_text
        assert 1 == nsqd.log_text.split("DRAIN: continues")[0].count("connected")
