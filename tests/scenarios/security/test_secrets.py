"""A-5: no output contains a secret: logs, metrics, options, profiles, process list, data path."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sparq.daemon.access import tokens
from sparq.nsqd.options import NsqdOptions
from sparq.options.declare import flags_of
from sparq.protocol import commands as c
from tests.scenarios.security.peers import FakeAuthd, FakeLookupd
from tests.support import servers
from tests.support.certificates import Certificates
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import V2Client
from tests.support.waiting import wait_for

CLIENTS, USERS, TOKENS = "pl4nted-client-s3cret", "pl4nted-user-passw0rd", "pl4nted-http-t0ken"
QUERYS = "pl4nted-query-key"
PLANTED = "pl4nted"

PATHS = [
    *("/ping", "/info", "/stats", "/stats?format=json", "/metrics", "/nodes", "/debug", "/topics"),
    *("/debug/pprof/", "/debug/pprof/goroutine", "/debug/pprof/heap", "/debug/pprof/block"),
    "/debug/pprof/profile?seconds=0.2",
]


def every_option(server: Server) -> list[str]:
    """Return the /config paths of all options."""
    known = {flag.key for flag in flags_of(NsqdOptions)} if server.module == "sparq.nsqd" else set()
    return [f"/config/{key}" for key in sorted(known)]


def get(server: Server, path: str, *, token: str = TOKENS) -> bytes:
    """Request a path with the token; return head and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return str(answer.getheaders()).encode() + answer.read()
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def started_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start daemons without the fork server, so that the process list shows their arguments."""
    monkeypatch.setattr(servers, "fork_server", None)


def process_list(server: Server) -> bytes:
    """Return what other users of the machine can read about the process."""
    folder = Path("/proc") / str(server.pid)
    return b"".join((folder / name).read_bytes() for name in ("cmdline", "comm", "status"))


def in_outputs(server: Server, token: str = TOKENS) -> list[str]:
    """Return the names of the outputs that contain a planted secret."""
    outputs = {path: get(server, path, token=token) for path in (*PATHS, *every_option(server))}
    refusals = {f"{path}, refused": get(server, path, token="wrong") for path in PATHS}
    found = {**outputs, **refusals, "log": server.log.read_bytes()}
    found["process list"] = process_list(server)
    for path in server.folder.rglob("*"):
        if path.is_file():
            found[f"file {path.name}"] = path.read_bytes()
    return [name for name, data in found.items() if PLANTED.encode() in data]


def authenticate(server: NsqdServer, secret: str = CLIENTS) -> bytes:
    """Send AUTH with the secret, then an invalid command; return all answers."""
    with V2Client(server, seconds=30) as client:
        client.send(c.identify(b"{}") + c.auth(secret.encode()) + b"NONSENSE\n")
        return client.rest()


class LenientAuthd(FakeAuthd):
    """Grants everything to every second request; its other answers are invalid.

    The invalid answers repeat the request or contain the client's secret.
    """

    def talk(self, connection: socket.socket) -> None:
        """Serve one request."""
        head = connection.recv(1 << 16)
        self.answered += 1
        entry = {"topic": ".*", "channels": [".*"], "permissions": ["publish", "subscribe"]}
        good = json.dumps({"ttl": 60, "identity": "joe", "authorizations": [entry]}).encode()
        bad = [head, b'{"ttl": "%s"}' % CLIENTS.encode(), b'{"authorizations": 1}']
        body = good if self.answered % 2 else bad[self.answered // 2 % len(bad)]
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def test_nsqd_reveals_no_secret(tmp_path: Path) -> None:
    """nsqd reveals no client secret, auth server password, token or key, even after failures."""
    certificates = Certificates.make(tmp_path)
    (tmp_path / "token").write_text(TOKENS)
    with LenientAuthd() as authd, LenientAuthd() as gone:
        gone.__exit__()
        addresses = (
            f"http://u:{USERS}@{authd.address}/auth?key={QUERYS}",
            f"http://{gone.address}/auth?key={QUERYS}",
        )
        config = tmp_path / "nsqd.toml"
        config.write_text(f"auth_http_addresses = {json.dumps(addresses)}\n")
        flags = (
            "--log-level=debug",
            f"--config={config}",
            f"--http-token=@{tmp_path}/token",
            f"--tls-cert={certificates.folder}/server.crt",
            f"--tls-key={certificates.folder}/server.key",
            "--https-address=127.0.0.1:0",
        )
        with spawn_nsqd(tmp_path, *flags) as server:
            answers = [authenticate(server) for _ in range(8)]
            assert any(b"joe" in answer for answer in answers)
            assert any(b"E_AUTH_FAILED" in answer for answer in answers)
            assert PLANTED.encode() not in b"".join(answers)
            with V2Client(server, seconds=30) as client:
                client.send(c.auth(CLIENTS.encode()) + c.sub("t", "c"))
                wait_for(lambda: b'"client_count":1' in get(server, "/stats?format=json"))
                found = in_outputs(server)
            assert b"401" not in get(server, "/config/http_token")
            config.write_text("http_token = 'pl4nted-new'\nauth_http_addresses = ['pl4nted-new']\n")
            os.kill(server.pid, signal.SIGHUP)
            wait_for(lambda: "auth_http_addresses has changed" in server.log_text)
            found += in_outputs(server)
            key = (certificates.folder / "server.key").read_text().splitlines()[1]
            assert key not in server.log_text
    assert [] == [name for name in found if name != "file nsqd.toml"]


@pytest.mark.parametrize("spawn", [spawn_nsqd, spawn_nsqlookupd])
def test_a_token_of_the_file_is_revealed_nowhere(
    tmp_path: Path, spawn: Callable[..., Server]
) -> None:
    """Tokens of a token file (valid, wrong, expired, without the role) appear in no output.

    They are sent over HTTP and with AUTH; the audit file, too, has user names only.
    """
    made = {
        name: tokens.make(name, roles, last, form=tokens.FORM._replace(prefix=f"{PLANTED}-{name}-"))
        for name, roles, last in (
            ("good", "administer,consume,publish", ""),
            ("weak", "publish:other", ""),
            ("old", "administer", "2020-01-01"),
            ("wrong", "read", ""),
        )
    }
    file, audit = tmp_path / "tokens", tmp_path / "audit"
    file.write_text("\n".join(line for name, (_, line) in made.items() if name != "wrong"))
    flags = ("--log-level=debug", f"--token-file={file}", f"--audit-file={audit}")
    answers = []
    with spawn(tmp_path, *flags) as server:
        for token, _ in made.values():
            paths = ("/topic/create?topic=t", "/topic/delete?topic=t", "/pub?topic=t")
            answers += [order(server, path, token) for path in paths]
            if isinstance(server, NsqdServer):
                answers.append(authenticate(server, token))
        good, _ = made["good"]
        file.write_text(f"{good} administer x\n")
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: "SIGHUP: keeping the old tokens" in server.log_text)
        assert [] == in_outputs(server, good)
    assert PLANTED.encode() not in b"".join(answers)
    assert '"user":"good"' in audit.read_text()
    assert '"user":"weak"' in audit.read_text()
    assert '"user":"old"' in audit.read_text()


def test_the_token_for_nsqlookupds_is_revealed_nowhere(tmp_path: Path) -> None:
    """The token for nsqlookupds appears in no output, even if an nsqlookupd repeats it."""
    (tmp_path / "token").write_text(TOKENS)
    with FakeLookupd(TOKENS) as lookupd:
        address = f"--lookupd-tcp-address={lookupd.address}"
        token = f"--lookupd-token=@{tmp_path}/token"
        with spawn_nsqd(tmp_path, "--log-level=debug", address, token) as server:
            assert order(server, "/topic/create?topic=t", "").startswith(b"[")
            wait_for(lambda: lookupd.answered > 3 and "***" in server.log_text)
            assert [] == in_outputs(server)
            (tmp_path / "token").write_text("pl4nted, and no token")
            os.kill(server.pid, signal.SIGHUP)
            wait_for(lambda: "keeping the old token for nsqlookupds" in server.log_text)
            assert [] == in_outputs(server)


def order(server: Server, path: str, token: str) -> bytes:
    """POST with a token; return head and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request("POST", path, b"x", {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return str(answer.getheaders()).encode() + answer.read()
    finally:
        connection.close()


def test_failed_starts_reveal_no_secret(tmp_path: Path) -> None:
    """The error for an invalid flag omits its value if that may be a secret."""
    (tmp_path / "tokens").write_text(f"bob {TOKENS} read\n")
    for flag in (
        f"--http-token={TOKENS} and more",
        f"--auth-http-address=ftp://u:{USERS}@h/",
        f"--token-file={tmp_path}/tokens",
    ):
        with pytest.raises(AssertionError, match="ended") as error:
            spawn_nsqd(tmp_path, flag)
        assert PLANTED not in str(error.value)
