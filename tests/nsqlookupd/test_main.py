"""The program nsqlookupd as a process: start, stop, wrong flags, version."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.nsqlookupd.mistakes import HELLO, PEER
from tests.support.servers import spawn_nsqlookupd


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparq.nsqlookupd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_sigterm_ends_it_with_status_0(tmp_path: Path) -> None:
    """nsqlookupd listens, logs in NSQ's form, and exits with status 0 on SIGTERM.

    It does so with an nsqd connected, too, whose connection it closes.
    """
    with spawn_nsqlookupd(tmp_path, "--log-level=info") as server:
        assert server.request("GET", "/ping")[0] == 200
        host, _, port = server.tcp.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as peer:
            peer.sendall(b"  V1" + HELLO)
            assert b"tcp_port" in peer.recv(1024)
            (producer,) = server.get_json("/nodes")["producers"]
            assert PEER["broadcast_address"] == producer["broadcast_address"]
            assert server.terminate() == 0
            assert peer.recv(1024) == b""

    assert f"INFO: TCP: listening on {server.tcp}\n" in server.log_text
    assert server.log_text.startswith("[nsqlookupd] ")
    assert server.log_text.endswith("INFO: bye\n")
