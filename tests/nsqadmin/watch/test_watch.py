"""Watching the cluster in rounds: real daemons, and fake ones that do not answer."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from sparq.nsqadmin.watch.watch import ClusterWatch
from tests.nsqadmin.fake import FakeNode
from tests.nsqadmin.watch.figures import stats, topic
from tests.nsqadmin.watch.watching import has_state, running_watch, snapshot_where
from tests.support.servers import Server, free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import stays, until


async def test_a_published_message_is_in_the_snapshot(tmp_path: Path) -> None:
    """A snapshot has the figures of two real nsqds, found through a real nsqlookupd."""
    with (
        spawn_nsqlookupd(tmp_path) as lookupd,
        spawn_nsqd(tmp_path, lookupds=(lookupd,), name="one") as one,
        spawn_nsqd(tmp_path, lookupds=(lookupd,), name="two") as two,
    ):
        for nsqd in (one, two):
            nsqd.post("/topic/create?topic=t")
            nsqd.post("/channel/create?topic=t&channel=c")
        async with running_watch(lookupds=(lookupd.http,)) as watch:
            await snapshot_where(watch, lambda p: p.totals.nodes_up == 2 and p.totals.channels)
            one.post("/pub?topic=t", b"hello")
            two.post("/mpub?topic=t", b"a\nb")
            snapshot = await watch.fresh()

            row = snapshot.channels.find("t", "c")
            assert row is not None
            assert (3, 3, 2, "no consumers") == (row.depth, row.messages, row.nodes, row.state)
            assert {"up"} == {node.state for node in snapshot.nodes}
            assert {(lookupd.http,)} == {node.lookupds for node in snapshot.nodes}
            detail = await watch.detail("t", "c")
            assert detail.stats is not None
            assert 3 == detail.stats["depth"]
            assert () == await watch.clients()
            await check_killed_node(watch, one)


async def check_killed_node(watch: ClusterWatch, nsqd: Server) -> None:
    """Check that a killed nsqd is gone within 5 s, with a notice, and can be forgotten."""
    await asyncio.to_thread(nsqd.kill9)
    began = time.monotonic()
    snapshot = await snapshot_where(watch, has_state(nsqd.http, "gone"))

    assert time.monotonic() - began < 5
    sentences = [notice.sentence for notice in snapshot.notices]
    assert any("gone" in each and "1 message waits there" in each for each in sentences), sentences
    assert not watch.dismiss("127.0.0.1:1")
    assert watch.dismiss(nsqd.http)
    await snapshot_where(watch, lambda p: p.node(nsqd.http) is None)


async def test_many_viewers_cause_no_more_requests_than_one() -> None:
    """Fifty viewers share the upstream requests for snapshots, details and clients."""
    async with FakeNode() as fake:
        pace = {"interval_seconds": 0.2, "idle_seconds": 0.2}
        async with running_watch(nsqds=(fake.http,), **pace) as watch:
            await snapshot_where(watch, lambda p: p.totals.nodes_up)
            fake.requests.clear()
            rounds = watch.rounds

            async def view() -> None:
                number = 0
                for _ in range(3):
                    snapshot = await watch.changed(number)
                    number = snapshot.number
                    await watch.detail("t", "c")
                    await watch.clients()

            await asyncio.gather(*(view() for _ in range(50)))
            plain = [each for each in fake.requests if "include_clients=false" in each]
            assert len(plain) <= watch.rounds - rounds + 1
            assert len([each for each in fake.requests if "topic=t" in each]) <= 5
            assert len([each for each in fake.requests if "include_mem=false" in each]) < 15


async def test_rounds_are_infrequent_without_viewers() -> None:
    """Without viewers a round takes place every idle_seconds; a viewer starts one."""
    async with FakeNode() as fake:
        pace = {"interval_seconds": 0.02, "idle_seconds": 60.0}
        async with running_watch(nsqds=(fake.http,), **pace) as watch:
            await until(lambda: watch.rounds)
            await stays(lambda: watch.rounds == 1, seconds=0.2)
            fake.answer = stats(topic("t", depth=5))
            await snapshot_where(watch, lambda p: p.totals.waiting == 5, seconds=5)


async def test_a_node_that_is_not_listed_is_unregistered(tmp_path: Path) -> None:
    """A node that answers but is not listed is unregistered: consumers cannot find it."""
    async with FakeNode() as fake, FakeNode() as lookupd:
        host, port = fake.http.split(":")
        told = {"hostname": "h", "version": "1.3.0", "tcp_port": 1, "remote_address": "1.2.3.4:5"}
        node = {**told, "broadcast_address": host, "http_port": int(port), "topics": ["t"]}
        lookupd.answer = {"producers": [node]}
        async with running_watch(lookupds=(lookupd.http,)) as watch:
            await snapshot_where(watch, lambda p: p.totals.nodes_up)
            lookupd.answer = {"producers": []}
            await snapshot_where(watch, lambda p: p.nodes[0].state == "unregistered")
            fake.answer = stats(topic("t", depth=5))
            await snapshot_where(watch, lambda p: p.totals.waiting == 5)
            lookupd.answer = {"producers": [node]}
            snapshot = await snapshot_where(watch, lambda p: p.nodes[0].state == "up")
            assert (lookupd.http,) == snapshot.nodes[0].lookupds


async def test_without_nsqlookupds_the_snapshot_is_empty() -> None:
    """If no nsqlookupd answers, the snapshot has no nodes, and a notice with the error."""
    address = f"127.0.0.1:{free_port()}"
    async with running_watch(lookupds=(address,)) as watch:
        snapshot = await watch.current()

    assert ((), 0) == (snapshot.nodes, len(snapshot.channels))
    assert [f"nsqlookupd {address} does not answer: connection refused."] == [
        notice.sentence for notice in snapshot.notices
    ]


@pytest.mark.parametrize("kind", ["lookupd", "nsqd"])
async def test_a_watch_can_be_closed_during_a_request(kind: str) -> None:
    """A watch can be closed during an unanswered request."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        places: dict[str, Any] = {f"{kind}s": (address,)}
        silent.setblocking(False)
        async with running_watch(**places):
            asked, _ = await asyncio.get_running_loop().sock_accept(silent)
        asked.close()


async def test_a_gone_node_is_dismissed_until_it_answers(tmp_path: Path) -> None:
    """A node that is gone but still listed can be dismissed; it comes back with its answer."""
    with spawn_nsqd(tmp_path) as nsqd:
        async with running_watch(nsqds=(nsqd.http,)) as watch:
            await snapshot_where(watch, has_state(nsqd.http, "up"))
            assert not watch.dismiss(nsqd.http)
            await asyncio.to_thread(nsqd.kill9)
            await snapshot_where(watch, has_state(nsqd.http, "gone"))
            assert watch.dismiss(nsqd.http)
            await snapshot_where(watch, lambda p: not p.nodes)
            await stays(lambda: watch.snapshot is not None and not watch.snapshot.nodes, 0.3)
            await asyncio.to_thread(nsqd.start)
            await snapshot_where(watch, has_state(nsqd.http, "up"))
