"""An nsqd process: the lock on its data path, a stop under load, and state after a restart.

P1, P3, P4 and P15 of GUARANTEES.md, with real processes: neither SIGTERM nor kill -9 loses data.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparq.protocol.commands import dpub, mpub, pub, rdy, sub
from tests.support.servers import NsqdServer, free_port, spawn_nsqd
from tests.support.v2_client import OK, Message, V2Client, drain, fin_each
from tests.support.waiting import wait_for

STOP_SECONDS = 2.0
CLOSE_WAIT = (0, b"CLOSE_WAIT")


class BusyPublisher:
    """A publisher that publishes as fast as nsqd answers, until nsqd disconnects."""

    def __init__(self, server: NsqdServer, name: bytes) -> None:
        self.acknowledged: list[bytes] = []
        self.unknown: list[bytes] = []
        self._server = server
        self._name = name
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            with V2Client(self._server) as line:
                while True:
                    self.unknown = [b"%s-%d-%d" % (self._name, number, at) for at in range(5)]
                    assert line.ask(mpub("t", self.unknown)) == OK
                    self.acknowledged += self.unknown
                    number += 1
        except ConnectionError:
            return

    def end(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


class BusyConsumer:
    """A consumer that finishes what it gets, until nsqd disconnects."""

    def __init__(self, server: NsqdServer) -> None:
        self.seen: list[bytes] = []
        self._server = server
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with V2Client(self._server) as line:
                assert line.ask(sub("t", "c")) == OK
                line.send(rdy(200))
                while True:
                    found = line.messages_within(5)
                    self.seen += [message.body for message in found]
                    line.send(fin_each(found))
        except ConnectionError:
            return

    def end(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.mark.behaviour("diskqueue.TestDiskQueueTorture")
def test_a_stop_under_load_is_quick_and_loses_nothing(tmp_path: Path) -> None:
    """SIGTERM under load: nsqd exits with status 0 within 2 s.

    Acknowledged messages are delivered before or after the stop, others only if they were sent.
    """
    with spawn_nsqd(tmp_path) as server:
        server.post("/topic/create?topic=t")
        server.post("/channel/create?topic=t&channel=c")
        loads = [BusyPublisher(server, name) for name in (b"a", b"b", b"c")]
        eater = BusyConsumer(server)
        wait_for(lambda: min(len(load.acknowledged) for load in loads) >= 500)
        wait_for(lambda: len(eater.seen) >= 500)

        began = time.monotonic()
        assert server.terminate() == 0
        seconds = time.monotonic() - began

        for load in loads:
            load.end()
        eater.end()
        assert seconds <= STOP_SECONDS
        assert "Traceback" not in server.log_text
        assert server.log_text.rstrip().endswith("NSQ: bye")
        server.start()
        rest = drain(server, "t", "c")
        acknowledged = {body for load in loads for body in load.acknowledged}
        attempted = acknowledged.union(*(load.unknown for load in loads))
        assert acknowledged - set(eater.seen) - set(rest) == set()
        assert set(eater.seen) | set(rest) <= attempted
        assert max(Counter(rest).values(), default=1) == 1
        # Delivered again: at most those in flight at the stop, or whose FINs were no longer read.
        assert len(set(eater.seen) & set(rest)) <= 400


def test_a_second_nsqd_on_a_data_path_is_refused(tmp_path: Path) -> None:
    """Two nsqds would damage a data path: the second exits with 1 and NSQ's error message."""
    with spawn_nsqd(tmp_path) as server:
        ports = f"--tcp-address=127.0.0.1:{free_port()}", "--http-address=127.0.0.1:0"
        command = [sys.executable, "-m", "sparq.nsqd", f"--data-path={server.folder}", *ports]

        second = subprocess.run(command, capture_output=True, timeout=30, check=False)

        words = (
            f"failed to lock data-path: cannot flock directory {server.folder} - "
            "resource temporarily unavailable (possibly in use by another instance of nsqd)"
        )
        assert second.returncode == 1
        assert words in second.stderr.decode() + second.stdout.decode()
        server.post("/pub?topic=t", b"x")
        server.restart()  # a lock that outlived its process would keep it from starting


@pytest.fixture
def filled_nsqd(tmp_path: Path) -> Iterator[tuple[NsqdServer, int]]:
    """An nsqd with topics, channels, pauses and messages; a delay (ms) longer than a restart."""
    began = time.monotonic()
    with spawn_nsqd(tmp_path, "--msg-timeout=10m") as server:
        start_seconds = time.monotonic() - began
        for topic in ("t", "stopped", "bare", "gone"):
            server.post(f"/topic/create?topic={topic}")
        for topic, channel in (("t", "c"), ("t", "still"), ("t", "old"), ("stopped", "c")):
            server.post(f"/channel/create?topic={topic}&channel={channel}")
        server.post("/topic/pause?topic=stopped")
        server.post("/channel/pause?topic=t&channel=still")
        server.post("/topic/delete?topic=gone")
        server.post("/channel/delete?topic=t&channel=old")
        for topic in ("stopped", "bare"):
            server.post(f"/mpub?topic={topic}", b"\n".join(b"%d" % n for n in range(7)))
        yield server, int(1000 + 3000 * start_seconds)


def depths_and_pauses(server: NsqdServer) -> dict[str, Any]:
    """Depths, pauses and deferred counts of topics and channels, from /stats."""
    return {
        topic["topic_name"]: (
            topic["depth"],
            topic["paused"],
            {
                channel["channel_name"]: (
                    channel["depth"],
                    channel["deferred_count"],
                    channel["paused"],
                )
                for channel in topic["channels"]
            },
        )
        for topic in server.get_json("/stats?format=json")["topics"]
    }


def by_body(messages: list[Message]) -> dict[bytes, int]:
    return {message.body: message.attempts for message in messages}


@pytest.mark.behaviour("TestPauseMetadata")
@pytest.mark.parametrize("gracefully", [True, False], ids=["SIGTERM", "kill -9"])
def test_a_restart_keeps_the_state(filled_nsqd: tuple[NsqdServer, int], gracefully: bool) -> None:
    """A clean stop and kill -9 keep the same state.

    Topics, channels, pauses, depths; finished, requeued and deferred messages with their due
    times and attempts.
    """
    server, delay_ms = filled_nsqd
    with V2Client(server) as line, V2Client(server) as publisher:
        assert publisher.ask(mpub("t", [b"finished", b"open", b"again", b"later"])) == OK
        assert line.ask(sub("t", "c")) == OK
        line.send(rdy(4))
        finished, _, again, later = line.messages(4)
        line.send(fin_each([finished]) + b"REQ %s 0\n" % again.id)
        (again,) = line.messages(1)
        assert (again.body, again.attempts) == (b"again", 2)
        line.send(rdy(0))
        due = time.time() + delay_ms / 1000
        line.send(b"REQ %s %d\n" % (later.id, delay_ms))
        assert publisher.ask(dpub("t", delay_ms, b"deferred")) == OK
        assert publisher.ask(pub("t", b"last")) == OK
        assert line.ask(b"CLS\n") == CLOSE_WAIT

    server.restart(gracefully=gracefully)

    assert time.time() < due, "the start took longer than the delay: nothing is proven"
    assert depths_and_pauses(server) == {
        "bare": (7, False, {}),
        "stopped": (7, True, {"c": (0, 0, False)}),
        "t": (0, False, {"c": (3, 2, False), "still": (5, 1, True)}),
    }
    with V2Client(server) as line:
        assert line.ask(sub("t", "c")) == OK
        line.send(rdy(10))
        at_once = line.messages(3)
        assert by_body(at_once) == {b"open": 2, b"again": 3, b"last": 1}
        # On a slow machine the delay is longer than the client's usual timeout.
        delayed = line.messages_within(delay_ms / 1000 + 15)
        delayed += line.messages(2 - len(delayed))
        assert due - 0.01 <= time.time() <= due + 2
        assert by_body(delayed) == {b"later": 2, b"deferred": 1}
        line.send(fin_each([*at_once, *delayed]))
        assert line.ask(b"CLS\n") == CLOSE_WAIT
    server.post("/topic/unpause?topic=stopped")
    server.post("/channel/unpause?topic=t&channel=still")
    assert sorted(drain(server, "stopped", "c")) == [b"%d" % n for n in range(7)]
    assert len(drain(server, "t", "still")) == 6
