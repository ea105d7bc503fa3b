"""A cluster for `sparq admin`: an nsqlookupd and three nsqds, one of which is dead but listed.

The third nsqd is like one after a power failure: nsqlookupd still lists it, but its port is closed.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sparq.cli import main
from tests.support.servers import NsqdServer, Server, free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import wait_for


@dataclass
class Cluster:
    """The daemons; ``dead`` is the address of the nsqd that does not answer."""

    lookupd: Server
    nsqds: tuple[NsqdServer, NsqdServer]
    dead: str
    registration: socket.socket

    @property
    def flag(self) -> str:
        """The flag that names the cluster."""
        return f"--lookupd-http-address={self.lookupd.http}"

    @property
    def alive(self) -> list[str]:
        """The addresses of the nsqds that answer, in order."""
        return sorted(nsqd.http for nsqd in self.nsqds)

    def post(self, path: str, body: bytes = b"") -> None:
        """Send a POST request to both live nsqds."""
        for nsqd in self.nsqds:
            nsqd.post(path, body)

    def recreate(
        self, topic: str, channel: str = "", messages: int = 0, *, dead: bool = True
    ) -> None:
        """Create a topic again on both nsqds, with `messages` on each; list it at the dead one."""
        for nsqd in self.nsqds:
            nsqd.request("POST", f"/topic/delete?topic={topic}")
        self.lookupd.request("POST", f"/topic/delete?topic={topic}")
        self.post(f"/topic/create?topic={topic}")
        if channel:
            self.post(f"/channel/create?topic={topic}&channel={channel}")
        if messages:
            lines = b"\n".join(b'{"n": %d}' % number for number in range(messages))
            self.post(f"/mpub?topic={topic}", lines)
        self.keep_listed()
        if dead:
            send_command(self.registration, b"REGISTER %s\n" % topic.encode())
        wait_for(lambda: len(self.listed(topic)) == 2 + dead)

    def keep_listed(self) -> None:
        """Keep the dead nsqd listed: without a PING nsqlookupd drops it after 5 minutes."""
        send_command(self.registration, b"PING\n")

    def listed(self, topic: str) -> set[int]:
        """Return the HTTP ports of the nsqds that nsqlookupd lists for a topic."""
        status, answer = self.lookupd.request("GET", f"/lookup?topic={topic}")
        found = json.loads(answer)["producers"] if status == 200 else ()
        return {producer["http_port"] for producer in found}

    def channels(self, topic: str, channel: str) -> list[dict[str, Any]]:
        """Return the channel's statistics on both nsqds; {} if it does not exist."""
        return [nsqd.channel(topic, channel) for nsqd in self.nsqds]

    def depths(self, topic: str, channel: str) -> list[int]:
        """Return the channel's depth on both nsqds."""
        return [found["depth"] for found in self.channels(topic, channel)]

    def ids(self, topic: str) -> list[list[str]]:
        """Return the ids of a topic's messages on both nsqds."""
        path = f"/topic/messages?topic={topic}&bodies=false"
        answers = [nsqd.get_json(path) for nsqd in self.nsqds]
        return [[message["id"] for message in answer["messages"]] for answer in answers]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests: each uses its own topics, or creates them again."""
    folder = tmp_path_factory.mktemp("admin")
    with (
        spawn_nsqlookupd(folder) as lookupd,
        spawn_nsqd(folder, lookupds=(lookupd,), name="first") as first,
        spawn_nsqd(folder, "--node-id=2", lookupds=(lookupd,), name="second") as second,
        socket.create_connection(("127.0.0.1", lookupd.tcp_port)) as registration,
    ):
        port = free_port()
        facts = {"broadcast_address": "127.0.0.1", "hostname": "dead", "version": "1.3.0"}
        facts = {**facts, "tcp_port": free_port(), "http_port": port}
        body = json.dumps(facts).encode()
        send_command(registration, b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        yield Cluster(lookupd, (first, second), f"127.0.0.1:{port}", registration)


def send_command(connection: socket.socket, command: bytes) -> None:
    """Send a command to an nsqlookupd, and wait for its answer."""
    connection.sendall(command)
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    connection.recv(size, socket.MSG_WAITALL)


@dataclass
class Ran:
    """The result of a call."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The output, parsed as JSON."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The output, split into words."""
        return [line.split() for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def admin(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `sparq admin` with these words, on the cluster unless they name another one."""
    cluster.keep_listed()

    def run(verb: str, *words: str) -> Ran:
        given = [] if any("-http-address=" in word for word in words) else [cluster.flag]
        return call(capfd, verb, *given, *words)

    return run


def call(capfd: pytest.CaptureFixture[str], *words: str) -> Ran:
    """Run `sparq admin` with these words."""
    capfd.readouterr()
    try:
        status = main(["admin", *words])
    except SystemExit as ended:
        status = int(ended.code or 0)
    return Ran(status, *capfd.readouterr())


class OldNsqd(BaseHTTPRequestHandler):
    """An nsqd without inspection and replay, like Go's: one topic, one channel."""

    def do_GET(self) -> None:
        channel = {"channel_name": "archive", "depth": 3, "message_count": 3, "client_count": 0}
        topic = {"topic_name": "clicks", "depth": 0, "message_count": 3, "channels": [channel]}
        host, port = self.server.server_address[:2]
        info = {"version": "1.3.0", "broadcast_address": host, "http_port": port, "tcp_port": 1}
        path = self.path.partition("?")[0]
        self.answer({"/stats": {"version": "1.3.0", "topics": [topic]}, "/info": info}.get(path))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        self.answer({} if path in ("/channel/pause", "/channel/unpause") else None)

    def do_PUT(self) -> None:
        self.do_POST()

    def answer(self, document: Any, status: int = 200) -> None:
        body = json.dumps({"message": "NOT_FOUND"} if document is None else document).encode()
        self.send_response(404 if document is None else status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run an HTTP server with this handler; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def old_nsqd() -> Iterator[str]:
    """Run an OldNsqd; its address."""
    with serving(OldNsqd) as address:
        yield address


def assert_dead_nsqd_is_reported(ran: Ran, cluster: Cluster, verb: str) -> None:
    """Assert status 1, the dead nsqd's error, and the next steps."""
    assert 1 == ran.status
    assert f"sparq admin {verb}: {cluster.dead}: connection refused\n" in ran.err
    assert "next steps:" in ran.err
    assert f"nsqd {cluster.dead}: start the nsqd" in ran.err
    assert f"sparq admin {verb} clicks" in ran.err
