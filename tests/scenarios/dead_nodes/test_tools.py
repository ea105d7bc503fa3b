"""The tools exit if an nsqd is down when they start, or wait for it with `--wait-for-nsqd`.

Go's tools exit, too. A connection that is lost later is made again. The first test has every tool,
the others one: what they show is the client's, which all tools share.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import free_port, spawn_nsqd

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
