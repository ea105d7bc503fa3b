"""Malicious compressed data (bombs, false lengths, floods) costs nsqd limited memory."""

import contextlib
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cramjam import snappy

from sparq.protocol.commands import identify
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.v2_client import OK_BYTES, V2Client

MEBIBYTE = 1 << 20
GROWTH_KIB_MAX = 16 << 10
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"


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


def is_dropped(connection: socket.socket) -> bool:
    """Read until the connection ends."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    connection.close()
    return True


def deflated(piece: bytes, count: int) -> bytes:
    """Deflate `piece` and repeat the result, which can be decoded independently each time."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(piece) + deflater.flush(zlib.Z_FULL_FLUSH)) * count


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send the data until nsqd closes the connection."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        connection.sendall(data)


ZEROS = deflated(bytes(MEBIBYTE), 1024)
HEAD = b"MPUB t\n" + struct.pack(">ii", 5 * MEBIBYTE, 5)
BOMBS = {
    "a line without end": ("deflate", ZEROS),
    "a command larger than any": (
        "deflate",
        deflated(b"PUB t\n" + struct.pack(">i", 1 << 30), 1) + ZEROS,
    ),
    "messages larger than any": ("deflate", deflated(HEAD + struct.pack(">i", 1 << 30), 1) + ZEROS),
    "chunks of zeros": ("snappy", bytes(snappy.compress(bytes(64 * MEBIBYTE)))),
    "a chunk that claims 2 GiB": (
        "snappy",
        IDENTIFIER + b"\x00\x0b\x00\x00" + b"\0\0\0\0" + b"\x80\x80\x80\x80\x08" + b"\0a",
    ),
    "a chunk larger than any": ("snappy", IDENTIFIER + b"\x00\xff\xff\xff" + bytes(1 << 16)),
    "a wrong checksum": ("snappy", IDENTIFIER + b"\x01\x09\x00\x00" + b"\0\0\0\0hello"),
    "no snappy": ("snappy", b"NOP\n" * 1000),
    "no deflate": ("deflate", b"\x07" * 1000),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_decompression_bomb_ends_the_connection(server: NsqdServer, bomb: str) -> None:
    """A decompression bomb ends its connection, and peak memory grows by less than 16 MiB."""
    kind, data = BOMBS[bomb]
    connection = upgraded(server, kind)
    before = peak_kib(server)
    send_all(connection, data)

    assert is_dropped(connection)
    assert GROWTH_KIB_MAX > peak_kib(server) - before
    assert (200, b"OK") == server.request("GET", "/ping")


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
