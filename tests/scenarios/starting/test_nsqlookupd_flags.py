"""Every flag of nsqlookupd has its effect."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.daemon.access import tokens
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.options.declare import flags_of
from tests.support.flag_rows import (
    FlagDaemons,
    FlagServer,
    Row,
    each_row,
    flag_daemons,
)
from tests.support.log_flags import AS_JSON, BOUNDED, NAMES
from tests.support.lookup_peer import LookupPeer
from tests.support.waiting import wait_for

WAIT_SECONDS = 30.0
ATTEMPTS = 5


def producers(server: FlagServer, path: str) -> list[str]:
    return [p["broadcast_address"] for p in server.get_json(path)["producers"]]


def tcp_address(server: FlagServer) -> None:
    """nsqlookupd serves nsqds on this address."""
    with LookupPeer(server) as nsqd:
        assert nsqd.ask(b"PING\n") == b"OK"


def http_address(server: FlagServer) -> None:
    """nsqlookupd serves HTTP on this address."""
    assert server.request("GET", "/ping") == (200, b"OK")


def broadcast_address(server: FlagServer) -> None:
    """IDENTIFY's answer contains this address."""
    with LookupPeer(server) as nsqd:
        assert json.loads(nsqd.identify("broadcast"))["broadcast_address"] == "lookup.example"


def inactive_producer_timeout(server: FlagServer) -> None:
    """A silent nsqd is no longer listed, although still connected; a PING lists it again."""
    with LookupPeer(server) as nsqd:
        nsqd.identify("silent")
        nsqd.ask(b"REGISTER t\n")
        wait_for(lambda: "silent" not in producers(server, "/nodes"))
        assert producers(server, "/lookup?topic=t") == []
        for _ in range(100):
            nsqd.ask(b"PING\n")
            if "silent" in producers(server, "/nodes"):
                return
        raise AssertionError("a PING did not bring it back")


def tombstone_lifetime(server: FlagServer) -> None:
    """A tombstoned nsqd is hidden, and listed again long before the default 45 s."""
    with LookupPeer(server) as nsqd:
        nsqd.identify("hidden")
        nsqd.ask(b"REGISTER t\n")
        for _ in range(ATTEMPTS):
            server.post("/topic/tombstone?topic=t&node=hidden:4151")
            if producers(server, "/lookup?topic=t") == []:
                break
        else:
            raise AssertionError("never hidden")
        wait_for(lambda: producers(server, "/lookup?topic=t") == ["hidden"])


def mistake(server: FlagServer) -> None:
    """Cause an error and an ordinary record in the log."""
    with LookupPeer(server) as nsqd:
        nsqd.ask(b"NONSENSE\n")
    wait_for(lambda: "E_INVALID invalid command NONSENSE" in server.log_text)


def log_level(server: FlagServer) -> None:
    """Records below the level are not logged."""
    mistake(server)
    assert " ERROR: " in server.log_text
    assert " INFO: " not in server.log_text


def log_prefix(server: FlagServer) -> None:
    """Every log line begins with this prefix."""
    mistake(server)
    assert all(line.startswith("<lookup> 20") for line in server.log_text.splitlines())


def verbose(server: FlagServer) -> None:
    """Everything is logged, whatever the level."""
    with LookupPeer(server) as nsqd:
        nsqd.identify("chatty")
        nsqd.ask(b"PING\n")
    wait_for(lambda: " DEBUG: CLIENT(" in server.log_text)


def allow_broadcast_address(server: FlagServer) -> None:
    """An nsqd may register its own address and those that match the flags, and no others."""
    for name in ("127.0.0.1", "nsqd-1.example", "10.1.2.3"):
        with LookupPeer(server) as nsqd:
            nsqd.identify(name)
    for name in ("127.0.0.2", "example.org", "11.1.2.3", "localhost"):
        with LookupPeer(server) as nsqd:
            answer = nsqd.identify(name)
            assert answer.startswith(b"E_INVALID IDENTIFY broadcast address"), name


def max_registrations(server: FlagServer) -> None:
    """An nsqd can have this number of registrations, and no more."""
    with LookupPeer(server) as nsqd:
        nsqd.identify("127.0.0.1")
        assert nsqd.ask(b"REGISTER r c\n") == b"OK"
        assert nsqd.ask(b"REGISTER r\n") == b"E_INVALID REGISTER too many registrations"


def max_names(server: FlagServer) -> None:
    """At most this number of names is stored; existing names can be registered again."""
    answers = []
    for number in range(4):
        with LookupPeer(server) as nsqd:
            nsqd.identify("127.0.0.1")
            answers.append(nsqd.ask(b"REGISTER n%d\n" % number))
    assert answers[-1] == b"E_INVALID REGISTER too many topics and channels"
    with LookupPeer(server) as nsqd:
        nsqd.identify("127.0.0.1")
        known = server.get_json("/topics")["topics"][0]
        assert nsqd.ask(b"REGISTER %s\n" % known.encode()) == b"OK"


def crowd(server: FlagServer, most: int) -> None:
    """Assert that at most `most` connections of one address are served at a time."""
    with contextlib.ExitStack() as stack:
        served: list[LookupPeer] = []

        def is_full() -> bool:
            try:
                nsqd = stack.enter_context(LookupPeer(server))
            except ConnectionError:
                return True
            if not nsqd.ask(b"PING\n"):
                return True
            served.append(nsqd)
            return False

        wait_for(is_full)
        # Connections of other checks may not be closed yet.
        assert 1 <= len(served) <= most
        for nsqd in served:
            assert nsqd.ask(b"PING\n") == b"OK"


def max_connections(server: FlagServer) -> None:
    """Connections beyond the limit are closed immediately; existing ones stay open."""
    crowd(server, 4)


def max_connections_per_address(server: FlagServer) -> None:
    """Connections of one address beyond the limit are closed; existing ones stay open."""
    crowd(server, 3)


def status(server: FlagServer, method: str, path: str, token: str = "") -> int:
    """Send one request; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=15)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, headers=headers)
        return connection.getresponse().status


def http_token(server: FlagServer) -> None:
    """Requests that change something require this token."""
    path = "/topic/create?topic=made"
    assert [401, 401] == [status(server, "POST", path, token) for token in ("", "other")]
    assert "made" not in server.get_json("/topics")["topics"]
    assert 200 == status(server, "POST", path, "s3cr3t")
    assert "made" in server.get_json("/topics")["topics"]


def http_request_timeout(server: FlagServer) -> None:
    """An incomplete HTTP head ends the connection."""
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=WAIT_SECONDS) as slow:
        slow.sendall(b"GET /ping HTTP/1.1\r\n")
        assert slow.recv(100) == b""


def token_file(server: FlagServer) -> None:
    """A token with the role is accepted; requests without it are refused."""
    path = "/topic/create?topic=made"
    token = server.helpers["operator"]
    assert [401, 401] == [status(server, "POST", path, shown) for shown in ("", "s3cr3t")]
    assert [401, 200] == [status(server, "GET", "/topics", shown) for shown in ("", token)]
    assert 200 == status(server, "POST", path, token)
    assert 403 == status(server, "POST", "/topic/delete?topic=made", token)


def require_token(server: FlagServer) -> None:
    """An nsqd without a token is refused."""
    with LookupPeer(server) as nsqd:
        assert nsqd.identify("any").startswith(b"E_UNAUTHORIZED IDENTIFY a token is required")


def audit_file(server: FlagServer) -> None:
    """A change is in the audit file, with the token's name."""
    assert 200 == status(server, "POST", "/topic/create?topic=x", server.helpers["operator"])
    entries = (Path(server.places["data"]) / "audit").read_text().splitlines()
    noted = [entry for entry in map(json.loads, entries) if entry["topic"] == "x"]
    assert ("deploy", "POST /topic/create", "done") == tuple(
        noted[-1][key] for key in ("user", "action", "outcome")
    )


def debug_routes(server: FlagServer) -> None:
    """The debug routes do not exist."""
    assert [404, 404] == [status(server, "GET", path) for path in ("/debug", "/debug/pprof/")]


def go_compatible(server: FlagServer) -> None:
    """nsqlookupd starts with a value out of bounds, and logs a warning."""
    assert "too small: use" in server.log_text
    assert "(ignored because of --go-compatible)" in server.log_text


GROUPS = {
    "as Go": [
        Row("tcp-address", "{tcp}", tcp_address),
        Row("http-address", "{http}", http_address),
        Row("go-compatible", True, go_compatible),
        Row("max-connections", -1, go_compatible),
    ],
    "quiet": [
        Row("broadcast-address", "lookup.example", broadcast_address),
        Row("inactive-producer-timeout", "150ms", inactive_producer_timeout),
        Row("log-level", "ERROR", log_level),
        Row("log-prefix", "<lookup> ", log_prefix),
    ],
    "verbose": [
        Row("tombstone-lifetime", "1.5s", tombstone_lifetime),
        Row("log-level", "fatal", verbose),
        Row("verbose", True, verbose),
    ],
    "crowded": [
        Row("max-connections", 4, max_connections),
        Row("max-names", 3, max_names),
        Row("http-token", "s3cr3t", http_token),
        Row("debug-routes", False, debug_routes),
    ],
    "guarded": [
        Row(
            "allow-broadcast-address",
            ["peer", "*.example", "10.0.0.0/8"],
            allow_broadcast_address,
        ),
        Row("max-connections-per-address", 3, max_connections_per_address),
        Row("max-registrations", 2, max_registrations),
        Row("http-request-timeout", "1s", http_request_timeout),
        *AS_JSON,
    ],
    "known": [
        Row("token-file", "{tokens}", token_file),
        Row("audit-file", "{data}/audit", audit_file),
        Row("require-token", True, require_token),
    ],
    "bounded log": [
        *BOUNDED,
    ],
}

NSQS = """
version config log-level log-prefix verbose tcp-address http-address broadcast-address
inactive-producer-timeout tombstone-lifetime
"""
"""The flags of NSQ's nsqlookupd (docs/daemons.md); the first two have tests in tests/daemon."""


OURS = {
    *("allow-broadcast-address", "max-connections", "max-connections-per-address"),
    *("max-registrations", "max-names", "http-token", "debug-routes", "http-request-timeout"),
    *("go-compatible", "token-file", "audit-file", "require-token", *NAMES),
}


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlagDaemons]:
    """The daemons that get the rows' flags."""
    folder = tmp_path_factory.mktemp("lookup")
    token, line = tokens.make("deploy", "operate")
    (folder / "tokens").write_text(line)
    with flag_daemons("sparq.nsqlookupd", folder, GROUPS) as running:
        running.helpers["operator"] = token
        running.places["tokens"] = str(folder / "tokens")
        yield running


@pytest.mark.behaviour("nsqlookupd.TestConfigFlagParsing")
@each_row(GROUPS)
def test_a_flag_has_its_effect(daemons: FlagDaemons, group: str, row: Row) -> None:
    """A flag has its effect in a running daemon."""
    row.check(daemons.server(group))


def test_no_flag_is_missing() -> None:
    """Every flag, NSQ's and sparq's, has a row."""
    ours = {flag.name for flag in flags_of(NsqlookupdOptions)}
    assert ours == {row.flag for rows in GROUPS.values() for row in rows}
    assert ours | {"version", "config"} == set(NSQS.split()) | OURS
