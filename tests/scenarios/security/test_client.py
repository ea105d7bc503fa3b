"""The client library with hostile nsqlookupds and nsqds (N-11)."""

import asyncio
import json
import logging
import ssl
import struct
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest

from sparq.client import Consumer
from tests.client.certificates import Certificates, certificates, server_context
from tests.client.scripted import close, frame, listening, message_frame
from tests.support.waiting import until

MIB = 1 << 20
FLOOD_BYTES = 128 * MIB
"""Maximum number of bytes sent, far more than the client may keep."""
BOMB_MIB = 128
KEPT_BYTES_MAX = 48 * MIB
PIECE = 64 << 10
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress log lines: the tests check ``errors``."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


@pytest.fixture
def memory() -> Iterator[Callable[[], int]]:
    """Return a function that returns the peak of allocated bytes since the start of the test."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


async def pour(writer: asyncio.StreamWriter, piece: bytes, size: int = FLOOD_BYTES) -> None:
    """Send the piece repeatedly, up to `size` bytes or until the client disconnects."""
    for _ in range(size // len(piece)):
        writer.write(piece)
        await writer.drain()


# nsqlookupd


@cache
def packed_spaces() -> bytes:
    """Return many spaces, deflated."""
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(b" " * MIB) for _ in range(BOMB_MIB)) + packer.flush()


def of_length(body: bytes, more: bytes = b"") -> bytes:
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


PRODUCERS = b",".join(b'{"broadcast_address":"h%d","tcp_port":1}' % n for n in range(20_000))
ANSWERS: dict[str, tuple[Callable[[], bytes], bytes]] = {
    "no end": (lambda: HEAD + b"\r\n[", b" " * PIECE),
    "a head without end": (lambda: HEAD, b"".join(b"X-%d: y\r\n" % n for n in range(6000))),
    "a line without end": (lambda: HEAD + b"X: ", b"y" * PIECE),
    "a bomb": (lambda: of_length(packed_spaces(), b"Content-Encoding: deflate\r\n"), b""),
    "too many": (lambda: of_length(b'{"producers":[%s]}' % PRODUCERS), b""),
    "too deep": (lambda: of_length(b"[" * MIB), b""),
    "never": (lambda: HEAD, b""),
}
"""How each answer begins, and what is repeated after that."""


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_nsqlookupd_cannot_fill_the_memory(name: str, memory: Callable[[], int]) -> None:
    """Whatever an nsqlookupd answers, a consumer keeps < 48 MiB and reports an error."""
    begin, piece = ANSWERS[name]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begin())
        if piece:
            await pour(writer, piece)

    async with listening(talk) as address:
        seconds = 0.5 if name == "never" else 60.0
        options = {"lookupd_poll_interval": 0.1, "lookupd_poll_timeout": seconds}
        async with Consumer("t", "c", lookupd_http_addresses=address, **options) as consumer:
            await until(lambda: consumer.errors, 60)
            [place] = consumer.errors
            assert place == f"http://{address}/lookup"
            assert consumer.errors[place]
            assert consumer.connections == []
    assert memory() < KEPT_BYTES_MAX


# nsqd


def greeting(**facts: Any) -> bytes:
    """Return an answer to IDENTIFY."""
    return frame(0, json.dumps({"max_rdy_count": 2500, "msg_timeout": 60_000, **facts}).encode())


async def subscribe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve like an honest nsqd, up to RDY."""
    await reader.readuntil(b"IDENTIFY\n")
    writer.write(greeting())
    await reader.readuntil(b"SUB t c\n")
    writer.write(frame(0, b"OK"))
    await reader.readuntil(b"RDY 10\n")


FLOODS: dict[str, tuple[bool, bytes, Callable[[int], bytes]]] = {
    "promises": (True, struct.pack(">ii", 2**31 - 1, 2), lambda _: b"x" * PIECE),
    "greets without end": (False, struct.pack(">ii", FLOOD_BYTES, 0), lambda _: b"x" * PIECE),
    "heeds no RDY": (True, b"", lambda number: message_frame(number, b"b" * PIECE)),
    "answers unasked": (True, b"", lambda _: frame(0, b"OK") * 5000),
    "says what it likes": (True, b"", lambda _: frame(0, b"SIZE\n" * 1000)),
}
"""Whether nsqd is honest up to RDY, how its flood begins, and each piece of it."""


@pytest.mark.parametrize("name", FLOODS)
async def test_an_nsqd_cannot_fill_the_memory(name: str, memory: Callable[[], int]) -> None:
    """Frames, IDENTIFY answers and messages beyond the limits end the connection, in < 48 MiB."""
    is_honest, begin, piece = FLOODS[name]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_honest:
            await subscribe(reader, writer)
        else:
            await reader.readuntil(b"IDENTIFY\n")
        writer.write(begin)
        for number in range(FLOOD_BYTES // len(piece(0))):
            writer.write(piece(number))
            await writer.drain()

    options = {"max_in_flight": 10, "max_msg_size": MIB}
    async with (
        listening(talk) as address,
        Consumer("t", "c", nsqd_tcp_addresses=address, **options) as consumer,
    ):
        await until(lambda: address in consumer.errors, 60)
        assert consumer.in_flight == 0
        words = ("size", "RDY", "without a request")
        assert any(word in consumer.errors[address] for word in words), consumer.errors
    assert memory() < KEPT_BYTES_MAX


# Names


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def tls_server(context: ssl.SSLContext) -> AsyncIterator[str]:
    """Run a server that uses TLS from the first byte, and sends nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await close(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_host_names_are_verified_by_default(files: Certificates) -> None:
    """An nsqlookupd with another host's certificate is refused (nsqds: wire/test_client.py)."""
    async with tls_server(server_context(files, files.elsewhere)) as address:
        place = f"https://{address}"
        options = {"tls_root_ca_file": str(files.authority)}
        async with Consumer("t", "c", lookupd_http_addresses=place, **options) as consumer:
            await until(lambda: consumer.errors)
            assert "certificate" in consumer.errors[f"{place}/lookup"].lower()
