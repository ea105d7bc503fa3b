"""Silent, slow and vanished clients are disconnected, and affect no others (N-1, N-2, N-4)."""

import contextlib
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparq.protocol.commands import identify, pub, rdy, sub
from tests.scenarios.security.attackers import honest, introduced, raw, until, until_closed, v2
from tests.support.certificates import Certificates
from tests.support.servers import NsqdServer, Server, free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import MAGIC, OK

SILENT = 500
SLOW = 12
STRICT = ("--first-command-timeout=5s", "--http-request-timeout=5s", "--min-receive-rate=1024")
HEAD = b"GET /ping HTTP/1.1\r\nX-Slow: "
BODY = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
TLS_PLEASE = MAGIC + identify(b'{"feature_negotiation":true,"tls_v1":true}')
Shows = Callable[[str], None]


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """An nsqd with TLS and short timeouts."""
    folder = tmp_path_factory.mktemp("nsqd")
    Certificates.make(folder)
    tls = (f"--tls-cert={folder}/server.crt", f"--tls-key={folder}/server.key")
    https = f"--https-address=127.0.0.1:{free_port()}"
    with spawn_nsqd(folder, *STRICT, *tls, https) as server:
        yield server


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An nsqlookupd with a short HTTP timeout."""
    folder = tmp_path_factory.mktemp("nsqlookupd")
    with spawn_nsqlookupd(folder, "--http-request-timeout=5s") as server:
        yield server


def https_port(server: NsqdServer) -> int:
    (port,) = [flag.rpartition(":")[2] for flag in server.flags if flag.startswith("--https")]
    return int(port)


@pytest.mark.timeout(300)
@pytest.mark.security("N-1")
def test_silent_connections_are_closed(nsqd: NsqdServer, lookupd: Server, shows: Shows) -> None:
    """500 connections that fall silent (before or after the magic, in TLS, in HTTP) are closed."""
    ways = (
        *((nsqd.tcp_port, data) for data in (b"", b" ", MAGIC, MAGIC + b"NO", TLS_PLEASE)),
        *((nsqd.http_port, data) for data in (b"", b"GET /ping HTT", b"POST /pub?topic=t")),
        *((https_port(nsqd), data) for data in (b"", b"\x16\x03\x01")),
        *((lookupd.http_port, data) for data in (b"", b"GET /ping HTT")),
    )
    with honest(nsqd), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(raw(*ways[number % len(ways)])) for number in range(SILENT)]
        seconds = until_closed(silent)

    shows(f"silent connections {SILENT} · closed {SILENT} · the last after {seconds:.1f} s")


@pytest.mark.security("N-1")
def test_a_client_may_be_silent_after_its_first_command(nsqd: NsqdServer) -> None:
    """A client that has sent a command in time may stay idle."""
    with v2(nsqd) as idle, v2(nsqd) as silent:
        assert idle.ask(pub("idle", b"x"))[0] == 0
        until_closed([silent])

        assert idle.ask(pub("idle", b"x"))[0] == 0


class SlowSender:
    """Connections that send one byte at a time."""

    def __init__(self, server: Server, port: int, begin: bytes) -> None:
        self.connections = [raw(port, begin) for _ in range(SLOW)]

    def drip(self) -> None:
        """Send one byte on each connection."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.socket.setblocking(False)
                connection.send(b"x")

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


@pytest.mark.timeout(300)
@pytest.mark.security("N-2")
def test_data_that_arrives_too_slowly_ends_the_connection(
    nsqd: NsqdServer, lookupd: Server, shows: Shows
) -> None:
    """A client that sends a line, body, MPUB or HTTP head byte by byte is closed; others work."""
    mpub = MAGIC + b"NOP\nMPUB t\n" + struct.pack(">iii", 5_000, 3, 1_000)
    ways = (
        (nsqd.tcp_port, MAGIC + b"NOP\nPU"),
        (nsqd.tcp_port, MAGIC + b"NOP\nPUB t\n" + struct.pack(">i", 1_000)),
        (nsqd.tcp_port, MAGIC + b"NOP\nIDENTIFY\n" + struct.pack(">i", 1_000)),
        (nsqd.tcp_port, mpub),
        (nsqd.http_port, HEAD),
        (nsqd.http_port, BODY),
        (lookupd.http_port, HEAD),
    )
    slow = [SlowSender(nsqd, port, begin) for port, begin in ways]
    with honest(nsqd) as somebody, contextlib.ExitStack() as stack:
        for drip in slow:
            stack.callback(drip.close)
        before, began = somebody.count, time.monotonic()
        left = [connection for drip in slow for connection in drip.connections]

        def all_closed() -> bool:
            for drip in slow:
                drip.drip()
            left[:] = [connection for connection in left if connection.is_open()]
            return not left

        until(all_closed, 120)
        seconds = time.monotonic() - began
        served = somebody.count - before

    count = len(ways) * SLOW
    shows(f"slow connections {count} · closed {count} in {seconds:.1f} s · others: {served:,} OKs")


@pytest.mark.timeout(300)
@pytest.mark.security("N-2")
@pytest.mark.skipif(shutil.which("slowhttptest") is None, reason="needs slowhttptest")
@pytest.mark.parametrize("way", ["-H", "-B"], ids=["heads", "bodies"])
def test_slowhttptest_does_not_stop_the_service(
    nsqd: NsqdServer, tmp_path: Path, way: str, shows: Shows
) -> None:
    """slowhttptest reports nsqd as available throughout its attack."""
    url = f"http://127.0.0.1:{nsqd.http_port}/{'ping' if way == '-H' else 'pub?topic=t'}"
    rate = ("-c", "200", "-r", "100", "-i", "1", "-l", "12", "-p", "10")
    program = ["slowhttptest", way, "-u", url, *rate, "-t", "GET" if way == "-H" else "POST"]
    with honest(nsqd):
        said = subprocess.run(
            program, cwd=tmp_path, capture_output=True, timeout=120, check=True, text=True
        ).stdout
    found = set(re.findall(r"service available:\S*\s+(?:\x1b\[[0-9;]*m)*(\w+)", said))

    assert {"YES"} == found, said[-2000:]
    shows(f"slowhttptest {way}: service available {found.pop()}")


@pytest.mark.timeout(300)
@pytest.mark.security("N-4")
def test_a_dead_client_is_disconnected(nsqd: NsqdServer, shows: Shows) -> None:
    """A client that answers no heartbeats, or reads nothing, is disconnected."""
    for _ in range(50):
        assert nsqd.post("/mpub?topic=gone", (b"x" * 1_000 + b"\n") * 1_000) == b"OK"
    quiet, _ = introduced(nsqd, heartbeat_interval=1_000)
    stuck, _ = introduced(nsqd, heartbeat_interval=1_000)
    with quiet, stuck:
        for client in (quiet, stuck):
            assert client.ask(sub("gone", "c")) == OK
        stuck.send(rdy(2_500))  # from here on it reads nothing
        seconds = until(lambda: nsqd.channel("gone", "c")["client_count"] == 0)

    shows(f"half-open peers 2 · gone 2 after {seconds:.1f} s, heartbeats every 1.0 s")


@pytest.mark.security("N-4")
def test_disabled_heartbeats_can_be_refused(tmp_path: Path) -> None:
    """With --require-heartbeats, an IDENTIFY that disables heartbeats gets E_BAD_BODY."""
    with spawn_nsqd(tmp_path, "--require-heartbeats") as server, v2(server) as client:
        answer = client.ask(identify(b'{"heartbeat_interval":-1}'))

        assert (1, b"E_BAD_BODY IDENTIFY heartbeat interval (-1) is invalid") == answer
        until_closed([client])
