"""The requirements for a producer, tested against real nsqds."""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from sparq.client import (
    ClosedError,
    ConnectionLostError,
    Producer,
    Receipt,
    RefusedError,
    RemoteError,
)
from tests.client.scripted import close
from tests.support.servers import NsqdServer, free_port
from tests.support.shared_daemons import SharedDaemons
from tests.support.v2_client import drain
from tests.support.waiting import until


async def test_ping(shared_daemons: SharedDaemons) -> None:
    """`ping` returns each nsqd that answers, with its time in seconds; if none does, it raises."""
    away = f"127.0.0.1:{free_port()}"
    first, second = shared_daemons.nsqds
    async with Producer([first.tcp, second.tcp, away]) as producer:
        answered = await producer.ping()
        assert {first.tcp, second.tcp} == answered.keys()
        assert all(0 < seconds < 5 for seconds in answered.values())
    async with Producer(lookupd_http_addresses=shared_daemons.lookupd.http) as producer:
        assert answered.keys() == (await producer.ping()).keys()
    async with Producer(first.tcp) as producer:
        await producer.until_connected()
        os.kill(first.pid, signal.SIGSTOP)
        with pytest.raises(ConnectionLostError, match=r"no answer within 0\.1 s"):
            await producer.ping(timeout_seconds=0.1)
        os.kill(first.pid, signal.SIGCONT)
    async with Producer(away) as producer:
        with pytest.raises(ConnectionLostError, match=away):
            await producer.ping()
    with pytest.raises(ClosedError):
        await producer.ping()


async def test_a_refusal_has_code_text_and_advice(shared_daemons: SharedDaemons) -> None:
    """A refusal has nsqd's error code and text, and names the option to change."""
    nsqd = shared_daemons.nsqds[0]
    too_many = [bytes(1 << 20)] * 6
    async with Producer(nsqd.tcp, max_reconnect_delay=0.1) as producer:
        for code, words, advice, publish in (
            ("E_BAD_MESSAGE", "too big", "--max-msg-size", producer.publish("t", bytes(2 << 20))),
            ("E_BAD_BODY", "too big", "--max-body-size", producer.multi_publish("t", too_many)),
            ("E_INVALID", "out of range", "delay", producer.publish_deferred("t", b"x", 90_000)),
        ):
            with pytest.raises(RemoteError, match=words) as refused:
                await publish
            assert isinstance(refused.value, RefusedError)
            assert code == refused.value.code
            assert advice in str(refused.value)
        assert Receipt(nsqd.tcp) == await producer.publish("fine", b"x")


@contextlib.asynccontextmanager
async def half_closing_proxy(nsqd: NsqdServer, mark: bytes) -> AsyncIterator[str]:
    """The address of a proxy that cuts the connection to nsqd in the middle of `mark`, once.

    nsqd reads the end of its input there; its responses still arrive.
    """
    cut: list[bool] = []
    serving: set[asyncio.Task[None]] = set()

    async def up(reader: asyncio.StreamReader, to_nsqd: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            at = -1 if cut else data.find(mark)
            to_nsqd.write(data if at < 0 else data[: at + len(mark) // 2])
            if at >= 0:
                cut.append(True)
                break
        to_nsqd.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type] # there is one
        from_nsqd, to_nsqd = await asyncio.open_connection("127.0.0.1", nsqd.tcp_port)
        upwards = asyncio.create_task(up(reader, to_nsqd))
        with contextlib.suppress(OSError):
            while data := await from_nsqd.read(1 << 16):
                writer.write(data)
        upwards.cancel()
        await asyncio.gather(upwards, return_exceptions=True)
        await close(to_nsqd)
        await close(writer)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()
    await asyncio.gather(*serving)
    assert cut


async def test_a_connection_cut_in_mid_command(shared_daemons: SharedDaemons) -> None:
    """A message cut off by a broken connection is sent again, and so are those after it.

    nsqd answers the incomplete command with E_BAD_MESSAGE. Each message is stored once, and none
    counts as possibly sent twice.
    """
    topic, nsqd = shared_daemons.make("cut"), shared_daemons.nsqds[0]
    async with half_closing_proxy(nsqd, b"the middle") as address:
        bodies = [b"first", b"the middle", *(b"%d" % number for number in range(20))]
        async with Producer(address, max_reconnect_delay=0.1) as producer:
            await until(lambda: producer.connections)
            receipts = await asyncio.gather(*(producer.publish(topic, body) for body in bodies))

    assert [1] + [2] * 21 == [receipt.attempts for receipt in receipts]
    assert 0 == producer.resent
    assert Counter(bodies) == Counter(await asyncio.to_thread(drain, nsqd, topic, "c"))
