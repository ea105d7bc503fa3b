"""Where a consumer's nsqds come from, configured or discovered, with real daemons."""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sparq.client import Consumer, Producer
from tests.scenarios.client_library.tap import Tap, tapped
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd
from tests.support.shared_daemons import SharedDaemons
from tests.support.waiting import until

LONG_POLL_SECONDS = 300.0
"""A poll interval so long that no test sees a second poll, unless something hastens it."""
POLL_SECONDS = 0.4


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log lines of connection losses that the tests cause."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def consumer_of(topic: str, **options: Any) -> Consumer:
    """A consumer of the topic's channel "c" that polls its nsqlookupds only once."""
    given = {
        "lookupd_poll_interval": LONG_POLL_SECONDS,
        "lookupd_poll_jitter": 1.0,
        "max_in_flight": 10,
    }
    return Consumer(topic, "c", **{**given, "max_reconnect_delay": 0.1, **options})


def filter_to_taps(taps: list[Tap], calls: list[list[str]]) -> Callable[[list[str]], list[str]]:
    """A discovery filter that returns the taps' addresses and records its arguments."""
    places = {tap.server.tcp: tap.address for tap in taps}

    def lead(listed: list[str]) -> list[str]:
        calls.append(listed)
        return [places[address] for address in listed if address in places]

    return lead


def is_listed(lookupd: Server, topic: str, count: int) -> bool:
    """Whether an nsqlookupd lists `count` nsqds for the topic."""
    status, body = lookupd.request("GET", f"/lookup?topic={topic}")
    return status == 200 and body.count(b'"tcp_port"') == count


async def wait_registered(shared_daemons: SharedDaemons, topic: str) -> None:
    """Wait until the nsqlookupd lists both nsqds for the topic."""
    await until(lambda: is_listed(shared_daemons.lookupd, topic, 2))


# Configured nsqds


async def test_a_configured_nsqd_is_reconnected(
    shared_daemons: SharedDaemons, caplog: pytest.LogCaptureFixture
) -> None:
    """A configured nsqd is always reconnected.

    Its loss is logged, and listed in `errors` until it is connected again.
    """
    caplog.set_level(logging.WARNING, "sparq.client")
    topic, nsqd = shared_daemons.make("given"), shared_daemons.nsqds[0]
    async with (
        tapped(nsqd) as [tap],
        consumer_of(topic, nsqd_tcp_addresses=tap.address) as consumer,
    ):
        for _ in range(3):
            await until(lambda: consumer.connections == [tap.address])
            assert not consumer.errors
            tap.abort_all()
            await until(lambda: tap.address in consumer.errors)
        await until(lambda: consumer.connections)
        nsqd.post(f"/pub?topic={topic}", b"x")
        (await anext(consumer)).finish()
    assert f"nsqd {tap.address}: connection lost: closed by nsqd" in caplog.text


async def test_nsqds_are_added_and_removed_at_run_time(shared_daemons: SharedDaemons) -> None:
    """Messages of an added nsqd are consumed.

    A removed nsqd is disconnected after its messages are answered.
    """
    topic = shared_daemons.make("changing.nsqds")
    first, second = shared_daemons.nsqds
    async with consumer_of(topic, nsqd_tcp_addresses=first.tcp) as consumer:
        consumer.connect_to_nsqd(second.tcp)
        consumer.connect_to_nsqd(second.tcp)
        await until(lambda: set(consumer.connections) == {first.tcp, second.tcp})
        first.post(f"/pub?topic={topic}", b"x")
        message = await anext(consumer)
        leaving = asyncio.create_task(consumer.disconnect_from_nsqd(first.tcp))
        await until(lambda: first.channel(topic, "c")["clients"][0]["ready_count"] == 0)
        assert not leaving.done()
        message.finish()
        await asyncio.wait_for(leaving, 10)

        assert consumer.connections == [second.tcp]
        assert first.channel(topic, "c")["clients"] == []
        assert first.channel(topic, "c")["in_flight_count"] == 0
        with pytest.raises(ValueError, match="last source"):
            await consumer.disconnect_from_nsqd(second.tcp)
        with pytest.raises(ValueError, match="not among"):
            await consumer.disconnect_from_nsqd(first.tcp)


# Discovered nsqds


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/", "http://{}/lookup?more=1"])
async def test_an_nsqlookupd_address_is_host_port_or_url(
    shared_daemons: SharedDaemons, form: str
) -> None:
    """An nsqlookupd's address is host:port or a URL with path and query.

    The first poll is immediate.
    """
    topic = shared_daemons.make("forms")
    await wait_registered(shared_daemons, topic)
    place = form.format(shared_daemons.lookupd.http)
    async with consumer_of(topic, lookupd_http_addresses=place, auth_secret="s") as consumer:
        await until(lambda: len(consumer.connections) == 2)


async def test_nsqlookupds_are_added_and_removed_at_run_time(shared_daemons: SharedDaemons) -> None:
    """An added nsqlookupd is polled immediately; removing one closes no connections."""
    topic = shared_daemons.make("changing.lookupds")
    await wait_registered(shared_daemons, topic)
    first, second = shared_daemons.nsqds
    async with consumer_of(topic, nsqd_tcp_addresses=first.tcp) as consumer:
        consumer.connect_to_nsqlookupd(shared_daemons.lookupd.http)
        await until(lambda: len(consumer.connections) == 2)
        with pytest.raises(ValueError, match="is not among"):
            consumer.disconnect_from_nsqlookupd("127.0.0.1:1")
        await consumer.disconnect_from_nsqd(first.tcp)
        assert consumer.connections == [second.tcp]
        with pytest.raises(ValueError, match="last source"):
            consumer.disconnect_from_nsqlookupd(shared_daemons.lookupd.http)
        consumer.connect_to_nsqd(first.tcp)
        consumer.disconnect_from_nsqlookupd(shared_daemons.lookupd.http)
        await until(lambda: len(consumer.connections) == 2)


async def test_the_discovery_filter_selects_addresses(shared_daemons: SharedDaemons) -> None:
    """The filter gets the listed addresses; the consumer connects to the addresses it returns."""
    topic = shared_daemons.make("filtered")
    await wait_registered(shared_daemons, topic)
    calls: list[list[str]] = []
    async with tapped(shared_daemons.nsqds[1]) as taps:
        options = {"discovery_filter": filter_to_taps(taps, calls)}
        place = shared_daemons.lookupd.http
        async with consumer_of(topic, lookupd_http_addresses=place, **options) as consumer:
            await until(lambda: consumer.connections == [taps[0].address])
    assert calls == [sorted(nsqd.tcp for nsqd in shared_daemons.nsqds)]


async def test_a_lost_connection_triggers_an_early_poll(shared_daemons: SharedDaemons) -> None:
    """After a lost connection, nsqlookupds are polled within seconds, not after five minutes."""
    topic = shared_daemons.make("hastened")
    await wait_registered(shared_daemons, topic)
    calls: list[list[str]] = []
    async with tapped(*shared_daemons.nsqds) as taps:
        options = {"discovery_filter": filter_to_taps(taps, calls)}
        place = shared_daemons.lookupd.http
        async with consumer_of(topic, lookupd_http_addresses=place, **options) as consumer:
            await until(lambda: len(consumer.connections) == 2)
            assert len(calls) == 1
            taps[0].abort_all()
            await until(lambda: len(calls) == 2)
            await until(lambda: len(consumer.connections) == 2)


async def test_an_unlisted_nsqd_keeps_its_connection(
    shared_daemons: SharedDaemons,
) -> None:
    """An nsqd that is no longer listed stays connected until the connection is lost.

    After that it is not reconnected until it is listed again.
    """
    topic = shared_daemons.make("tombstoned")
    await wait_registered(shared_daemons, topic)
    calls: list[list[str]] = []
    async with tapped(*shared_daemons.nsqds) as taps:
        options = {"discovery_filter": filter_to_taps(taps, calls), "lookupd_poll_interval": 0.05}
        place = shared_daemons.lookupd.http
        async with consumer_of(topic, lookupd_http_addresses=place, **options) as consumer:
            await until(lambda: len(consumer.connections) == 2)
            node = f"127.0.0.1:{shared_daemons.nsqds[0].http_port}"
            shared_daemons.lookupd.post(f"/topic/tombstone?topic={topic}&node={node}")
            await until(lambda: calls[-1] == [shared_daemons.nsqds[1].tcp])
            assert len(consumer.connections) == 2
            taps[0].abort_all()
            await until(lambda: consumer.connections == [taps[1].address])
            seen = len(calls)
            await until(lambda: len(calls) > seen + 4)
            assert consumer.connections == [taps[1].address]
            assert not consumer.errors


# P16: lost nsqlookupds


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
    steady = consumer_of("steady", **options)
    published, came = {b"first"}, set()
    async with steady, Producer(lookupd_http_addresses=options["lookupd_http_addresses"]) as source:

        async def consume() -> None:
            async for message in steady:
                came.add(message.body)
                message.finish()

        async def goes_on(topic: str, alive: list[Server]) -> None:
            """Check that a new topic is found in time; publish one more message to "steady"."""
            async with consumer_of(topic, **options) as consumer:
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
