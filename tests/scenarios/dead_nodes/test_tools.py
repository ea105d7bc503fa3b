"""Tools that are given an nsqd that is down: they say so and end, or wait if told to.

So Go's tools do. What is lost after a first connection is another matter: that is connected again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparq.tools import nsq_tail, nsq_to_file, nsq_to_http, nsq_to_nsq, to_nsq
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
    """The tool as a process of its own, with one record to read."""
    command = [sys.executable, "-m", "sparq.tools", tool, *WORDS[tool], *words]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    process.stdin.write(b"record\n")
    process.stdin.close()
    process.stdin = None
    return process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit status, and the last thing it said."""
    with process:
        try:
            _, said = process.communicate(timeout=SOON_SECONDS)
        finally:
            process.kill()
    return process.returncode, said.decode().splitlines()[-1]


@pytest.mark.parametrize("tool", WORDS)
def test_an_nsqd_that_is_down_ends_it(tool: str) -> None:
    """At once, with status 1 and a sentence that names the address and the way to wait."""
    address = f"127.0.0.1:{free_port()}"

    status, said = ended(started(tool, f"--nsqd-tcp-address={address}"))

    assert 1 == status
    assert (
        f"{tool}: no connection to nsqd {address}: connection refused"
        " (use --wait-for-nsqd=30s to wait for it)"
    ) == said


@pytest.mark.parametrize("tool", WORDS)
def test_one_of_several_ends_it_too(tool: str, nsqd: NsqdServer) -> None:
    """What the others have would look like all there is."""
    address = f"127.0.0.1:{free_port()}"
    words = (f"--nsqd-tcp-address={nsqd.tcp}", f"--nsqd-tcp-address={address}")

    status, said = ended(started(tool, *words))

    assert 1 == status
    assert f"no connection to nsqd {address}: " in said


@pytest.mark.parametrize("tool", WORDS)
def test_the_wait_is_bounded(tool: str) -> None:
    """It ends with the same sentence when the time is over."""
    address = f"127.0.0.1:{free_port()}"

    status, said = ended(started(tool, f"--nsqd-tcp-address={address}", "--wait-for-nsqd=300ms"))

    assert 1 == status
    assert f"no connection to nsqd {address} within 0.3 s: connection refused" in said


@pytest.mark.parametrize("tool", WORDS)
def test_a_port_that_speaks_http_ends_it(tool: str, nsqd: NsqdServer) -> None:
    """Waiting would not help: the sentence says what it speaks and which port is wanted."""
    words = (f"--nsqd-tcp-address={nsqd.http}", "--wait-for-nsqd=1m")

    status, said = ended(started(tool, *words))

    assert 1 == status
    assert (
        f"{tool}: no connection to nsqd {nsqd.http}: it speaks HTTP: use nsqd's TCP port"
        " (4150 by default), or lookupd-http-address for an nsqlookupd"
    ) == said


def test_it_waits_for_an_nsqd_that_comes(tmp_path: Path) -> None:
    """Told to wait, a tool works with an nsqd that starts later: what is published is printed."""
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


def test_one_that_goes_away_later_is_waited_for(tmp_path: Path) -> None:
    """The flag is about the start: a lost connection is made again, for however long it takes."""
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


def test_the_flag_is_the_same_in_all_of_them() -> None:
    """nsq_to_file has none: like Go's it does not end, and it waits for as long as it takes."""
    for tool in (nsq_tail, nsq_to_http, nsq_to_nsq, to_nsq):
        assert 0 == tool.Options().wait_for_nsqd_ns
    assert not hasattr(nsq_to_file.Options(), "wait_for_nsqd_ns")
