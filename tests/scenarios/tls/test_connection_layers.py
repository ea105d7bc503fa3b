"""client.connection through TLS and compression: bounded turns, damaged data and closing.

The peer is the handshake's in-memory counterpart behind a real socket, so that it can do what no
nsqd does.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sparq.client.config import Config
from sparq.client.connection import TURN_BYTES, Connection, open_connection
from sparq.protocol import commands
from sparq.protocol.compression import PIECE_BYTES
from sparq.protocol.receiver import MessageRun
from tests.client.certificates import Certificates, certificates, server_context
from tests.client.counterpart import Counterpart
from tests.client.scripted import listening, message_frame
from tests.support.waiting import until

ALL = {"tls_v1": True, "snappy": True, "deflate": True}
KINDS: dict[str, dict[str, bool]] = {
    "tls": {"tls_v1": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True},
    "tls+snappy": {"tls_v1": True, "snappy": True},
    "tls+deflate": {"tls_v1": True, "deflate": True},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Valid and invalid certificates."""
    return certificates(tmp_path_factory.mktemp("certificates"))


class Nsqd:
    """A listening counterpart, and its socket to send more on."""

    def __init__(self, files: Certificates) -> None:
        self.counterpart = Counterpart(dict(ALL), server_context(files))
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.writer = writer
        while data := await reader.read(65_536):
            writer.write(self.counterpart.receive(data))

    def send(self, data: bytes, damage: Callable[[bytearray], None] | None = None) -> None:
        """Send plain bytes through the layers, optionally damaged afterwards."""
        assert self.writer is not None
        self.counterpart.send(data)
        sealed, self.counterpart._out = bytearray(self.counterpart._out), b""
        if damage is not None:
            damage(sealed)
        self.writer.write(sealed)


@contextlib.asynccontextmanager
async def connected(files: Certificates, kind: str) -> AsyncIterator[tuple[Nsqd, Connection]]:
    """Yield a connection with these layers, and its peer."""
    nsqd = Nsqd(files)
    options: dict[str, Any] = dict(KINDS[kind])
    if "tls" in kind:
        options["tls_root_ca_file"] = str(files.authority)
    async with listening(nsqd.serve) as address:
        connection = await open_connection(address, Config(**options))
        try:
            yield nsqd, connection
        finally:
            await connection.close()


async def test_commands_of_a_turn_are_one_tls_record(
    files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of one turn are sent as one TLS record: one per FIN would double TLS's cost."""
    async with connected(files, "tls") as (nsqd, connection):
        written: list[int] = []
        write = connection._write

        def record(data: bytes) -> None:
            written.append(len(data))
            write(data)

        monkeypatch.setattr(connection, "_write", record)
        for number in range(100):
            connection.send(commands.fin(b"%016x" % number))
        await until(lambda: len(nsqd.counterpart.received) == 101, 30)
        monkeypatch.undo()

    assert len(written) == 1
    assert written[0] < 100 * len(commands.fin(bytes(16))) + 50


async def test_inflated_data_is_processed_over_several_turns(files: Certificates) -> None:
    """Inflating 64 MiB is split over turns of the loop, and reading is paused meanwhile."""
    async with connected(files, "deflate") as (nsqd, connection):
        turns: list[int] = []
        paused: list[bool] = []
        transport: Any = connection._transport

        def received(run: MessageRun) -> None:
            turns[-1] += sum(map(len, run.bodies()))

        def turn() -> None:
            if turns:
                paused.append(not transport.is_reading())
            turns.append(0)
            if not connection._lost.done():
                asyncio.get_running_loop().call_soon(turn)

        connection.on_messages = received
        turn()
        size, count = 100_000, 640
        nsqd.send(b"".join(message_frame(number, bytes(size)) for number in range(count)))
        await until(lambda: sum(turns) == count * size, 60)
        assert max(turns) <= TURN_BYTES + PIECE_BYTES + size
        assert any(paused)
        await until(transport.is_reading, 30)


async def test_a_frame_over_64_mib_is_refused(files: Certificates) -> None:
    """A frame over 64 MiB is refused by its size, since it costs a compressing sender nothing."""
    async with connected(files, "snappy") as (nsqd, connection):
        nsqd.send((64 << 20 | 5).to_bytes(4, "big") + bytes(4))
        lost = await connection.ended()

    assert "size 67108869" in str(lost)
