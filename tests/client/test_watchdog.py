"""client.watchdog: code that blocks the loop is logged; a peer that does not read is closed."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from sparq.client import Consumer, Message, watchdog
from sparq.client.watchdog import CHECKS, WriteWatch
from tests.client.scripted import consumer_of, scripted, subscribed
from tests.support.waiting import stays, until


def slow_handler(message: Message) -> None:
    """Block the event loop for 0.2 s, as a handler must not."""
    time.sleep(0.2)


async def test_a_handler_that_blocks_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning contains the blocking handler's name, the duration and advice."""
    monkeypatch.setattr(watchdog, "INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(watchdog, "LATE_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "sparq.client.watchdog")
    async with scripted() as [nsqd], consumer_of(nsqd, handler=slow_handler) as consumer:
        peer = await subscribed(nsqd)
        peer.deliver(1)
        await until(lambda: not peer.in_flight and consumer._watchdog.late_count)
        assert consumer.counters.finished == 1

    [text] = [each.getMessage() for each in caplog.records if each.name == watchdog.__name__]
    assert "tests.client.test_watchdog.slow_handler (t/c)" in text
    assert "blocked for 0." in text
    assert "asyncio.to_thread" in text


async def test_a_handler_that_awaits_causes_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that awaits does not block the loop: no warning."""
    monkeypatch.setattr(watchdog, "INTERVAL_SECONDS", 0.01)
    caplog.set_level(logging.WARNING, "sparq.client.watchdog")

    async def handler(message: Message) -> None:
        await asyncio.to_thread(time.sleep, 0.1)

    async with scripted() as [nsqd], consumer_of(nsqd, handler=handler):
        peer = await subscribed(nsqd)
        peer.deliver(1)
        await until(lambda: not peer.in_flight)

    assert not [each for each in caplog.records if each.name == watchdog.__name__]


def test_the_code_around_an_iteration_is_named_too() -> None:
    """Without a handler, the warning names the code that iterates over the consumer."""
    consumer = Consumer("t", "c", nsqd_tcp_addresses="127.0.0.1:1")

    assert consumer._watchdog._suspect == "the code that iterates over a consumer (t/c)"


SECONDS = 0.04


async def test_a_peer_that_reads_nothing_is_given_up() -> None:
    """A peer that reads nothing is given up once, after the timeout since the last ``start``."""
    loop = asyncio.get_running_loop()
    given_up: list[float] = []
    watch = WriteWatch(SECONDS, lambda: 7, lambda: given_up.append(loop.time()))
    watch.start()
    watch.stop()
    watch.start()
    began = loop.time()
    await until(lambda: given_up)

    assert SECONDS * 0.9 <= given_up[0] - began
    await stays(lambda: 1 == len(given_up), 2 * SECONDS)


async def test_a_peer_that_reads_slowly_is_not_given_up() -> None:
    """A peer that reads one byte every few checks is not given up."""
    checks: list[int] = []
    given_up: list[int] = []

    def taken() -> int:
        checks.append(1)
        return len(checks) // CHECKS  # no progress at most checks

    watch = WriteWatch(SECONDS, taken, lambda: given_up.append(1))
    watch.start()
    await until(lambda: len(checks) >= 5 * CHECKS)
    watch.stop()

    assert [] == given_up
