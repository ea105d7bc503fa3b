"""client.connection: IDENTIFY, answers in order, and every way in which a connection can end."""

import asyncio
import gc
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from sparq.client.config import Config
from sparq.client.connection import WRITE_CHECKS, open_connection
from sparq.client.errors import ConnectionLostError
from sparq.protocol import commands
from sparq.protocol.errors import RemoteError
from tests.client.certificates import certificates, server_context
from tests.client.counterpart import Counterpart
from tests.client.scripted import (
    frame,
    listening,
    scripted,
)
from tests.support.servers import free_port
from tests.support.waiting import let_all_run, until


async def test_answers_are_matched_to_requests_in_order() -> None:
    """OK and E_ answers are matched to requests in order, also after a cancelled request."""
    async with scripted() as [nsqd]:
        answers = [b"OK", b"E_PUB_FAILED PUB failed disk full", b"OK"]
        nsqd.on_publish = lambda peer, words, body: answers.pop(0)
        connection = await open_connection(nsqd.address, Config())
        cancelled, refused, good = (
            connection.request(commands.pub("t", body)) for body in (b"1", b"2", b"3")
        )
        assert connection.waiting_bytes > 0
        cancelled.cancel()

        with pytest.raises(RemoteError, match="disk full"):
            await refused
        assert await good == b"OK"
        assert connection.live
        assert connection.waiting_bytes == 0
        await connection.close()


async def test_requests_after_a_fatal_error_were_not_executed() -> None:
    """A fatal error fails its request; later ones get ConnectionLostError, ``executed`` False."""
    async with scripted() as [nsqd]:
        nsqd.on_publish = lambda peer, words, body: b"E_BAD_TOPIC no" if body == b"1" else None
        connection = await open_connection(nsqd.address, Config())
        first, second = (connection.request(commands.pub("t", body)) for body in (b"1", b"2"))

        with pytest.raises(RemoteError) as refused:
            await first
        with pytest.raises(ConnectionLostError) as lost:
            await second

        assert (refused.value.code, refused.value.fatal) == ("E_BAD_TOPIC", True)
        assert lost.value.executed is False
        assert "E_BAD_TOPIC" in str(lost.value)
        with pytest.raises(ConnectionLostError):
            connection.request(commands.pub("t", b"3"))


async def test_after_a_lost_connection_it_is_unknown_whether_requests_were_executed() -> None:
    """When nsqd disconnects, ``executed`` is None: it may have executed the request."""
    async with scripted() as [nsqd]:
        nsqd.on_publish = lambda peer, words, body: peer.hang_up()
        connection = await open_connection(nsqd.address, Config())

        with pytest.raises(ConnectionLostError) as lost:
            await connection.request(commands.pub("t", b"1"))

        assert lost.value.executed is None
        assert not connection.live
        await connection.ended()


@pytest.mark.parametrize("kind", ["plain", "tls_v1", "snappy", "deflate"])
async def test_answers_sent_before_a_reset_reach_their_requests(kind: str, tmp_path: Path) -> None:
    """Answers that nsqd sent before a reset reach their requests, even if a write failed since."""
    files = certificates(tmp_path)
    counterpart = Counterpart({kind: True}, server_context(files))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(counterpart.received) < 3:
            writer.write(counterpart.receive(await reader.read(1 << 16)))
        counterpart.send(frame(0, b"OK") + frame(1, b"E_BAD_MESSAGE PUB message too big"))
        writer.write(counterpart._out)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        # After the reset, and before the answers are read.
        asyncio.get_running_loop().call_soon(late.append, connection.request(b"NOP\n"))

    late: list[asyncio.Future[bytes]] = []
    asked: dict[str, Any] = {} if kind == "plain" else {kind: True}
    if kind == "tls_v1":
        asked["tls_root_ca_file"] = str(files.authority)
    async with listening(answer) as address:
        connection = await open_connection(address, Config.of(None, asked))
        good, bad = (connection.request(b"NOP\n") for _ in range(2))

        assert await good == b"OK"
        with pytest.raises(RemoteError, match="too big"):
            await bad
        with pytest.raises(ConnectionLostError) as lost:
            await late[0]
        assert lost.value.executed is False


async def test_heartbeats_are_answered() -> None:
    """Each heartbeat gets a NOP."""
    async with scripted() as [nsqd]:
        connection = await open_connection(nsqd.address, Config())
        peer = await nsqd.peer()
        peer.send(0, b"_heartbeat_")
        peer.send(0, b"_heartbeat_")
        await until(lambda: nsqd.lines(b"NOP") == [b"NOP", b"NOP"])
        await connection.close()


async def test_a_connection_without_data_for_read_timeout_is_closed() -> None:
    """A connection is closed when no data arrive for read_timeout, with an error that states it."""
    async with scripted() as [nsqd]:
        connection = await open_connection(
            nsqd.address, Config(read_timeout=1.0, heartbeat_interval=1.0)
        )
        began = asyncio.get_running_loop().time()
        lost = await connection.ended()

        assert "no data received for 1 s" in str(lost)
        assert 0.9 < asyncio.get_running_loop().time() - began < 3


async def test_a_request_that_is_never_answered_ends_the_connection() -> None:
    """A request without an answer for publish_timeout ends the connection."""
    async with scripted() as [nsqd]:
        nsqd.on_publish = lambda peer, words, body: None
        connection = await open_connection(nsqd.address, Config(publish_timeout=0.2))

        with pytest.raises(ConnectionLostError, match=r"no answer within 0\.2 s"):
            await connection.request(commands.pub("t", b"1"))


async def test_refused_responses_are_counted_and_answer_no_request() -> None:
    """E_FIN_FAILED is counted and answers no request: the next OK still answers the publish."""
    async with scripted() as [nsqd]:

        def answer(peer: object, words: list[bytes], body: bytes) -> bytes:
            connection_peer.send(1, b"E_FIN_FAILED FIN 0 failed ID not in flight")
            return b"OK"

        nsqd.on_publish = answer
        connection = await open_connection(nsqd.address, Config())
        connection_peer = await nsqd.peer()

        assert await connection.request(commands.pub("t", b"1")) == b"OK"
        assert connection.refused_responses == 1
        await connection.close()


async def test_connecting_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed port is ConnectionRefusedError; no answer to IDENTIFY is a TimeoutError."""
    with pytest.raises(ConnectionRefusedError):
        await open_connection(f"127.0.0.1:{free_port()}", Config())

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"IDENTIFY\n")

    monkeypatch.setattr("sparq.client.connection.HANDSHAKE_SECONDS", 0.1)
    async with listening(say_nothing) as address:
        with pytest.raises(TimeoutError):
            await open_connection(address, Config())


async def test_drained_waits_above_the_high_water_mark() -> None:
    """``drained`` waits only while the transport is above its high-water mark and connected."""
    async with scripted() as [nsqd]:
        connection = await open_connection(nsqd.address, Config())
        await connection.drained()
        connection.pause_writing()
        waiting = asyncio.ensure_future(connection.drained())
        await let_all_run()
        assert not waiting.done()

        connection.resume_writing()
        await waiting
        connection.pause_writing()
        stuck = asyncio.ensure_future(connection.drained())
        connection.fail(TimeoutError("enough"))
        await stuck


@pytest.mark.parametrize("reads", [False, True])
async def test_only_a_peer_that_reads_nothing_is_given_up(reads: bool) -> None:
    """A peer that reads nothing for write_timeout is given up, one that reads slowly is not."""
    async with scripted() as [nsqd]:
        connection = await open_connection(nsqd.address, Config(write_timeout=0.1))
        checks: list[int] = []

        class Full:
            """A transport whose buffer is full."""

            def get_write_buffer_size(self) -> int:
                checks.append(1)
                return 100_000 - reads * (len(checks) // WRITE_CHECKS)

            def __getattr__(self, name: str) -> Any:
                return getattr(transport, name)

        transport, connection._transport = connection._transport, Full()
        connection.pause_writing()
        if reads:
            await until(lambda: len(checks) >= 4 * WRITE_CHECKS)
            assert connection.live
            connection.resume_writing()
        else:
            assert "has not read any data for 0.1 s" in str(await connection.ended())
            assert len(checks) == WRITE_CHECKS + 1
        await connection.close()


async def test_cancelling_a_dial_leaves_no_exception_and_no_connection() -> None:
    """Cancelling at any point of the dial leaves no unretrieved exception and no connection."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with scripted() as [nsqd]:
        for turns in range(8):
            dialling = asyncio.ensure_future(open_connection(nsqd.address, Config()))
            await let_all_run(turns)
            dialling.cancel()
            await asyncio.wait([dialling])
            await until(lambda: not nsqd.peers)
        gc.collect()

    assert complaints == []
