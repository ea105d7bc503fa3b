"""A daemon ends with status 0 on a signal, and with 1 if it cannot start."""

import signal
import subprocess
import sys
import textwrap
import time

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
        await stop.wait()
        print("stopped", flush=True)

    log_lines.set_up("[p] ", logging.INFO)
    sys.exit(lifecycle.run("prog", serve))
"""


def start(*, fails: bool = False, reloads: bool = False) -> subprocess.Popen[str]:
    code = textwrap.dedent(PROGRAM).format(fails=fails, reloads=reloads)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_daemon_with_status_0(number: signal.Signals) -> None:
    """A signal lets the daemon stop in order, on uvloop, with exit status 0."""
    with start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "uvloop\n"
        process.send_signal(number)
        out, err = process.communicate()

    assert (out, err, process.returncode) == ("stopped\n", "", 0)


def test_sighup_does_not_end_a_daemon() -> None:
    """SIGHUP does not end a daemon: it is ignored, or each one calls the ``on_hangup`` function."""
    with start() as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "uvloop\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert (out, process.returncode) == ("stopped\n", 0)

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
