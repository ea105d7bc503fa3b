"""Flags that NSQ does not have: limits on what clients create, and access over HTTP."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path

from sparq.protocol.commands import pub, sub
from tests.scenarios.starting.effects.common import ERROR, refused
from tests.support.flag_rows import FlagDaemons, FlagServer, Row
from tests.support.v2_client import OK, V2Client
from tests.support.waiting import wait_for

TOKEN = "s3cr3t-t0ken"
TOPICS = 3
CONNECTIONS = 4


def ask(
    server: FlagServer, method: str, path: str, *, token: str = "", body: bytes | None = None
) -> int:
    """Send one request, with a token if given; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=15)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, body, headers)
        return connection.getresponse().status


def make_topics(server: FlagServer) -> None:
    """Create the allowed number of topics; they may exist already."""
    for number in range(TOPICS):
        assert ask(server, "POST", f"/topic/create?topic=t{number}", token=TOKEN) == 200


def max_topics(server: FlagServer) -> None:
    """A topic beyond the limit is refused."""
    make_topics(server)
    text = f"the limit of {TOPICS} topics is reached"
    with V2Client(server) as line:
        assert line.ask(pub("more", b"x")) == (ERROR, f"E_PUB_FAILED PUB failed {text}".encode())
        assert line.ask(pub("t0", b"x")) == OK
    assert ask(server, "POST", "/topic/create?topic=more", token=TOKEN) == 403


def max_connections(server: FlagServer) -> None:
    """Connections beyond the limit are closed immediately; existing ones stay open."""
    with contextlib.ExitStack() as stack:
        lines: list[V2Client] = []

        def fills() -> bool:
            # Connections of other checks may not be closed yet.
            try:
                line = stack.enter_context(V2Client(server))
                assert line.ask(b"NOP\n" + pub("t0", b"x"))[0] in (0, ERROR)
            except ConnectionError:
                return True
            lines.append(line)
            return False

        make_topics(server)
        wait_for(fills)
        assert 1 <= len(lines) <= CONNECTIONS
        for line in lines:
            assert line.ask(pub("t0", b"x")) == OK


def policies(server: FlagServer) -> None:
    """A setting of one topic is read from the file."""
    make_topics(server)
    with V2Client(server) as line:
        assert line.ask(sub("t0", "alone")) == OK
        refused(
            server,
            "E_SUB_FAILED SUB failed consumers for t0:alone exceeds limit of 1",
            sub("t0", "alone"),
        )


def http_token(server: FlagServer) -> None:
    """Requests that change something require this token."""
    assert ask(server, "POST", "/topic/create?topic=t0") == 401
    assert ask(server, "POST", "/topic/create?topic=t0", token="other") == 401
    assert ask(server, "POST", "/topic/create?topic=t0", token=TOKEN) == 200
    assert ask(server, "GET", "/stats") == 200


def debug_routes(server: FlagServer) -> None:
    """The debug routes do not exist."""
    for method, path in (("GET", "/debug/pprof/"), ("POST", "/debug/freememory")):
        assert ask(server, method, path, token=TOKEN) == 404


def go_compatible(server: FlagServer) -> None:
    """nsqd starts with a value out of bounds, and logs a warning."""
    assert "too large: use" in server.log_text
    assert "(ignored because of --go-compatible)" in server.log_text


@contextlib.contextmanager
def neighbours(daemons: FlagDaemons, folder: Path) -> Iterator[None]:
    """Write the policy file of the rows."""
    file = folder / "policies.toml"
    file.write_text('[[policies]]\ntopic = "t0"\nchannel = "alone"\nmax_channel_consumers = 1\n')
    daemons.places["policies"] = str(file)
    yield


GROUPS = {
    "as Go": [
        Row("go-compatible", True, go_compatible),
        Row("broadcast-tcp-port", 70_000, go_compatible),
    ],
    "limited": [
        Row("data-path", "{data}", make_topics),
        Row("max-topics", TOPICS, max_topics),
        Row("policies", "{policies}", policies),
        Row("max-connections", CONNECTIONS, max_connections),
        Row("http-token", TOKEN, http_token),
        Row("debug-routes", False, debug_routes),
    ],
}
