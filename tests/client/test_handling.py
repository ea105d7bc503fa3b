"""client.consumer: a handler's outcome determines the response to the message."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sparq.client import Message
from sparq.client.consumer import Handler
from tests.client.scripted import consumer_of, consuming, scripted, subscribed
from tests.support.waiting import let_all_run, until


def returns_or_raises(message: Message) -> object:
    """A handler that does what the message's body says."""
    if message.body == b"raise":
        raise RuntimeError("cannot")
    if message.body == b"requeue":
        message.requeue(0, backoff=False)
    return {b"False": False, b"0": 0}.get(message.body)


async def as_coroutine(message: Message) -> object:
    """The same as a coroutine function, which may also end with CancelledError."""
    if message.body == b"cancel":
        lost = asyncio.get_running_loop().create_future()
        lost.cancel()
        await lost
    return returns_or_raises(message)


def on_a_thread(message: Message) -> Future[object]:
    """The same on another thread."""
    return THREAD.submit(returns_or_raises, message)


def generates(message: Message) -> Iterator[bytes]:
    yield message.body


async def generates_later(message: Message) -> AsyncIterator[bytes]:
    yield message.body


THREAD = ThreadPoolExecutor(1)
LATER, AT_ONCE = b" 90000", b" 0"


@pytest.mark.parametrize(
    ("handler", "body", "requeued"),
    [
        (returns_or_raises, b"None", None),
        (returns_or_raises, b"0", None),
        (returns_or_raises, b"False", LATER),
        (returns_or_raises, b"raise", LATER),
        (returns_or_raises, b"requeue", AT_ONCE),
        (as_coroutine, b"None", None),
        (as_coroutine, b"0", None),
        (as_coroutine, b"False", LATER),
        (as_coroutine, b"raise", LATER),
        (as_coroutine, b"cancel", LATER),
        (on_a_thread, b"None", None),
        (on_a_thread, b"raise", LATER),
        (generates, b"None", LATER),
        (generates_later, b"None", LATER),
    ],
)
async def test_a_handlers_outcome_finishes_or_requeues_its_message(
    handler: Handler, body: bytes, requeued: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A message is finished, or requeued after an exception or False, unless it is answered.

    A generator function never runs: its message is requeued, and the log gives the reason. The
    next message is handled.
    """
    async with consuming(handler=handler, max_backoff_duration=0) as (nsqd, peer, _):
        peer.deliver(1, body)
        peer.deliver(2, body)
        await until(lambda: not peer.in_flight)

        lines = [b"FIN %016x" if requeued is None else b"REQ %016x" + requeued] * 2
        assert nsqd.lines(b"FIN", b"REQ") == [line % at for at, line in enumerate(lines, 1)]
    assert ("it contains yield" in caplog.text) is (handler in (generates, generates_later))


async def test_a_handler_may_clear_auto_respond() -> None:
    """A message with ``auto_respond`` cleared gets no response until the program gives one."""
    held: list[Message] = []

    def hold(message: Message) -> None:
        message.auto_respond = False
        held.append(message)

    async with consuming(handler=hold) as (nsqd, peer, _):
        peer.deliver(1)
        await until(lambda: held)
        await let_all_run()
        assert not nsqd.lines(b"FIN", b"REQ")
        held[0].finish()
        await until(lambda: not peer.in_flight)


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
