"""The protocol V1 on real sockets: exact bytes, who is disconnected, what the log says of it."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.nsqlookupd.tcp import LINE_BYTES_MAX, instant
from tests.nsqlookupd.mistakes import HELLO, MISTAKES
from tests.support.waiting import until

SECONDS = 30.0


@pytest.fixture
async def daemon() -> AsyncIterator[Nsqlookupd]:
    """A running nsqlookupd."""
    running = Nsqlookupd(
        NsqlookupdOptions(
            tcp_address="127.0.0.1:0", http_address="127.0.0.1:0", broadcast_address="lookup.here"
        )
    )
    await running.start()
    yield running
    await running.stop()


def answer(data: bytes) -> bytes:
    """An answer as it must come: its size, and no frame type."""
    return struct.pack(">i", len(data)) + data


def introduction(daemon: Nsqlookupd) -> bytes:
    """The answer to IDENTIFY."""
    facts = {
        "tcp_port": daemon.tcp_port,
        "http_port": daemon.http_port,
        "version": "1.3.0",
        "broadcast_address": "lookup.here",
        "hostname": socket.gethostname(),
    }
    return answer(json.dumps(facts, separators=(",", ":")).encode())


async def all_answers(daemon: Nsqlookupd, sent: bytes) -> bytes:
    """All that is answered until nsqlookupd ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    writer.write(sent)
    async with asyncio.timeout(SECONDS):
        found = await reader.read()
    writer.close()
    return found


@pytest.mark.behaviour("nsqlookupd.TestIOLoopReturnsClientErrWhenSendSucceeds")
@pytest.mark.parametrize(("commands", "error"), MISTAKES)
async def test_a_mistake_is_answered_and_is_the_end(
    daemon: Nsqlookupd, caplog: pytest.LogCaptureFixture, commands: bytes, error: bytes
) -> None:
    """To the byte; every error is fatal, what stands behind it is not executed, the log has it."""
    before = b"".join(introduction(daemon) for _ in range(commands.startswith(HELLO)))

    found = await all_answers(daemon, b"  V1" + commands + b"PING\n")

    assert found == before + answer(error)
    assert error.decode("utf-8", "replace") in caplog.text
    assert daemon.registry.nodes(instant()) == []


@pytest.mark.parametrize("magic", [b"  V2", b"  v1", b"GET ", b"\x00\x00\x00\x00"])
async def test_another_protocol_is_refused(daemon: Nsqlookupd, magic: bytes) -> None:
    """Who is no client of V1 is told so."""
    assert await all_answers(daemon, magic + b"PING\n") == answer(b"E_BAD_PROTOCOL")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (b"PING\n", b"OK"),
        (b"PING ignored words\n", b"OK"),
        (b" \tPING\r\n", b"OK"),
        (HELLO + b"PING\n", b"OK"),
        (HELLO + b"REGISTER t\n", b"OK"),
        (HELLO + b"REGISTER t c\n", b"OK"),
        (HELLO + b"REGISTER t c more\n", b"OK"),
        (HELLO + b"REGISTER t#ephemeral c#ephemeral\r\n", b"OK"),
        (HELLO + b"REGISTER t \n", b"OK"),
        (HELLO + b"UNREGISTER t\n", b"OK"),
        (HELLO + b"UNREGISTER t c\n", b"OK"),
    ],
)
async def test_a_legal_command_leaves_the_connection(
    daemon: Nsqlookupd, command: bytes, said: bytes
) -> None:
    """It is answered, and so is the next one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    writer.write(b"  V1" + command)
    wanted = introduction(daemon) * command.startswith(HELLO) + answer(said)
    async with asyncio.timeout(SECONDS):
        assert await reader.readexactly(len(wanted)) == wanted
        writer.write(b"PING\n")
        assert await reader.readexactly(6) == answer(b"OK")
    writer.close()


async def test_a_line_that_is_too_long_is_the_end(daemon: Nsqlookupd) -> None:
    """Without an answer, as nsqd does with its own."""
    assert await all_answers(daemon, b"  V1" + b"x" * LINE_BYTES_MAX) == b""


@pytest.mark.behaviour("nsqlookupd.TestIOLoopReturnsClientErrWhenSendFails")
async def test_who_does_not_wait_for_the_error_is_logged_all_the_same(
    daemon: Nsqlookupd, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer's mistake is what the log tells, not that it could not be told of it."""
    with socket.create_connection(("127.0.0.1", daemon.tcp_port)) as rude:
        # Closed with a reset: whatever is sent to it fails.
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.sendall(b"  V1" + HELLO + b"NONSENSE\n")
    told = "E_INVALID invalid command NONSENSE"
    await until(lambda: told in caplog.text and not daemon.connections)

    assert {r.levelno for r in caplog.records if "NONSENSE" in r.getMessage()} == {logging.ERROR}
    assert daemon.registry.nodes(instant()) == []
    assert await all_answers(daemon, b"  V1BAD\n") == answer(b"E_INVALID invalid command BAD")
