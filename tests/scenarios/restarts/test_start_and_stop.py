"""Scenarios of NSQ's own tests: start, stop, restart, and registration with nsqlookupd."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparq.protocol.commands import pub, sub
from tests.nsqd.daemon import Consumer, start, stop
from tests.support.servers import (
    NsqdServer,
    Server,
    spawn_nsqd,
    spawn_nsqlookupd,
    start_first,
)
from tests.support.v2_client import V2Client, drain
from tests.support.waiting import until, until_seen, wait_for

COUNT = 300


@pytest.mark.behaviour("TestStartup", "TestUnixSocketStartup")
@pytest.mark.parametrize("where", ["tcp", "unix"])
async def test_a_restart_delivers_the_unfinished_messages(tmp_path: Path, where: str) -> None:
    """A restart delivers the unfinished half of the messages, once, and then nothing is left.

    Memory queue and files are small; over TCP and a unix socket.
    """
    address = "127.0.0.1:0" if where == "tcp" else str(tmp_path / "nsqd.sock")
    told: dict[str, Any] = {
        "tcp_address": address,
        "mem_queue_size": 100,
        "max_bytes_per_file": 10_240,
    }
    bodies = [b"%d" % number + b"x" * 100 for number in range(COUNT)]
    first = await start(tmp_path, **told)
    await first.post("/topic/create?topic=t")
    await first.post("/channel/create?topic=t&channel=c")
    for body in bodies:
        await first.post("/pub?topic=t", body)
    consumer = await Consumer.identified(first, sub("t", "c"))
    half = await consumer.messages(COUNT // 2)
    await consumer.close()
    await stop(first)

    second = await start(tmp_path, **told)
    assert [t["topic_name"] for t in (await second.stats())["topics"]] == ["t"]
    assert (await second.channel("t", "c"))["depth"] == COUNT - COUNT // 2
    consumer = await Consumer.identified(second, sub("t", "c"))
    rest = await consumer.messages(COUNT - COUNT // 2)
    # Messages that were in flight are redelivered among the others, in no order.
    assert half == bodies[: COUNT // 2]
    assert sorted(rest) == sorted(bodies[COUNT // 2 :])

    async def nothing_is_left() -> bool:
        channel = await second.channel("t", "c")
        counts = ("depth", "in_flight_count", "deferred_count")
        return [channel[count] for count in counts] == [0, 0, 0]

    await until(nothing_is_left)
    assert (await second.topic("t"))["depth"] == 0
    await consumer.close()
    await stop(second)


@pytest.mark.behaviour("TestCluster")
async def test_nsqlookupd_lists_topics_and_channels(tmp_path: Path) -> None:
    """nsqlookupd lists this nsqd for a topic and channel until the topic is deleted."""
    with spawn_nsqlookupd(tmp_path) as lookupd, spawn_nsqd(tmp_path, lookupds=(lookupd,)) as nsqd:
        nsqd.post("/topic/create?topic=t")
        nsqd.post("/channel/create?topic=t&channel=ch")

        def registered() -> list[str]:
            return list(lookupd.get_json("/debug"))

        await until_seen(lambda: registered() == ["channel:t:ch", "client::", "topic:t:"])
        debug = lookupd.get_json("/debug")
        for key in ("topic:t:", "channel:t:ch"):
            (node,) = debug[key]
            assert node["hostname"] == nsqd.get_json("/info")["hostname"]
            assert node["broadcast_address"] == "127.0.0.1"
            assert (node["tcp_port"], node["http_port"]) == (nsqd.tcp_port, nsqd.http_port)
            assert node["tombstoned"] is False
        assert looked_up(lookupd) == (["ch"], [nsqd.tcp_port])

        nsqd.post("/topic/delete?topic=t")
        await until_seen(lambda: looked_up(lookupd) == (["ch"], []))
        await until_seen(lambda: registered() == ["client::"])


def looked_up(lookupd: Server) -> tuple[list[str], list[int]]:
    """The channels of topic t, and the TCP ports of its nsqds."""
    found = lookupd.get_json("/lookup?topic=t")
    return found["channels"], [node["tcp_port"] for node in found["producers"]]


LINE = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (INFO|WARNING): \S.*")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nsqlookupd_gets_the_real_ports_of_port_0(tmp_path: Path, number: signal.Signals) -> None:
    """With port 0, nsqlookupd gets the real ports; after a signal nsqd exits with 0.

    nsqd is then removed from nsqlookupd, and each line of its log has NSQ's format.
    """
    free = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    own = ("--broadcast-address=127.0.0.1", f"--data-path={tmp_path}")
    with spawn_nsqlookupd(tmp_path) as lookupd:
        command = [sys.executable, "-m", "sparq.nsqd", *free, *own]
        command.append(f"--lookupd-tcp-address={lookupd.tcp}")
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as nsqd:
            (node,) = wait_for(lambda: lookupd.get_json("/nodes")["producers"])
            for port in (node["tcp_port"], node["http_port"]):
                socket.create_connection(("127.0.0.1", port), timeout=15).close()
            nsqd.send_signal(number)
            _, log = nsqd.communicate(timeout=30)

        assert nsqd.returncode == 0
        assert f"INFO: TCP: listening on 127.0.0.1:{node['tcp_port']}\n" in log
        assert f"INFO: HTTP: listening on 127.0.0.1:{node['http_port']}\n" in log
        assert [line for line in log.splitlines() if not LINE.fullmatch(line)] == []
        assert wait_for(lambda: lookupd.get_json("/nodes") == {"producers": []})


@pytest.mark.parametrize("place", ["turn", "timer", "thread"])
def test_an_exception_that_leaves_work_undone_ends_nsqd(tmp_path: Path, place: str) -> None:
    """An exception in a turn, a timer or a disk thread ends nsqd with status 1 and a log line.

    It does not go on answering `/ping` without being able to stop. Acknowledged messages are kept.
    """
    folder = tmp_path / "nsqd"
    folder.mkdir()
    flags = (f"--data-path={folder}", "--broadcast-address=127.0.0.1")
    prefix = ("env", f"PYTHONPATH={Path(__file__).parents[3]}", f"CRASH_IN={place}")
    with NsqdServer("tests.support.crashing_nsqd", folder, flags, prefix) as server:
        start_first(server)
        server.post("/pub?topic=t", b"x")
        with V2Client(server) as line:
            line.send(pub("boom", b"y") * 5)
            wait_for(server.has_ended)
        assert server.exit_status() == 1
        assert "FATAL: an internal error in " in server.log_text
        assert "AssertionError: boom" in server.log_text
    with spawn_nsqd(tmp_path) as server:
        assert drain(server, "t", "c") == [b"x"]
