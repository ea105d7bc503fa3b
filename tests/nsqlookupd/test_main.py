"""The program nsqlookupd as a process: start, stop, wrong flags, version."""

import re
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


def test_a_taken_port_is_fatal() -> None:
    """A port that another program listens on is logged as FATAL, with exit status 1."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        for arguments in (
            (f"--tcp-address={address}", "--http-address=127.0.0.1:0"),
            ("--tcp-address=127.0.0.1:0", f"--http-address={address}"),
        ):
            taken = run(*arguments)

            assert taken.returncode == 1
            assert taken.stderr.endswith(
                "FATAL: failed to instantiate nsqlookupd - "
                f"listen ({address}) failed - address already in use\n"
            )


def test_an_address_of_another_machine_is_fatal() -> None:
    """An address that this machine does not have is logged as FATAL, with exit status 1."""
    foreign = run("--tcp-address=127.0.0.1:0", "--http-address=203.0.113.1:1")

    assert foreign.returncode == 1
    assert foreign.stderr.endswith(
        "FATAL: failed to instantiate nsqlookupd - "
        "listen (203.0.113.1:1) failed - cannot assign requested address\n"
    )


def test_a_wrong_flag_ends_with_1_and_one_line() -> None:
    """A wrong flag value ends with status 1 and one line that names the flag and the remedy."""
    bad = run("-tombstone-lifetime", "45")

    assert bad.returncode == 1
    assert bad.stderr.endswith("FATAL: --tombstone-lifetime=45: write a unit: 45s or 45ms\n")
    assert bad.stderr.count("\n") == 1


def test_the_version_is_printed() -> None:
    """`-version` prints one line with NSQ's version, then sparq's, and exits."""
    line = r"nsqlookupd v1\.3\.0 \(built w/python3\.\d+\.\d+\) sparq [0-9.]+\S*\n"
    assert re.fullmatch(line, run("-version").stdout)
