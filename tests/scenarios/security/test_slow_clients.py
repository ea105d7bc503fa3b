"""Silent, slow and vanished clients are disconnected, and affect no others (N-1, N-2, N-4)."""

import contextlib
import struct
from collections.abc import Iterator

import pytest

from sparq.protocol.commands import identify
from tests.scenarios.security.attackers import honest, raw, until, until_closed
from tests.support.certificates import Certificates
from tests.support.servers import NsqdServer, Server, free_port, spawn_nsqd, spawn_nsqlookupd
from tests.support.v2_client import MAGIC

SILENT = 500
SLOW = 12
STRICT = ("--first-command-timeout=3s", "--http-request-timeout=3s", "--min-receive-rate=1024")
HEAD = b"GET /ping HTTP/1.1\r\nX-Slow: "
BODY = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
TLS_PLEASE = MAGIC + identify(b'{"feature_negotiation":true,"tls_v1":true}')


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
    with spawn_nsqlookupd(folder, "--http-request-timeout=3s") as server:
        yield server


def https_port(server: NsqdServer) -> int:
    (port,) = [flag.rpartition(":")[2] for flag in server.flags if flag.startswith("--https")]
    return int(port)


@pytest.mark.timeout(300)
def test_silent_connections_are_closed(nsqd: NsqdServer, lookupd: Server) -> None:
    """500 connections that fall silent (before or after the magic, in TLS, in HTTP) are closed."""
    ways = (
        *((nsqd.tcp_port, data) for data in (b"", b" ", MAGIC, MAGIC + b"NO", TLS_PLEASE)),
        *((nsqd.http_port, data) for data in (b"", b"GET /ping HTT", b"POST /pub?topic=t")),
        *((https_port(nsqd), data) for data in (b"", b"\x16\x03\x01")),
        *((lookupd.http_port, data) for data in (b"", b"GET /ping HTT")),
    )
    with honest(nsqd), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(raw(*ways[number % len(ways)])) for number in range(SILENT)]
        until_closed(silent)


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
def test_data_that_arrives_too_slowly_ends_the_connection(
    nsqd: NsqdServer, lookupd: Server
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
    with honest(nsqd), contextlib.ExitStack() as stack:
        for drip in slow:
            stack.callback(drip.close)
        left = [connection for drip in slow for connection in drip.connections]

        def all_closed() -> bool:
            for drip in slow:
                drip.drip()
            left[:] = [connection for connection in left if connection.is_open()]
            return not left

        until(all_closed, 120)
