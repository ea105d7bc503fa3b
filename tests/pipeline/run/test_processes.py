"""The cluster of a run: real processes, restarted if they die, and stopped when the run ends.

Further ones are the application, and the nsqadmin of `sparq up`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.cli import main
from sparq.pipeline.run import processes
from sparq.pipeline.run.folders import Folders, RunError
from sparq.pipeline.run.processes import App, LocalCluster, is_free, nsqadmin
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
        state = cluster.state()
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

    with pytest.raises(RunError, match=r"nsqd-2 ended .*nsqd-2\.log"):
        cluster.start()

    assert all(is_free(member.tcp_port) for member in cluster.members)


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The nsqlookupd of the console."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookup")) as server:
        yield server


def test_nsqadmin_acts_and_keeps_an_audit_log(
    tmp_path: Path, lookupd: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    """The nsqadmin of a run keeps its actions in its audit log, which `sparq admin audit` shows."""
    console = nsqadmin(tmp_path, tmp_path / "nsqadmin.log", lookupd.http)
    url = f"http://{console.http}/"
    console.start()
    try:
        console.wait_until_ready()
        request = urllib.request.Request(
            f"{url}api/topics",
            data=b'{"topic": "made"}',
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()
        assert "create_topic" in (tmp_path / "nsqadmin_audit.log").read_text()
        assert 0 == main(["admin", "audit", f"--nsqadmin-http-address={url}", "--json"])
        (entry,) = json.loads(capfd.readouterr().out)["entries"]
        assert ("create_topic", "made", "done") == (
            *(entry["action"], entry["topic"], entry["outcome"]),
        )
    finally:
        console.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


def test_a_daemon_uses_another_port_if_its_usual_one_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsqadmin uses its usual port if it is free, otherwise another one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "ADMIN_PORT", port)
        assert port != nsqadmin(tmp_path, tmp_path / "log", "a:1").http_port
    assert port == nsqadmin(tmp_path, tmp_path / "log", "a:1").http_port


def test_only_complete_files_of_the_application_are_read(tmp_path: Path) -> None:
    """A missing or incomplete status file gives an empty status."""
    folders = Folders(tmp_path)
    folders.run.mkdir()
    app = App(folders)
    assert {} == app.status()
    (folders.run / "app.json").write_text('{"pid": 1')
    assert {} == app.status()
    (folders.run / "app.json").write_text('{"pid": 1}')
    assert {"pid": 1} == app.status()
    app.finish()
    assert (folders.run / "finish").exists()


def test_a_mistake_is_the_last_sentence_before_the_application_was_up(tmp_path: Path) -> None:
    """The mistake is the last sentence since this start; none after the application was up."""
    folders = Folders(tmp_path)
    says = "import sys; print('sparq pipeline: ' + sys.argv[1], 'noise', sep=chr(10))"
    app = App(folders)
    for sentence in ("of an earlier start", "--master=x: unknown"):
        app.command = [sys.executable, "-c", says, sentence]
        app.start()
        wait_for(app.has_ended)
        assert sentence == app.mistake()

    folders.run.mkdir()
    (folders.run / "app.json").write_text(json.dumps({"pid": app.pid}))
    assert "" == app.mistake()
    app.command = [sys.executable, "-c", "print('noise')"]
    app.start()
    wait_for(app.has_ended)
    assert "" == app.mistake()
