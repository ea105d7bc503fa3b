"""A daemon ends with status 0 on a signal, and with 1 if it cannot start."""

import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

PROGRAM = """
    import asyncio, logging, sys
    from sparq.program import lifecycle
    from sparq.program import logging as log_lines

    async def serve(stop):
        if {fails}:
            raise lifecycle.StartError("listen (x) failed - no")
        print(type(asyncio.get_running_loop()).__module__, flush=True)
        if {reloads}:
            lifecycle.on_hangup(lambda: print("reloaded", flush=True))
            print("ready", flush=True)
        await lifecycle.until_stopped(stop)
        print("stopped", flush=True)

    log_lines.set_up("[p] ", logging.INFO)
    sys.exit(lifecycle.run("prog", serve))
"""


def start(*, fails: bool = False, reloads: bool = False) -> subprocess.Popen[str]:
    code = textwrap.dedent(PROGRAM).format(fails=fails, reloads=reloads)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended_by(*numbers: signal.Signals) -> tuple[str, str, int]:
    """Send signals to a daemon that runs, on uvloop; return its output, stderr and status."""
    with start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "uvloop\n"
        for number in numbers:
            process.send_signal(number)
        return *process.communicate(), process.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_daemon_with_status_0(number: signal.Signals) -> None:
    """A signal lets the daemon stop in order, with exit status 0."""
    assert ("stopped\n", "", 0) == ended_by(number)


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_hears_when_a_daemon_is_ready_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_abstract: bool
) -> None:
    """READY=1 once the daemon listens and STOPPING=1 at the signal, at a path or an @name."""
    name = f"@{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(10)
        manager.bind(name.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with start() as process:
            ready = manager.recv(100)
            process.send_signal(signal.SIGTERM)
            process.communicate()
            said = (ready, manager.recv(100), process.returncode)

    assert (b"READY=1", b"STOPPING=1", 0) == said


def test_a_service_manager_that_has_gone_does_not_end_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that nobody reads changes nothing."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert ("stopped\n", "", 0) == ended_by(signal.SIGTERM)


def test_sighup_does_not_end_a_daemon() -> None:
    """SIGHUP does not end a daemon: it is ignored, or each one calls the ``on_hangup`` function."""
    assert ("stopped\n", "", 0) == ended_by(signal.SIGHUP, signal.SIGTERM)

    with start(reloads=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["uvloop\n", "ready\n"]
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "reloaded\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert (out, process.returncode) == ("stopped\n", 0)


def test_a_failed_start_is_fatal() -> None:
    """A failed start is logged as FATAL in NSQ's words, with exit status 1."""
    with start(fails=True) as process:
        out, err = process.communicate()

    assert (out, process.returncode) == ("", 1)
    assert err.endswith("FATAL: failed to instantiate prog - listen (x) failed - no\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_further_signals_do_not_change_the_status(number: signal.Signals) -> None:
    """Signals every millisecond until the process has ended do not change status 0."""
    with start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "uvloop\n"
        while process.poll() is None:
            process.send_signal(number)
            time.sleep(0.001)
        out = process.stdout.read()

    assert (out, process.returncode) == ("stopped\n", 0)
