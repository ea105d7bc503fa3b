"""Flags that NSQ does not have: optional limits against hostile clients."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time

from sparq.protocol.commands import pub
from tests.scenarios.starting.effects.common import (
    WAIT_SECONDS,
    granted,
    identify,
    refused,
)
from tests.support.flag_rows import FlagServer, Row
from tests.support.log_flags import AS_JSON, BOUNDED
from tests.support.v2_client import MAGIC, OK, V2Client

LINE = 120
FIRST_SECONDS = 2
RATE = 50_000
REQUEST_SECONDS = 1


def connect(port: int, data: bytes = b"") -> socket.socket:
    """Connect and send this data."""
    found = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    found.sendall(data)
    return found


def rest(connection: socket.socket) -> bytes:
    """Read until the other side closes; return everything."""
    found = b""
    try:
        while piece := connection.recv(65_536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def max_line_size(server: FlagServer) -> None:
    """A longer line ends the connection without an answer."""
    with V2Client(server) as line:
        assert line.ask(b"NOP" + b" " * (LINE - 4) + b"\n" + pub("t", b"x")) == OK
    with connect(server.tcp_port, MAGIC + b"NOP" + b" " * (LINE - 3)) as line_too_long:
        assert b"" == rest(line_too_long)


def first_command_timeout(server: FlagServer) -> None:
    """A client that sends only the magic bytes is disconnected; one that sent a command is not."""
    with V2Client(server) as speaker, connect(server.tcp_port, MAGIC) as silent:
        assert speaker.ask(pub("t", b"x")) == OK
        assert b"" == rest(silent)
        assert speaker.ask(pub("t", b"x")) == OK


def min_receive_rate(server: FlagServer) -> None:
    """A body that arrives too slowly ends the connection."""
    with connect(server.tcp_port, MAGIC + b"NOP\nPUB t\n" + struct.pack(">i", 1_000)) as slow:
        slow.settimeout(0.1)
        deadline = time.monotonic() + WAIT_SECONDS
        for _ in range(900):
            assert time.monotonic() < deadline
            try:
                slow.sendall(b"x")
                if not slow.recv(100):
                    return
            except TimeoutError:
                continue
            except OSError:
                return
        raise AssertionError("nobody minded")


def http_request_timeout(server: FlagServer) -> None:
    """An incomplete HTTP head ends the connection; an incomplete body gets status 500."""
    with connect(server.http_port, b"GET /ping HTTP/1.1\r\n") as head:
        assert b"" == rest(head)
    asked = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nshort"
    with connect(server.http_port, asked) as body:
        answer = http.client.HTTPResponse(body)
        answer.begin()
        assert 500 == answer.status
        assert {"message": "INTERNAL_ERROR"} == json.loads(answer.read())


def require_heartbeats(server: FlagServer) -> None:
    """Heartbeats cannot be disabled."""
    refused(
        server,
        "E_BAD_BODY IDENTIFY heartbeat interval (-1) is invalid",
        identify(heartbeat_interval=-1),
    )
    assert granted(server, heartbeat_interval=1_000)["max_rdy_count"] == 2500


def strict_identify(server: FlagServer) -> None:
    """Too deep or large JSON and too large numbers are refused, even in unknown keys."""
    deep: object = []
    for _ in range(19):
        deep = [deep]
    bad = "E_BAD_BODY IDENTIFY failed to decode JSON body"
    assert granted(server, unknown=deep[0] if isinstance(deep, list) else deep)
    refused(server, bad, identify(unknown=[deep]))
    refused(server, bad, identify(unknown=2**63))
    large = identify(unknown="x" * 70_000)
    size = len(large) - len(b"IDENTIFY\n") - 4
    refused(server, f"E_BAD_BODY IDENTIFY body too big {size} > 65536", large)


GROUPS = {
    "strict": [
        Row("max-line-size", LINE, max_line_size),
        Row(
            "first-command-timeout",
            f"{FIRST_SECONDS}s",
            first_command_timeout,
        ),
        Row("min-receive-rate", RATE, min_receive_rate),
        Row("http-request-timeout", f"{REQUEST_SECONDS}s", http_request_timeout),
        Row("require-heartbeats", True, require_heartbeats),
        Row("strict-identify", True, strict_identify),
        *AS_JSON,
    ],
    "bounded log": BOUNDED,
}
