"""Malicious compressed data (bombs, false lengths, floods) costs nsqd limited memory."""

import contextlib
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cramjam import snappy

from sparq.protocol.commands import identify
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK_BYTES, V2Client

GROWTH_KIB_MAX = 16 << 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    with spawn_nsqd(tmp_path_factory.mktemp("compression")) as found:
        yield found


def peak_kib(server: NsqdServer) -> int:
    """Return the peak memory of nsqd in KiB."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def upgraded(server: NsqdServer, kind: str) -> socket.socket:
    """Return a connection that has negotiated compression; its OK has been read."""
    client = V2Client(server, seconds=60)
    client.ask(identify(f'{{"feature_negotiation":true,"{kind}":true}}'.encode()))
    first = b""
    while OK_BYTES not in (inflated(kind, first) if first else b""):
        first += client.receive_some()
    return client.socket


def inflated(kind: str, data: bytes) -> bytes:
    if kind == "deflate":
        return zlib.decompressobj(-15).decompress(data)
    try:
        return bytes(snappy.decompress(data))
    except Exception:  # the data is not complete yet
        return b""


def deflated(piece: bytes, count: int) -> bytes:
    """Deflate `piece` and repeat the result, which can be decoded independently each time."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(piece) + deflater.flush(zlib.Z_FULL_FLUSH)) * count


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send the data until nsqd closes the connection."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        connection.sendall(data)


def test_a_compressed_flood_of_commands_does_not_block_http(server: NsqdServer) -> None:
    """25 million NOPs in 100 KiB are executed in parts; HTTP requests are answered in between."""
    connection = upgraded(server, "deflate")
    before = peak_kib(server)
    send_all(connection, deflated(b"NOP\n" * 250_000, 100))
    slowest = 0.0
    for _ in range(20):
        began = time.monotonic()
        assert (200, b"OK") == server.request("GET", "/ping")
        slowest = max(slowest, time.monotonic() - began)
    connection.close()

    # Executing a whole MiB of commands in one turn would already take longer.
    assert 10.0 > slowest
    assert GROWTH_KIB_MAX > peak_kib(server) - before


@pytest.mark.parametrize("kind", ["deflate", "snappy"])
def test_a_client_that_never_reads_uses_bounded_memory(server: NsqdServer, kind: str) -> None:
    """If a client does not read answers, its commands are stopped, and memory stays bounded."""
    connection = upgraded(server, kind)
    before = peak_kib(server)
    connection.settimeout(2)
    piece = b"FIN 0123456789abcdef\n"
    data = b"SUB t c\n" + piece * 1_000_000
    if kind == "deflate":
        send_all(connection, deflated(data, 1))
    else:
        send_all(connection, bytes(snappy.compress(data)))
    for _ in range(10):
        assert (200, b"OK") == server.request("GET", "/ping")
    connection.close()

    assert 2 * GROWTH_KIB_MAX > peak_kib(server) - before
