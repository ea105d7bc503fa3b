"""nsqadmin with an nsqd and an nsqlookupd that require tokens.

All three run as separate processes. The roles of the token in `--upstream-token` determine what
nsqadmin can show and change, and the token appears in none of its output.
"""

from __future__ import annotations

import http.client
import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparq.daemon.access import tokens
from sparq.protocol import commands
from tests.nsqadmin.test_main import spawn_nsqadmin
from tests.nsqlookupd.mistakes import PEER, identify
from tests.support.servers import AdminServer, NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

ROLES = {
    "all": "administer,bodies",
    "changes": "administer",
    "reads": "read",
    "publishes": "publish",
    "registers": "register",
    "elsewhere": "consume:other",
}

SAID = (
    b"requires a token: set --upstream-token to a token that is valid there",
    b"does not allow the token of --upstream-token to read all topics",
)


class Cluster(NamedTuple):
    """Both servers, and the file of each token."""

    nsqd: NsqdServer
    lookupd: Server
    files: dict[str, Path]

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """Send a request to nsqd with a token that has all roles."""
        return asked(self.nsqd.http_port, method, path, token=self.files["all"].read_text().strip())

    @property
    def channel(self) -> dict[str, Any]:
        """The channel's part of `/stats`."""
        _, answer = self.ask("GET", "/stats?format=json&topic=t&channel=c")
        (topic,) = json.loads(answer)["topics"]
        (channel,) = topic["channels"]
        return dict(channel)


def asked(
    port: int, method: str, path: str, body: Any = None, token: str = ""
) -> tuple[int, bytes]:
    """Send one request; return status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An nsqd with a topic of 3 messages, registered with the nsqlookupd."""
    folder = tmp_path_factory.mktemp("cluster")
    lines, files = [], {}
    for name, roles in ROLES.items():
        token, line = tokens.make(name, roles)
        lines.append(line)
        files[name] = folder / f"{name}.token"
        files[name].write_text(token + "\n")
        files[name].chmod(0o600)
    files["wrong"] = folder / "wrong.token"
    files["wrong"].write_text("a-token-that-nobody-has-made-123\n")
    known = folder / "tokens"
    known.write_text("\n".join(lines) + "\n")
    known.chmod(0o600)
    file = f"--token-file={known}"
    with (
        spawn_nsqlookupd(folder, file, "--require-token") as lookupd,
        spawn_nsqd(
            folder, file, f"--lookupd-token=@{files['registers']}", lookupds=(lookupd,)
        ) as nsqd,
    ):
        made = Cluster(nsqd, lookupd, files)
        assert 200 == made.ask("POST", "/topic/create?topic=t")[0]
        assert 200 == made.ask("POST", "/channel/create?topic=t&channel=c")[0]
        with V2Client(nsqd) as producer:
            token = files["publishes"].read_text().strip().encode()
            assert b"permission_count" in producer.ask(commands.auth(token))[1]
            assert producer.ask(commands.mpub("t", [b"one", b"two", b"three"])) == OK
        yield made


def flags_for(cluster: Cluster, token: str) -> list[str]:
    """Return nsqadmin's flags with this token for upstream; "": without one."""
    shown = [f"--upstream-token=@{cluster.files[token]}"] if token else []
    return [f"--lookupd-http-address={cluster.lookupd.http}", *shown]


def overview(admin: AdminServer) -> dict[str, Any]:
    """Return the cluster as nsqadmin sees it."""
    status, answer = admin.request("GET", "/api/v2/overview")
    assert status == 200, answer
    return dict(json.loads(answer))


def says_nothing_of(secret: str, admin: AdminServer, *answers: bytes) -> None:
    """Assert that no answer, page or log line contains the token."""
    pages = [
        admin.request("GET", path)[1]
        for path in ("/", "/nodes", "/topics/t", "/metrics", "/attention")
    ]
    for text in (*answers, *pages, admin.log.read_bytes()):
        assert secret.encode() not in text


@pytest.mark.parametrize("token", ["all", "reads"])
def test_the_roles_of_the_token_decide(cluster: Cluster, tmp_path: Path, token: str) -> None:
    """With all roles nsqadmin shows messages and pauses a channel; with `read` it has a reason."""
    may = token == "all"
    with spawn_nsqadmin(tmp_path, *flags_for(cluster, token)) as admin:
        wait_for(lambda: overview(admin)["totals"]["messages"] == 3)
        status, answer = asked(admin.http_port, "POST", "/api/topics/t/c", {"action": "pause"})
        assert 200 == status, answer  # like NSQ's nsqadmin, which returns a refusal as a warning
        assert may is (b"WARNING: got response 403 Forbidden" not in answer)
        assert may is cluster.channel["paused"]
        cluster.ask("POST", "/channel/unpause?topic=t&channel=c")
        _, page = admin.request("GET", "/api/v2/messages?topic=t&channel=c")
        if may:
            assert ["one", "two", "three"] == [one["body"] for one in json.loads(page)["messages"]]
        else:
            assert (False, True) == (b"one" in page, b"403" in page)
        says_nothing_of(cluster.files[token].read_text().strip(), admin, page, answer)


@pytest.mark.parametrize("token", ["", "wrong", "registers"])
def test_without_read_access_nsqadmin_shows_nothing(
    cluster: Cluster, tmp_path: Path, token: str
) -> None:
    """Without read access nsqadmin runs, reports the refusal, and changes nothing."""
    with spawn_nsqadmin(tmp_path, *flags_for(cluster, token)) as admin:
        said = SAID[token == "registers"]
        wait_for(lambda: said in admin.request("GET", "/api/v2/attention")[1])
        told = admin.request("GET", "/api/v2/attention")[1]
        status, answer = asked(admin.http_port, "POST", "/api/topics/t/c", {"action": "pause"})
        assert b"403 Forbidden" in answer if token == "registers" else 502 == status
        assert not cluster.channel["paused"]
        assert b"one" not in admin.request("GET", "/api/v2/messages?topic=t&channel=c")[1]
        if token:
            says_nothing_of(cluster.files[token].read_text().strip(), admin, told, answer)


ANSWERS = {
    "/stats": {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": []},
    "/info": {"version": "1.3.0"},
}


def register(lookupd: Server, port: int, *more: bytes) -> socket.socket:
    """Register a stranger that listens on this HTTP port with an nsqlookupd, for the topic `t`."""
    peer = socket.create_connection(("127.0.0.1", lookupd.tcp_port), 10)
    facts = {**PEER, "broadcast_address": "127.0.0.1", "http_port": port}
    peer.sendall(b"  V1" + identify(facts) + b"REGISTER t\n" + b"".join(more))
    return peer


class Stranger(http.server.ThreadingHTTPServer):
    """An HTTP server that answers like an nsqd, and keeps what it is shown."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StrangersAnswers)
        self.heads: list[str] = []


class StrangersAnswers(http.server.BaseHTTPRequestHandler):
    """Answers any request."""

    def do_GET(self) -> None:
        """Keep the request's head, and answer."""
        assert isinstance(self.server, Stranger)
        self.server.heads.append(f"{self.requestline}\n{self.headers}")
        body = json.dumps(ANSWERS.get(self.path.partition("?")[0], {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """A stranger's HTTP server, in a thread."""
    with Stranger() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_stranger_gets_no_token(tmp_path: Path, stranger: Stranger) -> None:
    """Who registers without a token is asked, but is shown the token of no request.

    nsqadmin reads and changes topics, and so does `sparq admin`.
    """
    secret = "the-token-of-the-administrator-1"
    port = stranger.server_address[1]
    with spawn_nsqlookupd(tmp_path) as lookupd, register(lookupd, port):
        flags = (f"--lookupd-http-address={lookupd.http}", f"--upstream-token={secret}")
        with spawn_nsqadmin(tmp_path, *flags) as admin:
            wait_for(lambda: any("/stats" in head for head in stranger.heads))
            for body in ({"action": "pause"}, {"action": "empty"}):
                asked(admin.http_port, "POST", "/api/topics/t", body)
            asked(admin.http_port, "DELETE", "/api/topics/t")
        for words in (["list"], ["pause", "t"], ["delete", "t", "--yes"]):
            command = [sys.executable, "-m", "sparq.cli", "admin", *words]
            where = [f"--lookupd-http-address={lookupd.http}", f"--token={secret}"]
            subprocess.run([*command, *where], capture_output=True, timeout=60, check=False)

    assert any("POST /topic/pause" in head for head in stranger.heads)
    assert [] == [head for head in stranger.heads if secret in head or "Authorization" in head]
