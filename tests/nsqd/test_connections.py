"""Many connections: the limit of open files, and those who flood it."""

import contextlib
import shutil
import socket
from pathlib import Path

import pytest

from sparq.daemon.files import OWN_MIN, UNLIMITED, for_connections
from sparq.protocol.commands import pub
from tests.servers import NsqdServer, spawn_nsqd

OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
LIMIT = 96
FLOOD = 300

needs_prlimit = pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")


def connect(server: NsqdServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.tcp_port), timeout=30)


def publishes(connection: socket.socket, magic: bytes = b"") -> bool:
    """Whether a publish over this connection is answered by OK; False when it was closed."""
    try:
        connection.sendall(magic + pub("t", b"x"))
        return connection.recv(len(OK), socket.MSG_WAITALL) == OK
    except ConnectionError:
        return False


@needs_prlimit
def test_a_flood_is_refused_and_hurts_nobody(tmp_path: Path) -> None:
    """Beyond the limit connections are closed at once; those within, HTTP and the logs go on."""
    prefix = ("prlimit", f"--nofile={LIMIT // 2}:{LIMIT}")
    with spawn_nsqd(tmp_path, prefix=prefix) as server, contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(server))
        assert publishes(first, b"  V2")
        flood = [stack.enter_context(connect(server)) for _ in range(FLOOD)]
        taken = [c for c in flood if publishes(c, b"  V2")]

        # One place may still be the probe's that asked whether the server has started.
        assert len(taken) in (for_connections(LIMIT) - 1, for_connections(LIMIT) - 2)
        assert publishes(first)
        assert (200, b"OK") == server.request("POST", "/pub?topic=new", b"x")
        assert 1 == server.log_text.count("refusing clients beyond")
        for connection in flood:
            connection.close()
        server.request("GET", "/ping")

        def is_taken() -> bool:
            with connect(server) as late:
                return publishes(late, b"  V2")

        assert any(is_taken() for _ in range(1000))


def test_some_files_are_kept_from_connections() -> None:
    """An eighth, and never less than the least; one connection there is always room for."""
    assert 17_500 == for_connections(20_000)
    assert 64 == for_connections(64 + OWN_MIN)
    assert 1 == for_connections(8)
    assert UNLIMITED == for_connections(-1)


@needs_prlimit
def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    """nsqd takes what the system gives without being asked."""
    with spawn_nsqd(tmp_path, prefix=("prlimit", "--nofile=256:512")) as server:
        limits = Path(f"/proc/{server.pid}/limits").read_text()

    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert ["512", "512"] == line.split()[3:5]
