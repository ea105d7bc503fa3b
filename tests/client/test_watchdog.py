"""client.watchdog: who holds up the event loop is named."""

import asyncio
import logging
import time

import pytest

from sparq.client import Consumer, Message, watchdog
from tests.client.scripted import consumer_of, scripted, subscribed
from tests.support.waiting import until


def slow_handler(message: Message) -> None:
    """Holds up the loop, as a handler must not."""
    time.sleep(0.2)


async def test_a_handler_that_blocks_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the handler, says for how long, and what to do instead."""
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


async def test_who_awaits_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Time that a handler spends waiting holds up nobody."""
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
    """Without a handler it is whoever iterates."""
    consumer = Consumer("t", "c", nsqd_tcp_addresses="127.0.0.1:1")

    assert consumer._watchdog._suspect == "the code that iterates over a consumer (t/c)"
