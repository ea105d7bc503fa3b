"""docs/operating.md: a copy of a running nsqd's data path, and the way back to Go's nsqd."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from bench.peers.nsq import GoNsqd, go_path

from sparq.client import Consumer, Message, Producer
from sparq.protocol.commands import pub
from sparq.tools.commands import nsq_check
from tests.support.servers import GoServer, NsqdServer, spawn_nsqd, spawn_nsqlookupd, start_first
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import until, wait_for

PAUSE_SECONDS = 0.002
"""The time between two publishes: the test is about continuity, not about speed."""
READY_SECONDS = 20.0


class Publishing:
    """Publishes to topic "t" until it is stopped.

    Attributes:
        acknowledged: the bodies that nsqd has answered with OK.
    """

    def __init__(self, server: NsqdServer) -> None:
        self.acknowledged: list[bytes] = []
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with V2Client(self._server) as line:
            while not self._stop.wait(PAUSE_SECONDS):
                body = b"%d" % len(self.acknowledged)
                assert line.ask(pub("t", body)) == OK
                self.acknowledged.append(body)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_copy_of_a_suspended_nsqd_works_elsewhere(tmp_path: Path) -> None:
    """A copy made under load, between kill -STOP and kill -CONT, is valid and complete.

    An nsqd started on the copy elsewhere is discovered, and assigns no id that the original has
    assigned since.
    """
    with spawn_nsqlookupd(tmp_path) as lookupd:
        with spawn_nsqd(tmp_path) as server:
            server.post("/topic/create?topic=t")
            server.post("/channel/create?topic=t&channel=c")
            publishing = Publishing(server)
            wait_for(lambda: len(publishing.acknowledged) > 100)
            os.kill(server.pid, signal.SIGSTOP)
            before = list(publishing.acknowledged)
            shutil.copytree(tmp_path / "nsqd", tmp_path / "copy")
            os.kill(server.pid, signal.SIGCONT)
            wait_for(lambda: len(publishing.acknowledged) > len(before) + 20)
            publishing.stop()
            given = ids(server)

        assert 0 == nsq_check([str(tmp_path / "copy")])
        with spawn_nsqd(tmp_path, lookupds=(lookupd,), name="copy") as restored:
            restored.post("/pub?topic=t", b"new")
            wait_for(lambda: lookupd.get_json("/lookup?topic=t")["producers"])
            found = ids(restored)

    assert before == list(found)[: len(before)]
    assert all(given[body] == found[body] for body in before)
    assert found[b"new"] not in given.values()


def ids(server: NsqdServer) -> dict[bytes, bytes]:
    """The ids of the channel's messages, by body; none is finished."""
    count = server.channel("t", "c")["depth"]
    with V2Client(server) as line:
        assert line.ask(b"SUB t c\n") == OK
        line.send(b"RDY %d\n" % count)
        return {message.body: message.id for message in line.messages(count)}


async def test_going_back_to_gos_nsqd(tmp_path: Path) -> None:
    """With Go's nsqd next to sparq's, a consumer empties sparq's and continues with Go's."""
    if why := GoNsqd.missing():
        pytest.skip(why)
    config = tmp_path / "nsqd.toml"  # it has keys that only sparq knows, too
    config.write_text('max_topics = 3\nhttp_token = "s"\nmsg_timeout = "90s"\n')
    bodies: Counter[bytes] = Counter()

    async def handle(message: Message) -> None:
        bodies[message.body] += 1

    with spawn_nsqlookupd(tmp_path) as lookupd, spawn_nsqd(tmp_path, lookupds=(lookupd,)) as ours:
        own = (f"--config={config}", f"--data-path={tmp_path}", "--broadcast-address=127.0.0.1")
        flags = (*own, f"--lookupd-tcp-address={lookupd.tcp}")
        with GoServer(go_path(), tmp_path, flags) as go:
            await asyncio.to_thread(start_first, go)
            for server in (ours, go):
                server.post("/topic/create?topic=back")
                server.post("/channel/create?topic=back&channel=c")
            async with Producer(ours.tcp) as producer:
                await producer.multi_publish("back", [b"%d" % n for n in range(500)])
            go.post("/pub?topic=back", b"there")
            options = {"max_in_flight": 100, "lookupd_poll_interval": 0.2}
            async with Consumer(
                "back", "c", lookupd_http_addresses=lookupd.http, handler=handle, **options
            ):
                await until(lambda: len(bodies) == 501, READY_SECONDS)

    assert {1} == set(bodies.values())
