"""Few modules are loaded before a daemon's ports are bound, and it accepts only what it answers.

The tests count modules instead of measuring time, so a busy machine does not affect them.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparq.protocol.commands import pub
from tests.support.servers import free_port
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

MODULES_MAX = 144
"""Python loads about 60, the command line, logging and sockets the rest; it was 730 before."""

HEAVY = (
    *("aiohttp", "asyncio", "argparse", "cramjam", "difflib", "importlib.metadata", "multidict"),
    *("numpy", "prometheus_client", "rich", "ssl", "tomllib", "uvloop", "xxhash", "yarl"),
)

AT_BIND = """
import json, socket, sys

bind = socket.socket.bind
def counted(self, where):
    bind(self, where)
    print(json.dumps(sorted(sys.modules)), flush=True)
socket.socket.bind = counted

from sparq.scripts import SCRIPT
sys.exit(SCRIPT(["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]))
"""


def loaded_when_bound(module: str, folder: Path) -> list[set[str]]:
    """Return the modules loaded when each of the two ports is bound."""
    program = AT_BIND.replace("SCRIPT", module.removeprefix("sparq."))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        found = [set(json.loads(process.stdout.readline())) for _ in range(2)]
        found = [modules - {"sitecustomize"} for modules in found]  # of Debian's Python
        process.send_signal(signal.SIGKILL)
    return found


@pytest.mark.parametrize("module", ["sparq.nsqd", "sparq.nsqlookupd"])
def test_both_ports_are_bound_before_anything_heavy_is_loaded(module: str, tmp_path: Path) -> None:
    """A taken port is reported before asyncio, numpy, HTTP and other heavy modules are loaded."""
    for modules in loaded_when_bound(module, tmp_path):
        assert modules.isdisjoint(HEAVY), modules.intersection(HEAVY)
        assert len(modules) <= MODULES_MAX, len(modules)


HELD = """
import sys, time
from pathlib import Path

class Late:
    @staticmethod
    def find_spec(name, path=None, target=None):
        while name == "MODULE" and not Path("go-on").exists():
            Path("held").touch()
            time.sleep(0.005)

sys.meta_path.insert(0, Late)

from sparq.scripts import nsqd
sys.exit(nsqd(sys.argv[1:]))
"""
"""An nsqd that loads a module only when a file exists."""


@pytest.mark.parametrize(("held", "serves_tcp"), [("numpy", False), ("aiohttp", True)])
def test_a_port_accepts_only_clients_that_it_answers(
    held: str, serves_tcp: bool, tmp_path: Path
) -> None:
    """While nsqd loads what a port needs, the port refuses clients; TCP does not wait for HTTP."""
    tcp, http = free_port(), free_port()
    (tmp_path / "late.py").write_text(HELD.replace("MODULE", held))
    command = [
        *(sys.executable, "late.py"),
        *(f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}"),
    ]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for((tmp_path / "held").exists)
            for port in (http,) if serves_tcp else (http, tcp):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), timeout=30)
            if serves_tcp:
                with connected(tcp) as publisher:
                    assert V2Client(publisher).ask(pub("t", b"x")) == OK
            (tmp_path / "go-on").touch()
            with connected(tcp) as publisher, connected(http) as asker:
                assert V2Client(publisher).ask(pub("t", b"x")) == OK
                asker.sendall(b"GET /ping HTTP/1.1\r\nHost: h\r\n\r\n")
                assert asker.recv(1000).startswith(b"HTTP/1.1 200 OK")
        finally:
            process.kill()


def connected(port: int) -> socket.socket:
    """Connect to a port that is about to open; retry for up to 30 s."""
    deadline = time.monotonic() + 30
    while True:
        try:
            found = socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        else:
            return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["sparq.nsqd", "sparq.nsqlookupd"])
def test_a_signal_during_the_start_ends_the_daemon_with_status_0(
    module: str, number: signal.Signals, tmp_path: Path
) -> None:
    """A signal immediately after a port is bound ends the daemon with status 0, no traceback."""
    program = AT_BIND.replace("SCRIPT", module.removeprefix("sparq."))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)

    assert (process.returncode, b"Traceback" in errors) == (0, False), errors
