"""Code that the tools share: client options, addresses, signals, exit status."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys

import pytest
import uvloop

from sparq.tools.commands import ToolError, UsageError
from sparq.tools.common import STOPPING, client_config, run


def test_client_options_override_the_tools_flags() -> None:
    """`key` is true, `key,` is empty, - means _, and the user agent starts with the tool."""
    given = ("snappy", "max-in-flight,7", "msg_timeout,1500", "hostname,", "auth_secret,a,b")

    config = client_config("tool", given, max_in_flight=200, max_attempts=0)

    assert (True, 7, 1.5, 0) == (
        config.snappy,
        config.max_in_flight,
        config.msg_timeout,
        config.max_attempts,
    )
    assert ("a,b", socket.gethostname()) == (config.auth_secret, config.hostname)
    assert config.user_agent.startswith("tool/1.3.0 sparq/")
    assert "mine" == client_config("tool", ["user_agent,mine"]).user_agent


def test_an_invalid_value_is_reported() -> None:
    """The error names the client option."""
    with pytest.raises(UsageError, match=r"max_in_flight must be from 0 to .*, not -1"):
        client_config("tool", (), max_in_flight=-1)
    with pytest.raises(UsageError, match="invalid option nope"):
        client_config("tool", ("nope",))


def test_a_loop_that_is_still_busy_keeps_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's loop may refuse to close, as after an answer over TLS: the work is done."""

    class Busy(uvloop.Loop):
        def close(self) -> None:
            super().close()
            raise OSError(errno.EBUSY, "Device or resource busy")

    async def work(_stop: asyncio.Event) -> int:
        return 7

    monkeypatch.setattr(uvloop, "new_event_loop", Busy)

    assert 7 == run("tool", work)


@pytest.mark.parametrize("error", [ToolError("no more"), UsageError("no more")])
def test_an_error_is_one_line_and_status_1(
    capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """A ToolError or UsageError is one line on stderr, and exit status 1."""

    async def work(stop: asyncio.Event) -> int:
        raise error

    assert 1 == run("tool", work)
    assert "tool: no more\n" == capsys.readouterr().err


def test_a_closed_output_is_status_1_without_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 and no message: the reader has closed the pipe on purpose."""

    async def work(stop: asyncio.Event) -> int:
        raise BrokenPipeError

    assert 1 == run("tool", work)
    assert "" == capsys.readouterr().err


def test_the_first_signal_stops_a_tool() -> None:
    """The tool ends its work and returns its exit status; SIGHUP is such a signal."""

    async def work(stop: asyncio.Event) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await stop.wait()
        return 7

    before = {number: signal.getsignal(number) for number in STOPPING}
    try:
        assert 7 == run("tool", work)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_an_ignored_sighup_does_not_stop_a_tool() -> None:
    """An ignored SIGHUP does not stop the tool, neither before nor after SIGTERM."""
    program = """
import asyncio, os, signal
from sparq.tools.common import run
signal.signal(signal.SIGHUP, signal.SIG_IGN)
async def work(stop):
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0.01)  # for what it must not do
    was_stopped = stop.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    os.kill(os.getpid(), signal.SIGHUP)
    return 1 if was_stopped else 7
raise SystemExit(run("tool", work))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)

    assert 7 == done.returncode


def test_a_second_signal_kills_a_tool() -> None:
    """A user can end a tool that is slow to stop.

    `timeout` sends each signal twice in immediate succession: that counts as one.
    """
    program = """
import asyncio, os, signal, sys
from sparq.tools import common
common.ONCE_SECONDS = float(sys.argv[1])
async def work(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()
    while not common.ONCE_SECONDS and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        await asyncio.sleep(0)  # until another one is meant
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.01)  # for what it must not do
    return 7
raise SystemExit(common.run("tool", work))
"""
    for seconds, status in (("0", -signal.SIGTERM), ("10", 7)):
        command = [sys.executable, "-c", program, seconds]
        done = subprocess.run(command, stderr=subprocess.PIPE, timeout=30, check=False)

        assert (status, b"") == (done.returncode, done.stderr)


def test_closed_descriptors_stay_closed() -> None:
    """Closed descriptors stay closed: no socket is used as standard input or output."""
    program = """
import asyncio, socket
from sparq.tools.commands import ToolError
from sparq.tools.common import run
from sparq.tools.terminal import Pipe
async def work(stop):
    sockets = socket.socketpair()
    for call in (Pipe(0).read(), Pipe(1).write(b"x")):
        try:
            await call
        except ToolError as error:
            print(error, file=open("/dev/stderr", "w"))
    return min(each.fileno() for each in sockets)
raise SystemExit(run("tool", work))
"""
    command = ["/bin/sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, program]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30, check=False)

    assert [
        "ERROR: failed to read standard input - Bad file descriptor",
        "ERROR: failed to write to standard output - Bad file descriptor",
    ] == done.stderr.splitlines()
    assert done.returncode > 2
