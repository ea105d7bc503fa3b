"""A-6: no text from a peer, in any field, can forge a log line."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparq.protocol import commands as c
from tests.scenarios.security.peers import FakeAuthd, FakeLookupd
from tests.support.servers import Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import MAGIC
from tests.support.waiting import wait_for

MARK = "f0rged"
STAMP = "2026/01/01 00:00:00.000000"
POISONS = [
    f"{MARK}\r\n[nsqd] {STAMP} FATAL: {MARK}",
    f"{MARK}\n[nsqlookupd] {STAMP} FATAL: {MARK}",
    f"\x1b[2J\x1b[31m{MARK}\x1b]0;title\x07",
    f"\0{MARK}\0\x08\x08\x08\x7f",
    f"{MARK}\x85{MARK}\x9b31m\x0b\x0c\x1c\x1d\x1e",
    f"{MARK}\u2028[nsqd] {STAMP} FATAL: \u2029{MARK}\u202e\u2066",
    f"%s %d %(name)s {{}} {MARK} \\n",
]
LINE = re.compile(
    rb"(\[nsqd\]|\[nsqlookupd\]) [0-9/]{10} [0-9:.]{15} (DEBUG|INFO|WARNING|ERROR): .*"
)
INDENTED = b"    "


def check(server: Server) -> int:
    """Assert that the daemon wrote every log line; return how many quote the poison."""
    data = server.log.read_bytes()
    lines = data.split(b"\n")
    assert b"" == lines.pop()
    for line in lines:
        assert LINE.fullmatch(line) or line.startswith(INDENTED), line
        assert not re.search(rb"[\x00-\x1f\x7f]", line), line
        text = line.decode()
        assert [text] == text.splitlines()
        assert not re.search("[\x80-\x9f\u2028-\u202e\u2066-\u2069]", text), line
    return sum(MARK.encode() in line for line in lines)


def check_json(server: Server) -> int:
    """Assert that every JSON line is the daemon's; return how many quote the poison."""
    lines = server.log.read_bytes().split(b"\n")
    assert b"" == lines.pop()
    for line in lines:
        assert re.fullmatch(rb"[ -~]+", line), line
        found = json.loads(line)
        assert "nsqd" == found["program"]
        assert found["level"] in ("DEBUG", "INFO", "WARNING", "ERROR")
    return sum(MARK.encode() in line for line in lines)


def say(port: int, *data: bytes) -> bytes:
    """Send data on a new connection; return all answers."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        try:
            for piece in data:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                answer += piece
        except ConnectionError:
            pass
    return answer


def sized(data: bytes) -> bytes:
    """Prefix the data with its size."""
    return struct.pack(">i", len(data)) + data


def to_nsqd(text: str) -> Iterator[bytes]:
    """Yield V2 input with the text in every place."""
    raw = text.encode()
    yield raw
    yield MAGIC + raw + b"\n"
    for command in (b"PUB", b"MPUB", b"DPUB", b"SUB", b"FIN", b"REQ", b"TOUCH", b"RDY", b"ATTACH"):
        yield MAGIC + b"%s %s\n%s" % (command, raw, sized(b"x"))
        yield MAGIC + b"%s t %s\n%s" % (command, raw, sized(b"x"))
    facts = dict.fromkeys(("client_id", "hostname", "user_agent", "short_id", "long_id"), text)
    facts |= dict.fromkeys(("topology_zone", "topology_region", text), text)
    for body in (json.dumps(facts).encode(), raw, json.dumps([text]).encode()):
        yield MAGIC + c.identify(body) + c.sub("t", "c") + c.rdy(1) + b"FIN " + raw + b"\n"
    for key in ("heartbeat_interval", "sample_rate", "output_buffer_size"):
        yield MAGIC + c.identify(json.dumps({key: text}).encode())
    yield MAGIC + c.identify(b"{}") + c.auth(raw) + c.pub("t", raw)


def to_http(text: str) -> Iterator[bytes]:
    """Yield HTTP requests with the text in every place, raw and escaped."""
    raw = text.encode()
    escaped = b"".join(b"%%%02x" % byte for byte in raw)
    for part in (raw, escaped):
        for head in (b"GET /%s", b"GET /stats?topic=%s", b"POST /pub?topic=%s", b"DELETE /%s"):
            yield head % part + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
        yield b"POST /mpub?topic=t&binary=%s HTTP/1.1\r\nContent-Length: 1\r\n\r\nx" % part
        yield b"PUT /config/%s HTTP/1.1\r\nContent-Length: 1\r\n\r\nx" % part
    for head in (
        b"%s / HTTP/1.1",
        b"GET / %s",
        b"GET / HTTP/1.1\r\n%s: x",
        b"GET / HTTP/1.1\r\nX: %s",
    ):
        yield head % raw + b"\r\n\r\n"
    body = json.dumps([f"{text}:4160"]).encode()
    head = b"PUT /config/nsqlookupd_tcp_addresses HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    yield head % len(body) + body


def to_nsqlookupd(text: str) -> Iterator[bytes]:
    """Yield an nsqd's input for nsqlookupd with the text in every place."""
    raw = text.encode()
    facts: dict[str, object] = dict.fromkeys(("hostname", "broadcast_address", "version"), text)
    facts |= {"tcp_port": 1, "http_port": 2, "topology_zone": text, "topology_region": text}
    hello = b"  V1IDENTIFY\n" + sized(json.dumps(facts).encode())
    yield raw
    yield b"  V1" + raw + b"\n"
    yield hello + b"REGISTER t c\nPING\n"
    yield b"  V1IDENTIFY\n" + sized(raw)
    for command in (b"REGISTER", b"UNREGISTER"):
        yield hello + b"%s %s\n" % (command, raw)
        yield hello + b"%s t %s\n" % (command, raw)


def test_clients_cannot_forge_log_lines(tmp_path: Path) -> None:
    """Newlines, terminal escapes, NUL and formats in any field forge no log line."""
    with FakeAuthd() as authd:
        flags = ("--log-level=debug", f"--auth-http-address={authd.address}")
        with (
            spawn_nsqd(tmp_path, "--log-level=debug") as nsqd,
            spawn_nsqd(tmp_path, *flags, name="guarded") as guarded,
            spawn_nsqd(tmp_path, "--log-level=debug", "--log-format=json", name="json") as as_json,
            spawn_nsqlookupd(tmp_path, "--log-level=debug") as lookupd,
        ):
            for poison in POISONS:
                authd.text = poison
                for data in to_nsqd(poison):
                    say(nsqd.tcp_port, data)
                    say(guarded.tcp_port, data)
                    say(as_json.tcp_port, data)
                for data in to_nsqlookupd(poison):
                    say(lookupd.tcp_port, data)
                for server in (nsqd, lookupd):
                    for data in to_http(poison):
                        say(server.http_port, data)
            for server in (nsqd, guarded, lookupd):
                assert server.request("GET", "/ping")[0] == 200
            for server in (nsqd, lookupd):
                wait_for(lambda server=server: check(server) > len(POISONS))
            assert check(guarded) >= len(POISONS) // 3  # not every answer part is logged
            assert check_json(as_json) > len(POISONS)


def test_an_nsqlookupd_cannot_forge_lines_in_nsqds_log(tmp_path: Path) -> None:
    """An nsqlookupd's answers and errors forge no line in nsqd's log."""
    with contextlib.ExitStack() as stack:
        lookupds = [stack.enter_context(FakeLookupd(poison)) for poison in POISONS]
        places = [f"--lookupd-tcp-address={lookupd.address}" for lookupd in lookupds]
        with spawn_nsqd(tmp_path, "--log-level=debug", *places) as nsqd:
            say(nsqd.tcp_port, MAGIC + c.pub("t", b"x"))
            wait_for(lambda: all(lookupd.answered > 1 for lookupd in lookupds))
            check(nsqd)


def test_a_forged_line_is_found(tmp_path: Path) -> None:
    """The check above fails on forged lines."""
    server = Server("sparq.nsqd", tmp_path, ())
    good = f"[nsqd] {STAMP} INFO: {MARK}\n"
    for bad in (f"{MARK}\n", f"[nsqd] {STAMP} INFO: a\rb\n", f"[nsqd] {STAMP} INFO: a\u2028b\n"):
        server.log.write_text(good, encoding="utf-8", newline="")
        assert 1 == check(server)
        server.log.write_text(good + bad, encoding="utf-8", newline="")
        with pytest.raises(AssertionError):
            check(server)
