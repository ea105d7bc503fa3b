"""The tools exit if an nsqd is down when they start, or wait for it with `--wait-for-nsqd`.

Go's tools exit, too. A connection that is lost later is made again. The first test has every tool,
the others one: what they show is the client's, which all tools share.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import NsqdServer, free_port, spawn_nsqd
from tests.support.waiting import wait_for

WORDS = {
    "nsq_tail": ("--topic=down",),
    "nsq_to_http": ("--topic=down", "--post=http://127.0.0.1:1"),
    "nsq_to_nsq": ("--topic=down", "--destination-nsqd-tcp-address=127.0.0.1:1"),
    "to_nsq": ("--topic=down",),
}
SOON_SECONDS = 15.0
"""Far less than the 30 s that a publish may take; most of it is the start of Python."""


def started(tool: str, *words: str) -> subprocess.Popen[bytes]:
    """Start the tool as a process, with one record on its standard input."""
    command = [sys.executable, "-m", "sparq.tools", tool, *WORDS[tool], *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    process.stdin.write(b"record\n")
    process.stdin.close()
    process.stdin = None
    return process


def exit_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit status, and the last line on standard error."""
    with process:
        try:
            _, said = process.communicate(timeout=SOON_SECONDS)
        finally:
            process.kill()
    return process.returncode, said.decode().splitlines()[-1]


@pytest.mark.parametrize("tool", WORDS)
def test_a_tool_exits_if_nsqd_is_down(tool: str) -> None:
    """Each tool exits immediately with status 1; its message has the address and a flag to wait."""
    address = f"127.0.0.1:{free_port()}"

    status, said = exit_of(started(tool, f"--nsqd-tcp-address={address}"))

    assert 1 == status
    assert (
        f"{tool}: no connection to nsqd {address}: connection refused"
        " (use --wait-for-nsqd=30s to wait for it)"
    ) == said


def test_a_tool_exits_if_one_of_several_nsqds_is_down(nsqd: NsqdServer) -> None:
    """One dead nsqd of several ends the tool: the messages of the others would look complete."""
    address = f"127.0.0.1:{free_port()}"
    words = (f"--nsqd-tcp-address={nsqd.tcp}", f"--nsqd-tcp-address={address}")

    status, said = exit_of(started("nsq_tail", *words))

    assert 1 == status
    assert f"no connection to nsqd {address}: " in said


def test_wait_for_nsqd_is_bounded() -> None:
    """When the time of `--wait-for-nsqd` is over, the tool exits with the same message."""
    address = f"127.0.0.1:{free_port()}"

    status, said = exit_of(
        started("nsq_tail", f"--nsqd-tcp-address={address}", "--wait-for-nsqd=300ms")
    )

    assert 1 == status
    assert f"no connection to nsqd {address} within 0.3 s: connection refused" in said


def test_a_tool_exits_if_the_port_is_http(nsqd: NsqdServer) -> None:
    """With an HTTP port the tool exits without waiting; its message has the right port."""
    words = (f"--nsqd-tcp-address={nsqd.http}", "--wait-for-nsqd=1m")

    status, said = exit_of(started("nsq_tail", *words))

    assert 1 == status
    assert (
        f"nsq_tail: no connection to nsqd {nsqd.http}: it speaks HTTP: use nsqd's TCP port"
        " (4150 by default), or lookupd-http-address for an nsqlookupd"
    ) == said


def test_wait_for_nsqd_waits_for_a_later_start(tmp_path: Path) -> None:
    """With `--wait-for-nsqd`, a tool works with an nsqd that starts later."""
    server = spawn_nsqd(tmp_path)
    server.terminate()
    where = (f"--nsqd-tcp-address={server.tcp}", "--wait-for-nsqd=1m")
    with server:
        publishing = started("to_nsq", *where)
        printing = started("nsq_tail", *where, "--n=1", "--channel=printed")
        assert printing.stderr is not None
        line = printing.stderr.readline()
        assert b"connection refused" in line
        server.start()

        with publishing, printing:
            try:
                assert 0 == publishing.wait(SOON_SECONDS)
                assert b"record\n" == printing.communicate(timeout=SOON_SECONDS)[0]
            finally:
                publishing.kill()
                printing.kill()
        assert 0 == printing.returncode


def test_a_connection_lost_later_is_reconnected(tmp_path: Path) -> None:
    """The flag applies to the start only: a connection lost later is always made again."""
    with spawn_nsqd(tmp_path) as server:
        printing = started("nsq_tail", f"--nsqd-tcp-address={server.tcp}", "--channel=kept")
        with printing:
            try:
                wait_for(lambda: server.channel("down", "kept").get("clients"))
                server.restart()
                wait_for(lambda: server.channel("down", "kept").get("clients"))
                server.post("/pub?topic=down", b"later")
                assert printing.stdout is not None
                assert b"later\n" == printing.stdout.readline()
            finally:
                printing.kill()
