"""The program nsqlookupd, as a process and as an object on real sockets."""

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sparq.daemon.address import ListenError
from sparq.nsqlookupd import tcp
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.nsqlookupd.server import Nsqlookupd
from sparq.nsqlookupd.tcp import LookupConnection
from tests.support.servers import spawn_nsqlookupd
from tests.support.waiting import until


def options(
    tcp_address: str = "127.0.0.1:0", http_address: str = "127.0.0.1:0"
) -> NsqlookupdOptions:
    return NsqlookupdOptions(tcp_address=tcp_address, http_address=http_address)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparq.nsqlookupd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_it_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """It listens, logs in NSQ's form, and SIGTERM ends it with 0, also with a peer connected."""
    with spawn_nsqlookupd(tmp_path, "--log-level=info") as server:
        assert server.request("GET", "/ping")[0] == 200
        assert server.terminate() == 0

    assert f"INFO: TCP: listening on {server.tcp}\n" in server.log_text
    assert server.log_text.startswith("[nsqlookupd] ")
    assert server.log_text.endswith("INFO: bye\n")


def test_a_taken_port_is_fatal() -> None:
    """The second one says why and ends with 1."""
    taken = run("--tcp-address=127.0.0.1:0", "--http-address=203.0.113.1:1")

    assert taken.returncode == 1
    assert taken.stderr.endswith(
        "FATAL: failed to instantiate nsqlookupd - "
        "listen (203.0.113.1:1) failed - cannot assign requested address\n"
    )


def test_a_mistake_ends_with_1_and_a_sentence() -> None:
    """It names the flag and what to write, as nsqd does; no usage."""
    bad = run("-tombstone-lifetime", "45")

    assert bad.returncode == 1
    assert bad.stderr.endswith("FATAL: --tombstone-lifetime=45: write a unit: 45s or 45ms\n")
    assert bad.stderr.count("\n") == 1


def test_the_version_is_printed() -> None:
    """One line, with the NSQ version that it speaks first, then sparq's; and no daemon."""
    line = r"nsqlookupd v1\.3\.0 \(built w/python3\.\d+\.\d+\) sparq [0-9.]+\S*\n"
    assert re.fullmatch(line, run("-version").stdout)


async def test_a_failed_start_leaves_nothing_open() -> None:
    """When the HTTP port cannot be had, the TCP port is free again."""
    first = Nsqlookupd(options())
    await first.start()
    where = f"127.0.0.1:{first.tcp_port}"
    with pytest.raises(ListenError):
        await Nsqlookupd(options("127.0.0.1:0", where)).start()
    await first.stop()

    again = Nsqlookupd(options(where))
    await again.start()
    await again.stop()


@pytest.fixture
async def daemon() -> AsyncIterator[Nsqlookupd]:
    """A running nsqlookupd."""
    running = Nsqlookupd(options())
    await running.start()
    yield running
    await running.stop()


async def test_an_error_is_read_before_the_end(daemon: Nsqlookupd) -> None:
    """A peer that still sends does not lose the answer to a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    writer.write(b"  V1BAD\n" + b"x" * 1_000_000)

    async with asyncio.timeout(10):
        assert await reader.read() == b"\x00\x00\x00\x1dE_INVALID invalid command BAD"
    writer.close()


async def test_a_silent_connection_is_closed(
    daemon: Nsqlookupd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without magic bytes a connection ends; behind them it may be silent."""
    monkeypatch.setattr(tcp, "MAGIC_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    greeted_reader, greeted = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
    greeted.write(b"  V1PING\n")
    assert await greeted_reader.readexactly(6) == b"\x00\x00\x00\x02OK"

    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(10):
            assert await reader.read() == b""
    greeted.write(b"PING\n")
    assert await greeted_reader.readexactly(6) == b"\x00\x00\x00\x02OK"
    writer.close()
    greeted.close()


async def test_a_peer_that_does_not_read_is_not_read(daemon: Nsqlookupd) -> None:
    """Its commands wait on its own side, not their answers here; all are answered in the end."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect(("127.0.0.1", daemon.tcp_port))
    reader, writer = await asyncio.open_connection(sock=narrow, limit=1 << 10)
    count = 1_000_000
    writer.write(b"  V1" + b"PING\n" * count)
    writer.write_eof()
    try:
        async with asyncio.timeout(20):
            paused = await stopped_reading(daemon)
            assert paused.unsent_bytes < 2 << 20
            received = 0
            while data := await reader.read(1 << 16):
                received += len(data)
            assert received == count * 6
    finally:
        writer.transport.abort()


async def stopped_reading(daemon: Nsqlookupd) -> LookupConnection:
    """The connection that the daemon has stopped to read."""

    def stopped() -> list[LookupConnection]:
        return [connection for connection in daemon.connections if not connection.is_reading]

    await until(stopped)
    return stopped()[0]
