"""The cluster of a run: real processes, restarted if they die, and stopped when the run ends.

One of them is the console, the nsqadmin of `sparq up`; its failure does not stop the pipeline.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.cli import main
from sparq.pipeline.run import processes as module
from sparq.pipeline.run.processes import (
    ADMIN_STARTS_MAX,
    ClusterError,
    Console,
    LocalCluster,
    is_free,
)
from sparq.pipeline.run.publishing import publish
from tests.support.servers import Server, spawn_nsqlookupd
from tests.support.waiting import wait_for


def test_a_killed_nsqd_is_restarted_and_all_members_end(tmp_path: Path) -> None:
    """A killed nsqd comes back on its ports with its data; at the end nothing is left running."""
    cluster = LocalCluster(tmp_path / "run", tmp_path / "data")
    cluster.start()
    try:
        first = cluster.nsqds[0]
        asyncio.run(
            publish(
                [b"click"] * 10,
                [first.tcp],
                "clicks",
                acknowledged=tmp_path / "acknowledged",
                resent=tmp_path / "resent",
            )
        )
        assert first.process is not None
        first.request("POST", "/channel/create?topic=clicks&channel=archive")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(10)

        assert cluster.restart_dead() == ["nsqd-1"]
        assert cluster.depths("clicks") == {"nsqd-1": {"archive": 10}}
        state = json.loads((tmp_path / "run" / "cluster.json").read_text())
        assert state["nsqd-1"]["starts"] == 2
        second = cluster.nsqds[1].process
        assert second is not None
        assert state["nsqd-2"]["pid"] == second.pid
    finally:
        cluster.stop()
    assert all(is_free(member.tcp_port) for member in cluster.members)


def test_the_error_names_a_member_that_cannot_start(tmp_path: Path) -> None:
    """The error names the member and its log; members that had started are stopped."""
    cluster = LocalCluster(tmp_path / "run", tmp_path / "data")
    cluster.nsqds[1].command.append("--no-such-flag")

    with pytest.raises(ClusterError, match=r"nsqd-2 ended .*nsqd-2\.log"):
        cluster.start()

    assert all(is_free(member.tcp_port) for member in cluster.members)


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The nsqlookupd of the console."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookup")) as server:
        yield server


def test_a_killed_console_is_restarted_at_its_address(
    tmp_path: Path, lookupd: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """The console answers at its URL, and again after it was killed, until `stop`.

    Its actions are in its audit log, and `sparq admin audit` shows them.
    """
    console = Console(tmp_path, tmp_path / "nsqadmin.log", lookupd.http)
    console.start()
    try:
        assert console.is_ready(30.0), console.log.read_text()
        with urllib.request.urlopen(f"{console.url}api/topics") as answer:
            assert "topics" in json.load(answer)
        assert "" == console.watch()
        assert console.process is not None
        console.process.send_signal(signal.SIGKILL)
        console.process.wait(10)
        assert "nsqadmin ended and was restarted" in console.watch()
        assert console.is_ready(30.0)
        assert (2, f"127.0.0.1:{console.http_port}") == (
            *(console.state()["starts"], console.state()["http"]),
        )
        request = urllib.request.Request(
            f"{console.url}api/topics",
            data=b'{"topic": "made"}',
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()
        assert "create_topic" in console.audit_log.read_text()
        assert 0 == main(["admin", "audit", f"--nsqadmin-http-address={console.url}", "--json"])
        (entry,) = json.loads(capfd.readouterr().out)["entries"]
        assert ("create_topic", "made", "done") == (
            *(entry["action"], entry["topic"], entry["outcome"]),
        )
    finally:
        console.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(console.url)


def test_a_console_that_cannot_start_is_reported_and_not_restarted(tmp_path: Path) -> None:
    """After ADMIN_STARTS_MAX starts the console is not restarted; nothing is raised."""
    console = Console(tmp_path, tmp_path / "nsqadmin.log", "127.0.0.1:1", "no.such.module")
    console.start()
    assert not console.is_ready(30.0)
    messages = []
    for _ in range(ADMIN_STARTS_MAX):
        wait_for(console.has_ended)
        messages.append(console.watch())

    assert ADMIN_STARTS_MAX == console.starts
    assert all("was restarted" in one for one in messages[:-1])
    assert f"will not be restarted; see its log: {console.log}" in messages[-1]
    assert "" == console.watch()
    console.stop()


def test_the_console_uses_another_port_if_nsqadmins_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console uses nsqadmin's usual port if it is free, otherwise another one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(module, "ADMIN_PORT", port)
        assert port != Console(tmp_path, tmp_path / "log", "a:1").http_port
    assert port == Console(tmp_path, tmp_path / "log", "a:1").http_port
