"""A real nsqd whose system calls fail, or whose data path goes away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.protocol.commands import fin, pub, rdy, sub
from tests.support import strace
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.small_disk import OVERLAY, SmallDisk
from tests.support.v2_client import OK, V2Client, drain
from tests.support.waiting import wait_for

WHY_NOT = strace.missing()
MOVED = "the data path was moved, deleted or replaced"
REFUSED_SECONDS = 1.2
"""Longer than the time between two probes of the disk."""
REASONS = {
    "EIO": "input/output error",
    "ENOSPC": "no space left on device",
    "EDQUOT": "disk quota exceeded",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """An nsqd with the topic `t` and its channel `c`."""
    with spawn_nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        server.post("/topic/create?topic=t")
        server.post("/channel/create?topic=t&channel=c")
        yield server


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize("error", REASONS)
def test_ping_fails_while_syncs_fail(server: NsqdServer, error: str) -> None:
    """`/ping` fails as long as publishes are refused because syncs fail, whatever else works.

    It recovers when the disk does, even if nobody publishes. The log says it once.
    """
    reason, before = REASONS[error], server.log_text
    refusal = (1, f"E_PUB_FAILED PUB failed {reason}".encode())
    with V2Client(server) as line, V2Client(server) as consumer:
        assert consumer.ask(sub("t", "c")) == OK
        consumer.send(rdy(100))
        assert line.ask(pub("t", b"x")) == OK
        with strace.attached(server.pid, "fdatasync,fsync", error):
            deadline = time.monotonic() + REFUSED_SECONDS
            answers = set()
            while time.monotonic() < deadline:
                assert line.ask(pub("t", b"x")) == refusal
                assert line.ask(pub("memory#ephemeral", b"x")) == OK
                for message in consumer.messages_within(0.001):
                    consumer.send(fin(message.id))
                answers.add(server.request("GET", "/ping"))

            assert {status for status, _ in answers} == {500}
            assert all(body.startswith(f"NOK - {reason}".encode()) for _, body in answers)
        log = server.log_text.removeprefix(before)
        assert log.count("ERROR: publishing to t failed") == 1
        assert log.count("WARNING") <= 3
        wait_for(lambda: server.request("GET", "/ping") == (200, b"OK"))
        assert line.ask(pub("t", b"y")) == OK


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_data_path_that_is_moved_away_refuses_publishes(
    tmp_path: Path, *, is_replaced: bool
) -> None:
    """A data path that was renamed under a running nsqd loses no message, and `/ping` fails.

    Nothing is written to another folder that has taken its name. When it is back, nsqd continues.
    """
    with spawn_nsqd(tmp_path) as server, V2Client(server) as line:
        folder, aside = tmp_path / "nsqd", tmp_path / "aside"
        acknowledged: dict[str, list[bytes]] = {"old": [], "new": [], "newer": []}
        refusal = (1, f"E_PUB_FAILED PUB failed {MOVED}".encode())

        def publish(topic: str) -> bool:
            body = f"{topic} {len(acknowledged[topic])}".encode()
            answer = line.ask(pub(topic, body))
            assert answer in (OK, refusal)
            if answer == OK:
                acknowledged[topic].append(body)
            return answer == OK

        assert publish("old")
        folder.rename(aside)
        if is_replaced:
            folder.mkdir()
        publish("new")
        wait_for(lambda: server.request("GET", "/ping") == (500, f"NOK - {MOVED}".encode()))
        assert not publish("old")
        assert not publish("newer")
        assert server.request("GET", "/metrics")[0] == 200
        if is_replaced:
            assert list(folder.iterdir()) == []
            folder.rmdir()
        aside.rename(folder)
        wait_for(lambda: server.request("GET", "/ping") == (200, b"OK"))
        assert publish("old")
        assert publish("newer")
        server.restart()
        found = {
            topic: drain(server, topic, "c") for topic, bodies in acknowledged.items() if bodies
        }

    assert found == {topic: bodies for topic, bodies in acknowledged.items() if bodies}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_topic_in_the_lower_layer_of_an_overlay_can_be_deleted(tmp_path: Path) -> None:
    """A topic whose folder cannot be renamed, since an image contains it, is deleted for good."""
    with spawn_nsqd(tmp_path) as server:
        for topic in ("t", "u"):
            server.post(f"/pub?topic={topic}", b"x")
        assert server.terminate() == 0
    (tmp_path / "layers").mkdir()
    with (
        SmallDisk(tmp_path / "nsqd", str(tmp_path / "layers"), OVERLAY) as disk,
        spawn_nsqd(tmp_path, prefix=disk.prefix) as server,
    ):
        server.post("/topic/delete?topic=t")
        assert not (disk.seen / "topics" / "t-t").exists()
        server.post("/pub?topic=t", b"new")
        assert server.request("GET", "/ping") == (200, b"OK")
        server.restart()
        assert drain(server, "t", "c") == [b"new"]
        assert drain(server, "u", "c") == [b"x"]
