"""The servers of the tests: their start, their end, and the reports of both."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparq.program.supervised import members_of
from tests.support import servers
from tests.support.servers import Server, spawn_nsqd
from tests.support.waiting import wait_for

IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def deaf_to_signals():
    print("deaf", flush=True)
    while True:
        time.sleep(1)
deaf_to_signals()
"""


class IgnoringSigterm(Server):
    """A program that ignores SIGTERM."""

    def program(self) -> tuple[str, ...]:
        """Its flags are not used."""
        return sys.executable, "-c", IGNORES_SIGTERM

    def answers(self) -> bool:
        return "deaf" in self.log_text


def test_a_server_that_does_not_end_shows_its_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure shows the stacks of its threads, and the process has been killed."""
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.2)
    deaf = IgnoringSigterm("sparq.nsqd", tmp_path, ())
    deaf.start()
    process = deaf.process

    with pytest.raises(AssertionError, match=r"(?s)did not end on SIGTERM.*deaf_to_signals"):
        deaf.terminate()

    assert process is not None
    assert process.poll() is not None


def test_a_forked_daemon_runs_like_its_program(tmp_path: Path) -> None:
    """A forked daemon has its folder, log, flags and exit status as with `python -m`."""
    with spawn_nsqd(tmp_path, "--log-level=debug") as nsqd:
        process = nsqd.process
        assert process is not None and process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0)
        shown = nsqd.request("GET", "/debug/pprof/cmdline")[1].decode().split("\0")
        assert [sys.executable, "-m", "sparq.nsqd"] == shown[:3]
        assert "--log-level=debug" in shown
        assert nsqd.folder.samefile(f"/proc/{nsqd.pid}/cwd")
        assert 0 == nsqd.terminate() == process.returncode
        assert "bye" in nsqd.log_text or "TCP: closing" in nsqd.log_text

        nsqd.start()
        process = nsqd.process
        assert process is not None
        process.kill()
        assert -signal.SIGKILL == process.wait(30) == process.poll()

    taken = Server("sparq.nsqd", tmp_path, (f"--data-path={tmp_path / 'none'}",))
    taken.launch()
    assert taken.process is not None
    assert 1 == taken.process.wait(30)
    assert "no such file" in taken.log_text


ORPHAN = """
import sys, time
from pathlib import Path
from tests.support import servers
from tests.support.forked import ForkServer
servers.fork_server = ForkServer()
print(servers.spawn_nsqd(Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


def test_forked_daemons_end_with_tests_that_are_killed(tmp_path: Path) -> None:
    """kill -9 of the process of the tests ends the forking process, which ends its daemons."""
    command = [sys.executable, "-c", ORPHAN, str(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        assert [pid] == members_of(pid)
        tests.kill()

    wait_for(lambda: not members_of(pid))
