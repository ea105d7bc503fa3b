"""RDY and backoff as real nsqds see them, recorded by taps."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import pytest

from sparq.client import Consumer
from tests.scenarios.client_library.tap import Tap, tapped
from tests.support.servers import NsqdServer
from tests.support.shared_daemons import RDY_COUNT_MAX, SharedDaemons
from tests.support.waiting import until

BACKOFF: dict[str, Any] = {"backoff_multiplier": 0.02, "max_backoff_duration": 0.1}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Suppress the log lines of connection losses that the tests cause."""
    caplog.set_level(logging.CRITICAL, "sparq.client")


def consumer_of(taps: Iterable[Tap], topic: str, **options: Any) -> Consumer:
    """A consumer that reads the topic's channel "c" through these taps."""
    given = {"max_in_flight": 10, "max_reconnect_delay": 0.1, "max_attempts": 0, **options}
    return Consumer(topic, "c", nsqd_tcp_addresses=[tap.address for tap in taps], **given)


def publish(nsqd: NsqdServer, topic: str, *bodies: str) -> None:
    """Publish each body, in order."""
    nsqd.post(f"/mpub?topic={topic}", "\n".join(bodies).encode())


def ready(taps: list[Tap]) -> list[int]:
    """The last RDY count on each tap."""
    return [tap.ready for tap in taps]


def counts(tap: Tap) -> list[int]:
    """Every RDY count that was sent, in order."""
    return [int(line.split(b" ")[1]) for line in tap.lines(b"RDY")]


# RDY


async def test_max_in_flight_is_shared(shared_daemons: SharedDaemons) -> None:
    """Each new connection gets its share of RDY immediately; a lost connection's share moves.

    It goes to the others, and returns after the reconnect. nsqd reports the share as `ready_count`.
    """
    topic = shared_daemons.make("shared")
    async with tapped(*shared_daemons.nsqds) as taps, consumer_of(taps, topic):
        await until(lambda: ready(taps) == [5, 5])
        for nsqd in shared_daemons.nsqds:
            await until(lambda n=nsqd: n.channel(topic, "c")["clients"][0]["ready_count"] == 5)
        taps[0].script.clear()
        taps[0].abort_all()
        await until(lambda: 10 in counts(taps[1]))
        await until(lambda: ready(taps) == [5, 5])
        assert taps[0].lines(b"SUB", b"RDY") == [b"SUB shared c", b"RDY 5"]


async def test_no_connection_has_more_than_its_nsqd_allows(shared_daemons: SharedDaemons) -> None:
    """An nsqd's `max_rdy_count` limits its share; the rest goes to the other nsqd."""
    topic = shared_daemons.make("allowed")
    async with tapped(*shared_daemons.nsqds) as taps, consumer_of(taps, topic, max_in_flight=2000):
        await until(lambda: ready(taps) == [2000 - RDY_COUNT_MAX, RDY_COUNT_MAX])


async def test_unchanged_rdy_is_not_sent_again(shared_daemons: SharedDaemons) -> None:
    """100 messages need only one RDY command."""
    topic, nsqd = shared_daemons.make("steady"), shared_daemons.nsqds[0]
    async with tapped(nsqd) as [tap], consumer_of([tap], topic) as consumer:
        publish(nsqd, topic, *map(str, range(100)))
        for _ in range(100):
            (await anext(consumer)).finish()
        await until(lambda: len(tap.lines(b"FIN")) == 100)
        assert counts(tap) == [10]


async def test_an_idle_connection_passes_its_rdy_on(shared_daemons: SharedDaemons) -> None:
    """With fewer RDY than connections, an idle connection passes its RDY 1 on."""
    topic = shared_daemons.make("seats")
    options = {"max_in_flight": 1, "rdy_redistribute_interval": 0.02, "low_rdy_idle_timeout": 1.0}
    async with (
        tapped(*shared_daemons.nsqds) as taps,
        consumer_of(taps, topic, **options) as consumer,
    ):
        await until(lambda: sum(ready(taps)) == 1 and len(consumer.connections) == 2)
        idle = ready(taps).index(1)
        publish(shared_daemons.nsqds[1 - idle], topic, "x")
        message = await asyncio.wait_for(anext(consumer), 10)
        assert message.nsqd == taps[1 - idle].address
        assert sum(ready(taps)) == 1
        message.finish()


# Backoff


async def test_backoff_outlives_the_last_connection(shared_daemons: SharedDaemons) -> None:
    """If the only connection is lost during the block, it is reconnected with RDY 1."""
    topic, nsqd = shared_daemons.make("alone"), shared_daemons.nsqds[0]
    async with tapped(nsqd) as [tap], consumer_of([tap], topic, **BACKOFF) as consumer:
        publish(nsqd, topic, "x")
        (await anext(consumer)).requeue(0)
        await until(lambda: tap.lines(b"REQ"))
        tap.script.clear()
        tap.abort_all()
        await until(lambda: tap.ready == 1)
        (await anext(consumer)).finish()
        await until(lambda: counts(tap) == [1, 10])


async def test_an_idle_probe_moves_on(shared_daemons: SharedDaemons) -> None:
    """A probe whose nsqd has no messages passes its RDY 1 on, so that backoff can end."""
    topic = shared_daemons.make("idle.probe")
    publish(shared_daemons.nsqds[0], topic, "x")
    options = {**BACKOFF, "rdy_redistribute_interval": 0.02, "low_rdy_idle_timeout": 1.0}
    async with (
        tapped(*shared_daemons.nsqds) as taps,
        consumer_of(taps, topic, **options) as consumer,
    ):
        await until(lambda: len(consumer.connections) == 2)
        (await anext(consumer)).requeue(60)
        await until(lambda: sorted(ready(taps)) == [0, 1])
        probe = ready(taps).index(1)
        publish(shared_daemons.nsqds[1 - probe], topic, "y")
        (await asyncio.wait_for(anext(consumer), 10)).finish()
        await until(lambda: sorted(ready(taps)) == [5, 5])
