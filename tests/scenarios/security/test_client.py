"""The client library with hostile nsqlookupds and nsqds (N-11)."""

import asyncio
import json
import logging
import ssl
import struct
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest

from sparq.client import Config, Consumer
from sparq.client.connection import open_connection
from sparq.client.errors import TlsError
from tests.client.certificates import Certificates, certificates, server_context
from tests.client.scripted import close, frame, listening, message_frame
from tests.support.waiting import until

MIB = 1 << 20
FLOOD_BYTES = 128 * MIB
"""Maximum number of bytes sent, far more than the client may keep."""
BOMB_MIB = 128
KEPT_BYTES_MAX = 48 * MIB
PIECE = 64 << 10
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
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


async def answer_without_end(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"\r\n[")
    await pour(writer, b" " * PIECE)


async def head_without_end(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    await pour(writer, b"".join(b"X-%d: y\r\n" % number for number in range(6000)))


async def line_without_end(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"X: ")
    await pour(writer, b"y" * PIECE)


@cache
def packed_spaces() -> bytes:
    """Return many spaces, deflated."""
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(b" " * MIB) for _ in range(BOMB_MIB)) + packer.flush()


async def bomb(writer: asyncio.StreamWriter) -> None:
    packed = packed_spaces()
    encoding = b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(packed)
    writer.write(HEAD + encoding + packed)


async def too_many(writer: asyncio.StreamWriter) -> None:
    producers = b",".join(
        b'{"broadcast_address":"h%d","tcp_port":1}' % number for number in range(20_000)
    )
    body = b'{"producers":[%s]}' % producers
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


async def too_deep(writer: asyncio.StreamWriter) -> None:
    body = b"[" * MIB
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


async def never(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)


@asynccontextmanager
async def web(answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Run an nsqlookupd that answers every request with this function."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)

    async with listening(talk) as address:
        yield address


@pytest.mark.parametrize(
    "answer",
    [
        *(answer_without_end, head_without_end, line_without_end, bomb),
        *(too_many, too_deep, never),
    ],
)
async def test_an_nsqlookupd_cannot_fill_the_memory(answer: Any, memory: Callable[[], int]) -> None:
    """Whatever an nsqlookupd answers, a consumer keeps < 48 MiB and reports an error."""
    async with web(answer) as address:
        seconds = 0.5 if answer is never else 60.0
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


async def promises(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await subscribe(reader, writer)
    writer.write(struct.pack(">ii", 2**31 - 1, 2))
    await pour(writer, b"x" * PIECE)


async def greets_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"IDENTIFY\n")
    writer.write(struct.pack(">ii", FLOOD_BYTES, 0))
    await pour(writer, b"x" * PIECE)


async def heeds_no_rdy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await subscribe(reader, writer)
    for number in range(FLOOD_BYTES // PIECE):
        writer.write(message_frame(number, b"b" * PIECE))
        await writer.drain()


async def answers_unasked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await subscribe(reader, writer)
    await pour(writer, frame(0, b"OK") * 5000)


async def says_what_it_likes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await subscribe(reader, writer)
    await pour(writer, frame(0, b"SIZE\n" * 1000))


@pytest.mark.parametrize(
    "talk",
    [promises, greets_without_end, heeds_no_rdy, answers_unasked, says_what_it_likes],
)
async def test_an_nsqd_cannot_fill_the_memory(talk: Talk, memory: Callable[[], int]) -> None:
    """Frames, IDENTIFY answers and messages beyond the limits end the connection, in < 48 MiB."""
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
    """A valid certificate of another host is refused, for nsqlookupds and for nsqds."""
    authority = str(files.authority)
    async with tls_server(server_context(files, files.elsewhere)) as address:
        place = f"https://{address}"
        options = {"tls_root_ca_file": authority}
        async with Consumer("t", "c", lookupd_http_addresses=place, **options) as consumer:
            await until(lambda: consumer.errors)
            assert "certificate" in consumer.errors[f"{place}/lookup"].lower()
    async with impostor(server_context(files, files.elsewhere)) as address:
        with pytest.raises(TlsError, match="mismatch"):
            await open_connection(address, Config(tls_root_ca_file=authority))
        unchecked = Config(tls_root_ca_file=authority, tls_insecure_skip_verify=True)
        await (await open_connection(address, unchecked)).close()


@asynccontextmanager
async def impostor(context: ssl.SSLContext) -> AsyncIterator[str]:
    """Run an nsqd that grants TLS with another host's certificate."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"IDENTIFY\n")
        writer.write(greeting(tls_v1=True))
        try:
            await writer.start_tls(context)
        except OSError:
            raise ConnectionError from None
        writer.write(frame(0, b"OK"))

    async with listening(talk) as address:
        yield address
