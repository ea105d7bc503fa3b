"""Supervised processes: they are started, watched, restarted, and ended with their children."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.program import supervised
from sparq.program.supervised import SupervisedDaemon, SupervisedProcess, members_of, send
from tests.support.waiting import wait_for

CHILD = "import os, signal, time; os.setpgid(0, 0); signal.signal(15, signal.SIG_IGN); "
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", {CHILD!r} + "print('ready', flush=True); time.sleep(600)"]
)
child.wait()
"""
SERVER = """
import http.server, sys
class Ping(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ping" else 404)
        self.end_headers()
        self.wfile.write(self.path.encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ping).serve_forever()
"""


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[SupervisedProcess]:
    """A program with a child in another process group that ignores SIGTERM."""
    program = SupervisedProcess("family", python(FAMILY), tmp_path / "log")
    program.start()
    try:
        wait_for(lambda: "ready" in program.log.read_text())
        yield program
    finally:
        program.kill()


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_all_processes_of_the_session_end(family: SupervisedProcess, way: str) -> None:
    """A child is ended although it has its own process group and ignores SIGTERM."""
    pid = family.pid
    assert 2 == len(members_of(pid))

    status = family.stop() if way == "stop" else family.kill()

    assert -(signal.SIGTERM if way == "stop" else signal.SIGKILL) == status
    assert [] == members_of(pid)
    assert (0, None, False) == (family.pid, family.exit_status(), family.has_ended())


def test_a_child_that_outlives_the_first_process_is_ended(family: SupervisedProcess) -> None:
    """`kill` also ends processes of a session whose first process has ended."""
    pid = family.pid
    os.kill(pid, signal.SIGKILL)
    wait_for(family.has_ended)
    assert 1 == len(members_of(pid))

    assert -signal.SIGKILL == family.kill()
    assert [] == members_of(pid)


def test_sigkill_follows_sigterm_after_the_time_limit(tmp_path: Path) -> None:
    """A process that ignores SIGTERM is killed."""
    program = SupervisedProcess(
        "deaf",
        python("import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(600)"),
        tmp_path / "log",
        environment={"PYTHONUNBUFFERED": "1"},
    )
    program.start()
    wait_for(program.log.read_text)

    assert -signal.SIGKILL == program.stop(0.1)


def test_it_starts_again_after_its_end(tmp_path: Path) -> None:
    """Starts are counted, output is appended to the log, folder and environment are as given."""
    code = "import os; print(os.getcwd(), os.environ['NAME'])"
    variables = {"NAME": "x"}
    program = SupervisedProcess(
        "print", python(code), tmp_path / "log", environment=variables, folder=tmp_path
    )
    for name in ("x", "y"):
        variables["NAME"] = name
        program.start()
        wait_for(program.has_ended)

    assert (2, 0) == (program.starts, program.exit_status())
    assert f"{tmp_path} x\n{tmp_path} y\n" == program.log.read_text()


def test_waiting_ends_with_the_process(tmp_path: Path) -> None:
    """A condition is not awaited after the process has ended, or longer than allowed."""
    program = SupervisedProcess("short", python("pass"), tmp_path / "log")
    program.start()
    assert not program.wait_until(lambda: False, 60)
    assert program.has_ended()

    assert not SupervisedProcess("none", [], tmp_path / "log").wait_until(lambda: False, 0.05)


def test_a_process_that_survives_sigkill_is_named(
    family: SupervisedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kill` raises an error with the process ids."""
    pid = family.pid
    with monkeypatch.context() as patch:
        patch.setattr(supervised, "KILL_SECONDS", 0.05)
        patch.setattr(supervised, "members_of", lambda session: [session])
        with pytest.raises(TimeoutError, match=rf"family: processes \[{pid}\] still run"):
            family.kill()
    assert pid == family.pid


def test_only_processes_of_the_session_are_listed(family: SupervisedProcess) -> None:
    """Ended processes are left out; session 0 has none.

    0 is also what getsid(0) returns in a container whose session began outside it.
    """
    child = subprocess.Popen(python("pass"), start_new_session=True)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert [] == members_of(child.pid)
    child.wait()

    assert [] == members_of(0)
    members = members_of(family.pid)
    assert family.pid in members
    assert os.getpid() not in members
    send([child.pid], signal.SIGTERM)


def test_without_proc_the_process_group_is_ended(
    family: SupervisedProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On macOS there is no /proc."""
    (child,) = (pid for pid in members_of(family.pid) if pid != family.pid)
    with monkeypatch.context() as patch:
        patch.setattr(supervised, "PROC", tmp_path / "none")
        assert -signal.SIGKILL == family.kill()
    os.kill(child, signal.SIGKILL)


def test_a_daemon_is_ready_when_it_answers(tmp_path: Path) -> None:
    """It is asked for /ping until it answers with 200; other requests go to the same port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    daemon = SupervisedDaemon("pinged", python(SERVER, str(port)), tmp_path / "log", port)
    assert f"127.0.0.1:{port}" == daemon.http
    assert not daemon.answers()
    with pytest.raises(OSError, match="refused"):
        daemon.request("GET", "/ping")
    daemon.start()
    try:
        assert daemon.is_ready(30)
        assert (404, b"/other") == daemon.request("GET", "/other")
        assert (200, b"body") == daemon.request("POST", "/pub", b"body")
    finally:
        daemon.stop()
    assert not daemon.answers()


def test_a_daemon_that_ends_is_not_ready(tmp_path: Path) -> None:
    """The time limit is not waited for."""
    daemon = SupervisedDaemon("gone", python("pass"), tmp_path / "log", 1)
    daemon.start()

    assert not daemon.is_ready(60)
