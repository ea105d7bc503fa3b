"""Tests of the limit of open files, and of floods of connections."""

import contextlib
import shutil
import socket
from pathlib import Path

import pytest

from sparq.daemon.files import shares
from sparq.protocol.commands import pub
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import MAGIC, OK, V2Client

LIMIT = 96
FLOOD = 300

needs_prlimit = pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")


def connect(server: NsqdServer) -> V2Client:
    return V2Client(server, b"", seconds=30)


def publishes(client: V2Client, magic: bytes = b"") -> bool:
    """Whether a publish on this connection is answered with OK; False if it was closed."""
    try:
        return client.ask(magic + pub("t", b"x")) == OK
    except ConnectionError:
        return False


def connect_http(server: NsqdServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=30)


def is_answered(connection: socket.socket) -> bool:
    """Whether a request on this connection is answered; False if it was closed."""
    try:
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: nsqd\r\n\r\n")
        return connection.recv(1 << 12).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def is_served(server: NsqdServer) -> bool:
    with connect_http(server) as connection:
        return is_answered(connection)


@needs_prlimit
def test_http_connections_beyond_the_limit_are_closed_at_once(tmp_path: Path) -> None:
    """Beyond the limit, HTTP connections are closed immediately; V2 clients and logs work."""
    prefix = ("prlimit", f"--nofile={LIMIT}:{LIMIT}")
    with spawn_nsqd(tmp_path, prefix=prefix) as server, contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(server))
        assert publishes(first, MAGIC)
        flood = [stack.enter_context(connect_http(server)) for _ in range(FLOOD)]
        taken = [connection for connection in flood if is_answered(connection)]

        # The probes that checked whether nsqd has started may still hold some connections.
        assert shares(LIMIT).http - 3 <= len(taken) <= shares(LIMIT).http
        assert publishes(first)
        assert publishes(stack.enter_context(connect(server)), MAGIC)
        assert 1 <= server.log_text.count("HTTP: refusing connections: the limit of")
        for connection in flood:
            connection.close()
        assert any(is_served(server) for _ in range(1000))


@needs_prlimit
def test_more_topics_than_open_files_work(tmp_path: Path) -> None:
    """With more topics than open files, every topic accepts messages and keeps them on restart."""
    prefix = ("prlimit", f"--nofile={LIMIT}:{LIMIT}")
    with spawn_nsqd(tmp_path, prefix=prefix) as server:
        for _ in range(2):
            for number in range(LIMIT):
                assert (200, b"OK") == server.request("POST", f"/pub?topic=t{number}", b"x")
        server.restart()
        topics = server.get_json("/stats?format=json")["topics"]

        assert {f"t{number}": 2 for number in range(LIMIT)} == {
            topic["topic_name"]: topic["depth"] for topic in topics
        }


@needs_prlimit
def test_the_soft_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    """nsqd raises its soft limit of open files to the hard limit."""
    with spawn_nsqd(tmp_path, prefix=("prlimit", "--nofile=256:512")) as server:
        limits = Path(f"/proc/{server.pid}/limits").read_text()

    (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert ["512", "512"] == line.split()[3:5]
