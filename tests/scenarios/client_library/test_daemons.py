"""The client library with real nsqds and a real nsqlookupd."""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Consumer, Message, Producer
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import until


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdServer]:
    """One nsqd for the tests that do not stop it; each uses its own topic."""
    with spawn_nsqd(tmp_path_factory.mktemp("one"), "--max-msg-size=10000") as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Server, list[NsqdServer]]]:
    """An nsqlookupd and two nsqds that register with it."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(spawn_nsqlookupd(tmp_path))
        nsqds = [
            stack.enter_context(spawn_nsqd(tmp_path, lookupds=(lookupd,), name=f"nsqd-{number}"))
            for number in range(2)
        ]
        yield lookupd, nsqds


def consumer_of(nsqd: Server, topic: str, **options: Any) -> Consumer:
    """A consumer of the topic's channel "c"."""
    return Consumer(topic, "c", nsqd_tcp_addresses=nsqd.tcp, **{"max_in_flight": 10, **options})


async def test_published_messages_arrive_in_order(nsqd: NsqdServer) -> None:
    """Messages of all three publish methods arrive in publishing order, each once."""
    async with consumer_of(nsqd, "basic", max_in_flight=2500) as consumer:
        await until(lambda: consumer.connections)
        async with Producer(nsqd.tcp) as producer:
            await producer.publish("basic", b"one")
            receipt = await producer.multi_publish("basic", [b"%d" % n for n in range(1000)])
            await producer.publish_deferred("basic", b"later", 0.3)
        seen = []
        async for message in consumer:
            seen.append(message)
            await message.finish()
            if len(seen) == 1002:
                break

        assert receipt.nsqd == nsqd.tcp
        assert [m.body for m in seen] == [b"one", *(b"%d" % n for n in range(1000)), b"later"]
        assert len({message.id for message in seen}) == 1002
        assert {message.attempts for message in seen} == {1}
        await until(lambda: nsqd.channel("basic", "c")["in_flight_count"] == 0)
        assert nsqd.channel("basic", "c")["depth"] == 0
    assert consumer.counters.finished == 1002


async def test_discovery(cluster: tuple[Server, list[NsqdServer]]) -> None:
    """Producer and consumer discover both nsqds and a new topic, and RDY is divided among them."""
    lookupd, nsqds = cluster
    options: dict[str, Any] = {"lookupd_poll_interval": 0.2, "max_in_flight": 10}
    async with (
        Consumer("found", "c", lookupd_http_addresses=lookupd.http, **options) as consumer,
        Producer(lookupd_http_addresses=lookupd.http, lookupd_poll_interval=0.2) as producer,
    ):
        await until(lambda: len(producer.connections) == 2)
        assert not consumer.connections
        for number in range(10):
            await producer.publish("found", b"%d" % number)
        await until(lambda: len(consumer.connections) == 2)
        bodies: set[tuple[bytes, str]] = set()
        while len(bodies) < 10:
            message = await anext(consumer)
            bodies.add((message.body, message.nsqd))
            message.finish()

        assert Counter(at for _, at in bodies) == {nsqd.tcp: 5 for nsqd in nsqds}
        stats = [nsqd.channel("found", "c")["clients"][0]["ready_count"] for nsqd in nsqds]
        assert stats == [5, 5]


async def test_kill_9_and_restart(cluster: tuple[Server, list[NsqdServer]]) -> None:
    """With nsqds killed under load, one after the other, every acknowledged message is handled.

    Every publish that was sent again reports that in its receipt, and neither consumer nor producer
    needs a restart.
    """
    lookupd, nsqds = cluster
    seen: Counter[bytes] = Counter()
    acknowledged: dict[bytes, int] = {}
    publishing = True

    async def handle(message: Message) -> None:
        seen[message.body] += 1

    async def publish(producer: Producer, task: int) -> None:
        number = 0
        while publishing:
            body = b"%d-%d" % (task, number)
            number += 1
            acknowledged[body] = (await producer.publish("killed", body)).resent

    options: dict[str, Any] = {"lookupd_poll_interval": 0.2, "max_reconnect_delay": 0.3}
    consumer = Consumer(
        "killed",
        "c",
        lookupd_http_addresses=lookupd.http,
        handler=handle,
        max_in_flight=100,
        msg_timeout=1.0,
        max_attempts=0,
        **options,
    )
    async with consumer, Producer(lookupd_http_addresses=lookupd.http, **options) as producer:
        await until(lambda: len(producer.connections) == 2)
        tasks = [asyncio.create_task(publish(producer, number)) for number in range(20)]
        for nsqd in (*nsqds, *nsqds):
            wanted = len(acknowledged) + 300
            await until(lambda wanted=wanted: len(acknowledged) >= wanted, 30)
            await asyncio.to_thread(nsqd.restart)
            await until(lambda: len(consumer.connections) == 2, 20)
        publishing = False
        await asyncio.gather(*tasks)
        await until(lambda: acknowledged.keys() <= seen.keys(), 30)

    assert len(acknowledged) > 1200
    assert producer.resent == sum(acknowledged.values())


POLL_SECONDS = 0.4


def polling_consumer(topic: str, **options: Any) -> Consumer:
    """A consumer of the topic's channel "c" that finds its nsqds at nsqlookupds."""
    given = {"lookupd_poll_jitter": 1.0, "max_in_flight": 10, "max_reconnect_delay": 0.1}
    return Consumer(topic, "c", **given, **options)


def is_listed(lookupd: Server, topic: str, count: int) -> bool:
    """Whether an nsqlookupd lists `count` nsqds for the topic."""
    status, body = lookupd.request("GET", f"/lookup?topic={topic}")
    return status == 200 and body.count(b'"tcp_port"') == count


@pytest.fixture
def nsqd_with_two_lookupds(tmp_path: Path) -> Iterator[tuple[NsqdServer, list[Server]]]:
    """An nsqd that registers with two nsqlookupds; tests may kill each of them."""
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        names = ["lookupd-0", "lookupd-1"]
        started = threads.map(lambda name: spawn_nsqlookupd(tmp_path, name=name), names)
        lookupds = [stack.enter_context(lookupd) for lookupd in started]
        # nsqd asks nsqlookupds for a new topic's channels; this limits its wait for one that hangs.
        flags = ("--http-client-request-timeout=200ms",)
        yield stack.enter_context(spawn_nsqd(tmp_path, *flags, lookupds=tuple(lookupds))), lookupds


async def test_losing_any_nsqlookupd_loses_nothing(
    nsqd_with_two_lookupds: tuple[NsqdServer, list[Server]],
) -> None:
    """With an nsqlookupd killed, one hanging, or all restarted (P16), published messages arrive.

    A consumer finds a new topic within its poll interval plus 1 s.
    """
    nsqd, lookupds = nsqd_with_two_lookupds
    options = {
        "lookupd_http_addresses": [lookupd.http for lookupd in lookupds],
        "lookupd_poll_interval": POLL_SECONDS,
    }
    nsqd.post("/pub?topic=steady", b"first")
    steady = polling_consumer("steady", **options)
    published, came = {b"first"}, set()
    async with steady, Producer(lookupd_http_addresses=options["lookupd_http_addresses"]) as source:

        async def consume() -> None:
            async for message in steady:
                came.add(message.body)
                message.finish()

        async def goes_on(topic: str, alive: list[Server]) -> None:
            """Check that a new topic is found in time; publish one more message to "steady"."""
            async with polling_consumer(topic, **options) as consumer:
                await asyncio.to_thread(nsqd.post, f"/pub?topic={topic}", b"x")
                await until(lambda: any(is_listed(lookupd, topic, 1) for lookupd in alive))
                await until(lambda: consumer.connections, POLL_SECONDS + 1)
                (await anext(consumer)).finish()
            await source.publish("steady", topic.encode())
            published.add(topic.encode())

        consuming = asyncio.create_task(consume())
        await until(lambda: came == published)
        await asyncio.to_thread(lookupds[0].kill9)
        await goes_on("one.killed", lookupds[1:])
        await asyncio.to_thread(lookupds[0].start)
        await until(lambda: is_listed(lookupds[0], "steady", 1))
        assert lookupds[1].process is not None
        lookupds[1].process.send_signal(signal.SIGSTOP)
        await goes_on("one.hanging", lookupds[:1])
        for lookupd in lookupds:
            await asyncio.to_thread(lookupd.restart)
        await goes_on("all.restarted", lookupds)
        await until(lambda: came == published)
        consuming.cancel()
    assert steady.counters.lost == 0
