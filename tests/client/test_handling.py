"""client.consumer: a handler's outcome determines the response to the message."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparq.client import Message
from tests.client.scripted import consumer_of, consuming, scripted, subscribed
from tests.support.waiting import stays, until


async def test_a_handlers_outcome_finishes_or_requeues_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Returning sends FIN, an exception REQ, unless the handler responds or clears auto_respond."""
    caplog.set_level(logging.CRITICAL, "sparq.client")
    held: list[Message] = []

    async def handle(message: Message) -> None:
        if message.body == b"bad":
            raise RuntimeError("cannot")
        if message.body == b"own":
            message.requeue(0, backoff=False)
        if message.body == b"held":
            message.auto_respond = False
            held.append(message)

    options = {"handler": handle, "concurrency": 2, "max_backoff_duration": 0}
    async with consuming(**options) as (nsqd, peer, _):
        for number, body in enumerate((b"good", b"bad", b"own", b"held")):
            peer.deliver(number, body)
        await until(lambda: len(peer.in_flight) == 1 and held)

        assert set(nsqd.lines(b"FIN", b"REQ")) == {
            b"FIN 0000000000000000",
            b"REQ 0000000000000001 90000",
            b"REQ 0000000000000002 0",
        }
        held[0].finish()
        await until(lambda: not peer.in_flight)


async def test_cancelled_error_from_a_handler_requeues_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """CancelledError from a handler requeues its message; the next message is handled."""
    caplog.set_level(logging.CRITICAL, "sparq.client")

    async def handle(message: Message) -> None:
        if message.body == b"bad":
            lost = asyncio.get_running_loop().create_future()
            lost.cancel()
            await lost

    async with consuming(handler=handle, max_backoff_duration=0) as (nsqd, peer, _):
        peer.deliver(1, b"bad")
        peer.deliver(2, b"good")
        await until(lambda: not peer.in_flight)

        assert nsqd.lines(b"FIN", b"REQ") == [
            b"REQ 0000000000000001 90000",
            b"FIN 0000000000000002",
        ]


async def test_only_false_from_a_handler_requeues_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """False requeues, as in pynsq; any other value finishes, for functions and coroutines."""
    caplog.set_level(logging.CRITICAL, "sparq.client")
    returned = {b"0": False, b"1": True, b"2": 0, b"3": "text"}

    def handle(message: Message) -> object:
        return returned[message.body]

    async def handle_later(message: Message) -> object:
        return returned[message.body]

    for handler in (handle, handle_later):
        options = {"handler": handler, "max_backoff_duration": 0}
        async with consuming(**options) as (nsqd, peer, _):
            for number in range(4):
                peer.deliver(number, b"%d" % number)
            await until(lambda: not peer.in_flight)

            assert nsqd.lines(b"REQ") == [b"REQ 0000000000000000 90000"]
            assert len(nsqd.lines(b"FIN")) == 3


async def test_at_most_concurrency_handlers_run_at_a_time() -> None:
    """At most ``concurrency`` handlers run at a time; a handler may be a plain function."""
    running, most, gate = 0, 0, asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    async with scripted() as [nsqd]:
        async with consumer_of(nsqd, handler=handle, concurrency=3):
            peer = await subscribed(nsqd)
            for number in range(8):
                peer.deliver(number)
            await until(lambda: running == 3)
            gate.set()
            await until(lambda: not peer.in_flight)
        assert most == 3

        bodies: list[bytes] = []
        async with consumer_of(nsqd, handler=lambda message: bodies.append(message.body)):
            peer = await subscribed(nsqd)
            peer.deliver(1)
            await until(lambda: not peer.in_flight)
        assert bodies == [b"x"]


async def test_a_handler_may_stop_its_consumer() -> None:
    """``stop`` in a handler returns immediately; its message is finished and the consumer ends."""

    async def handle(message: Message) -> None:
        await consumer.stop()
        await consumer.stop()

    async with scripted() as [nsqd]:
        consumer = consumer_of(nsqd, handler=handle)
        consumer.start()
        (await subscribed(nsqd)).deliver(1)
        async with asyncio.timeout(10):
            await consumer.join()

        assert nsqd.lines(b"FIN") == [b"FIN 0000000000000001"]
        assert consumer.connections == []


async def test_a_handler_may_return_a_future(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If a handler returns a future, the message is finished or requeued by its outcome."""
    caplog.set_level(logging.CRITICAL, "sparq.client")
    begin = threading.Event()

    def work(body: bytes) -> None:
        begin.wait(10)
        if body == b"bad":
            raise ValueError(body)

    with ThreadPoolExecutor() as threads:
        options = {"handler": lambda message: threads.submit(work, message.body), "concurrency": 2}
        async with consuming(max_backoff_duration=0, **options) as (nsqd, peer, _):
            peer.deliver(1, b"bad")
            peer.deliver(2, b"good")
            await stays(lambda: len(peer.in_flight) == 2)
            begin.set()
            await until(lambda: not peer.in_flight)

            assert set(nsqd.lines(b"FIN", b"REQ")) == {
                b"REQ 0000000000000001 90000",
                b"FIN 0000000000000002",
            }


async def test_a_generator_function_as_handler_requeues_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A generator function never runs: its message is requeued, and the log gives the reason."""

    def generate(message: Message) -> Iterator[bytes]:
        yield message.body

    async def generate_later(message: Message) -> AsyncIterator[bytes]:
        yield message.body

    for number, handler in enumerate((generate, generate_later)):
        async with consuming(handler=handler) as (nsqd, peer, _):
            peer.deliver(1)
            await until(lambda: not peer.in_flight)

            assert nsqd.lines(b"FIN", b"REQ") == [b"REQ 0000000000000001 90000"]
        errors = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert "it contains yield" in (errors[number].exc_text or "")
