"""The requirements for a producer, tested against real nsqds."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparq.client import (
    ClosedError,
    ConnectionLostError,
    Consumer,
    Producer,
    PublishError,
    Receipt,
    RefusedError,
    RemoteError,
    WrongPeerError,
)
from sparq.client.config import Config
from sparq.client.connection import open_connection
from tests.client.scripted import close
from tests.scenarios.client_library.tap import Tap, tapped
from tests.support.servers import NsqdServer, free_port
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log lines of connection losses that the tests cause."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def producer_of(*taps: Tap, **options: Any) -> Producer:
    """A producer that publishes through taps and reconnects within 0.1 s."""
    return Producer([tap.address for tap in taps], **{"max_reconnect_delay": 0.1, **options})


def count(nsqd: NsqdServer, topic: str) -> int:
    """The topic's `message_count`."""
    topics = nsqd.get_json(f"/stats?format=json&topic={topic}")["topics"] or []
    return sum(int(found["message_count"]) for found in topics)


async def stored(nsqd: NsqdServer, topic: str) -> Counter[bytes]:
    """The bodies in the topic's channel "c", with the number of each."""
    depth = nsqd.channel(topic, "c")["depth"]
    bodies: Counter[bytes] = Counter()
    async with Consumer(topic, "c", nsqd_tcp_addresses=nsqd.tcp, max_in_flight=2500) as consumer:
        while bodies.total() < depth:
            message = await anext(consumer)
            bodies[message.body] += 1
            message.finish()
    return bodies


async def test_all_ways_to_publish(shared_daemons: SharedDaemons) -> None:
    """All publish methods store their messages and report OK, awaited or by a callback."""
    topic, nsqd = shared_daemons.make("ways"), shared_daemons.nsqds[0]
    outcomes: list[Any] = []
    async with Producer(nsqd.tcp) as producer:
        receipts = [
            await producer.publish(topic, b"one"),
            await producer.multi_publish(topic, [b"two", b"three"]),
            await producer.publish_deferred(topic, b"four", 60),
        ]
        producer.publish_nowait(topic, b"five", outcomes.append)
        producer.multi_publish_nowait(topic, [b"six", b"seven"], outcomes.append)
        producer.publish_deferred_nowait(topic, b"eight", 60, outcomes.append)
        await producer.flush()

        assert [Receipt(nsqd.tcp)] * 6 == receipts + outcomes
        assert (8, 0, 0) == (producer.published, producer.failed, producer.resent)
        assert 8 == count(nsqd, topic)
        await until(lambda: nsqd.channel(topic, "c")["deferred_count"] == 2)


async def test_an_awaited_publish_is_acknowledged(shared_daemons: SharedDaemons) -> None:
    """An awaited publish returns when nsqd's OK arrives, not when nsqd has the message."""
    topic, nsqd = shared_daemons.make("acknowledged"), shared_daemons.nsqds[0]
    async with tapped(nsqd) as [tap], producer_of(tap) as producer:
        await until(lambda: producer.connections)
        tap.muted = True
        publish = asyncio.create_task(producer.publish(topic, b"x"))
        await until(lambda: count(nsqd, topic) == 1)
        assert not publish.done()
        tap.muted = False
        assert Receipt(tap.address) == await publish


async def test_publishing_before_there_is_an_nsqd(tmp_path: Path) -> None:
    """Messages published before nsqd is started are acknowledged once it runs."""
    nsqd = NsqdServer("sparq.nsqd", tmp_path, (f"--data-path={tmp_path}",))
    async with Producer(nsqd.tcp, max_reconnect_delay=0.1) as producer:
        first = asyncio.create_task(producer.publish("t", b"x"))
        producer.publish_nowait("t", b"y")
        await until(lambda: producer.errors)
        with nsqd:
            await asyncio.to_thread(nsqd.start)
            assert nsqd.tcp == (await first).nsqd
            await producer.flush()

    assert 2 == producer.published


async def test_failover_and_bounded_retry(shared_daemons: SharedDaemons) -> None:
    """Publishes go to the nsqds in turn; those of a lost connection go to the other nsqd.

    They are counted as sent again. If every connection is lost, `publish_attempts` and the timeout
    limit a publish.
    """
    topic = shared_daemons.make("turns")
    async with (
        tapped(*shared_daemons.nsqds) as taps,
        producer_of(*taps, publish_attempts=2) as producer,
    ):
        await until(lambda: len(producer.connections) == 2)
        for _ in range(6):
            await producer.publish(topic, b"x")
        assert [3, 3] == [len(tap.lines(b"PUB")) for tap in taps]

        taps[0].muted = True
        tasks = [asyncio.create_task(producer.publish(topic, b"y")) for _ in range(6)]
        await until(lambda: [6, 6] == [len(tap.lines(b"PUB")) for tap in taps])
        taps[0].muted = False
        taps[0].abort_all()
        receipts = await asyncio.gather(*tasks)
        assert Counter({(1, 0): 3, (2, 1): 3}) == Counter((r.attempts, r.resent) for r in receipts)
        assert {taps[1].address} == {receipt.nsqd for receipt in receipts}
        assert 3 == producer.resent

        await until(lambda: len(producer.connections) == 2)
        for tap in taps:
            tap.muted = True
            tap.script.clear()
        idle = list(taps)
        publish = asyncio.create_task(producer.publish(topic, b"z"))
        for _ in range(2):
            await until(partial(_taps_with_publishes, idle))
            idle.remove(tap := _taps_with_publishes(idle)[0])
            tap.abort_all()
        with pytest.raises(PublishError) as raised:
            await publish
        assert (2, 2) == (raised.value.attempts, raised.value.unanswered)


def _taps_with_publishes(taps: list[Tap]) -> list[Tap]:
    """The taps on which something was published."""
    return [tap for tap in taps if tap.lines(b"PUB")]


async def test_discovered_nsqds(shared_daemons: SharedDaemons) -> None:
    """With nsqlookupd, a producer publishes to each nsqd that is listed, also to a new topic."""
    options = {"lookupd_poll_interval": 0.2}
    async with Producer(lookupd_http_addresses=shared_daemons.lookupd.http, **options) as producer:
        await producer.publish("discovered", b"x")
        await until(lambda: len(producer.connections) == 2)
        receipts = [await producer.publish("discovered", b"x") for _ in range(4)]

    assert {nsqd.tcp for nsqd in shared_daemons.nsqds} == {receipt.nsqd for receipt in receipts}


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
    async with tapped(first) as [tap], producer_of(tap) as producer:
        tap.muted = True
        with pytest.raises(ConnectionLostError, match=r"no answer within 0\.1 s"):
            await producer.ping(timeout_seconds=0.1)
        tap.muted = False
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


async def test_connection_errors_are_specific(shared_daemons: SharedDaemons) -> None:
    """A wrong peer, an option that nsqd rejects and a closed producer raise specific errors."""
    nsqd = shared_daemons.nsqds[0]
    with pytest.raises(WrongPeerError, match="speaks HTTP"):
        await open_connection(nsqd.http, Config())
    async with Producer(nsqd.tcp, msg_timeout=3600, publish_timeout=0.3) as producer:
        with pytest.raises(PublishError, match="E_BAD_BODY IDENTIFY msg timeout"):
            await producer.publish("t", b"x")
    with pytest.raises(ClosedError):
        await producer.publish("t", b"x")


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
    assert Counter(bodies) == await stored(nsqd, topic)
