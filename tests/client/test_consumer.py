"""client.consumer: iteration, giving up, stopping, pausing, and errors about wrong arguments."""

import asyncio
import gc
import time
from typing import Any

import pytest

from sparq.client import ClosedError, Consumer, Message
from sparq.client import consumer as consumer_module
from tests.client.batches import bodies, deliver
from tests.client.scripted import consumer_of, consuming, record_writes, scripted, subscribed
from tests.support.waiting import until


async def test_messages_arrive_in_order_and_are_finished_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages arrive in order, with id, attempts, timestamp and nsqd; FINs leave in one write."""
    writes = record_writes(monkeypatch)
    async with consuming() as (nsqd, peer, consumer):
        assert peer.commands[1:] == [b"SUB t c", b"RDY 10"]
        deliver(peer, range(10), attempts=2)
        seen = []
        async for message in consumer:
            seen.append(message)
            await message.finish()
            if len(seen) == 10:
                break
        await until(lambda: not peer.in_flight)

        assert [message.body for message in seen] == bodies(range(10))
        fins = b"".join(b"FIN %016x\n" % number for number in range(10))
        assert [fins] == [data for data in writes if b"FIN" in data]
        assert seen[3].id == "0000000000000003"
        assert (seen[3].attempts, seen[3].nsqd) == (2, nsqd.address)
        assert seen[3].timestamp_ns > 10**18
        assert consumer.counters.received == consumer.counters.finished == 10
        assert consumer.connections == [nsqd.address]


async def test_a_message_above_max_attempts_is_given_up() -> None:
    """A message above max_attempts is finished after ``on_giving_up``; if that fails, requeued."""
    seen: list[int] = []

    async def giving_up(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 8:
            raise OSError("no space left for dead letters")

    options = {"max_attempts": 5, "on_giving_up": giving_up, "max_backoff_duration": 0}
    async with consuming(**options) as (nsqd, peer, consumer):
        for number, attempts in enumerate((6, 8, 5)):
            peer.deliver(number, attempts=attempts)
        message = await anext(consumer)

        assert message.attempts == 5
        assert seen == [6, 8]
        assert consumer.counters.given_up == 2
        await until(lambda: len(nsqd.lines(b"FIN", b"REQ")) == 2)
        assert [line.split()[0] for line in nsqd.lines(b"FIN", b"REQ")] == [b"FIN", b"REQ"]

    async with consuming(max_attempts=5) as (nsqd, peer, consumer):
        peer.deliver(1, attempts=6)
        peer.deliver(2)
        assert (await anext(consumer)).attempts == 1
        await until(lambda: nsqd.lines(b"FIN") == [b"FIN 0000000000000001"])


async def test_leaving_the_block_requeues_waiting_messages_after_cls() -> None:
    """After CLS, leaving sends REQ 0 for waiting messages: earlier, nsqd would redeliver here."""
    async with scripted() as [nsqd]:
        async with consumer_of(nsqd) as consumer:
            peer = await subscribed(nsqd)
            for number in range(3):
                peer.deliver(number)
            message = await anext(consumer)
            message.finish()
        await until(lambda: not nsqd.peers)

        assert nsqd.lines(b"FIN", b"CLS", b"REQ") == [
            b"FIN 0000000000000000",
            b"CLS",
            b"REQ 0000000000000001 0",
            b"REQ 0000000000000002 0",
        ]
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
        with pytest.raises(ClosedError):
            consumer.start()


async def test_stop_lets_the_handler_process_every_arrived_message() -> None:
    """``stop`` lets the handler process every message that has already arrived."""
    bodies = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.01)  # the other messages still wait when stop is called
        bodies.append(message.body)

    async with scripted() as [nsqd]:
        consumer = consumer_of(nsqd, handler=handle)
        consumer.start()
        peer = await subscribed(nsqd)
        for number in range(5):
            peer.deliver(number, b"%d" % number)
        await until(lambda: bodies)
        await asyncio.gather(consumer.stop(), consumer.stop())
        await consumer.join()
        await until(lambda: not nsqd.peers)

        assert bodies == [b"0", b"1", b"2", b"3", b"4"]
        assert len(nsqd.lines(b"FIN")) == 5


async def test_stop_waits_at_most_stop_timeout_for_a_handler() -> None:
    """``stop`` does not wait for a hanging handler beyond stop_timeout; nsqd redelivers later."""

    async def hang(message: Message) -> None:
        await asyncio.Event().wait()

    async with scripted() as [nsqd]:
        consumer = consumer_of(nsqd, handler=hang, stop_timeout=0.1)
        consumer.start()
        peer = await subscribed(nsqd)
        peer.deliver(1)
        peer.deliver(2)
        await until(lambda: consumer.in_flight == 2)
        began = asyncio.get_running_loop().time()
        await consumer.stop()
        await until(lambda: not nsqd.peers)

        assert asyncio.get_running_loop().time() - began < 2
        assert nsqd.lines(b"FIN", b"REQ") == [b"REQ 0000000000000002 0"]


async def test_a_repeatedly_cancelled_stop_still_closes_the_consumer() -> None:
    """``stop`` that is cancelled five times still closes the connection and does not reconnect."""
    async with scripted() as [nsqd]:
        consumer = consumer_of(nsqd)
        consumer.start()
        (await subscribed(nsqd)).deliver(1)
        await until(lambda: consumer.in_flight)
        held = await anext(consumer)
        stopping = asyncio.create_task(consumer.stop())
        for _ in range(5):
            await asyncio.sleep(0)  # one loop iteration further each time
            stopping.cancel()
        async with asyncio.timeout(10):
            await consumer.join()

        assert stopping.cancelled()
        assert held.stale
        await until(lambda: not nsqd.peers)


async def test_a_refused_subscription_is_retried() -> None:
    """A refusal of SUB is in ``errors``; the consumer retries until the channel is free."""
    async with scripted() as [nsqd]:
        nsqd.sub_answer = (1, b"E_SUB_FAILED SUB failed channel t:c is held by a range reader")
        async with consumer_of(nsqd) as consumer:
            await until(lambda: len(nsqd.all_peers) >= 2)
            assert "held by a range reader" in consumer.errors[nsqd.address]
            assert not consumer.connections
            nsqd.sub_answer = (0, b"OK")
            await subscribed(nsqd)
            await until(lambda: not consumer.errors)


async def test_a_malformed_message_ends_only_its_connection() -> None:
    """A message frame shorter than its header ends the connection; the consumer reconnects."""
    async with consuming() as (nsqd, peer, consumer):
        peer.send(2, b"short")
        await until(lambda: len(nsqd.all_peers) == 2)
        (await subscribed(nsqd)).deliver(1)

        assert (await anext(consumer)).body == b"x"


async def test_pause_and_resume() -> None:
    """``pause`` sends RDY 0 and keeps max_in_flight, which may change; ``resume`` sends it."""
    async with consuming(max_in_flight=7) as (nsqd, peer, consumer):
        consumer.pause()
        await until(lambda: peer.ready == 0)
        assert (consumer.is_paused, consumer.max_in_flight) == (True, 7)
        consumer.max_in_flight = 9
        consumer.resume()
        await until(lambda: peer.ready == 9)

    assert not consumer.is_paused
    assert nsqd.lines(b"RDY") == [b"RDY 7", b"RDY 0", b"RDY 9"]


async def test_a_consumer_is_starved_from_85_percent_of_its_rdy() -> None:
    """A consumer is starved from 85 % of a connection's RDY in flight: 17 messages of 20."""
    async with consuming(max_in_flight=20) as (_, peer, consumer):
        states = []
        for number in range(17):
            states.append(consumer.is_starved)
            peer.deliver(number)
            await until(lambda n=number: consumer.in_flight == n + 1)

        assert not any(states)
        assert consumer.is_starved
        (await anext(consumer)).finish()
        assert not consumer.is_starved


def compute() -> None:
    """Block for 0.1 ms without awaiting."""
    time.sleep(0.0001)


async def test_a_loop_over_waiting_messages_lets_other_tasks_run() -> None:
    """A loop over 2,500 waiting messages lets other tasks run in between."""
    async with consuming(max_in_flight=2500) as (_, peer, consumer):
        for number in range(2500):
            peer.deliver(number)
        await until(lambda: consumer.in_flight == 2500)
        turns, seen = 0, 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)  # counts loop iterations

        other = asyncio.create_task(others())
        async for message in consumer:
            message.finish()
            seen += 1
            compute()
            if seen == 2500:
                break
        other.cancel()

    assert turns > 10


async def test_iterating_before_the_start_raises_closed_error() -> None:
    """Iterating over a consumer that is not started raises ClosedError: it would wait forever."""
    consumer = Consumer("t", "c", nsqd_tcp_addresses="127.0.0.1:1")
    for iteration in (aiter(consumer), consumer.batches()):
        with pytest.raises(ClosedError, match="not started: use 'async with consumer'"):
            await anext(iteration)


def test_a_start_outside_an_event_loop_raises() -> None:
    """``start`` outside an event loop raises RuntimeError, and leaves no unawaited coroutine."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        Consumer("t", "c", nsqd_tcp_addresses="127.0.0.1:1").start()
    gc.collect()


HERE = {"nsqd_tcp_addresses": "a:1"}


@pytest.mark.parametrize(
    ("names", "options", "error", "text"),
    [
        (("bad topic", "c"), HERE, ValueError, "topic name"),
        (("t", ""), HERE, ValueError, "channel name"),
        (("t", "c"), {}, ValueError, "nsqd_tcp_addresses"),
        (("t", "c"), {"nsqd_tcp_addresses": "a"}, ValueError, "host:port"),
        (("t", "c"), {"lookupd_http_addresses": "a"}, ValueError, "host:port"),
        (("t", "c"), {**HERE, "concurrency": 0}, ValueError, "concurrency"),
        (("t", "c"), {**HERE, "dead_letter": "no/topic"}, ValueError, 'topic name "no/topic": use'),
        (("t", "c"), {**HERE, "dead_letter": "t"}, ValueError, "is the consumed topic itself, t"),
        (
            ("t", "c"),
            {**HERE, "dead_letter": "d", "on_giving_up": print},
            ValueError,
            "on_giving_up or dead_letter, not both",
        ),
        ((b"t", "c"), HERE, TypeError, "topic must be a str, not bytes"),
        (("t", 5), HERE, TypeError, "channel must be a str, not int"),
        (("t", "c"), {"nsqd_tcp_addresses": ("a", 4150)}, TypeError, "^nsqd_tcp_addr.* not int"),
        (("t", "c"), {"nsqd_tcp_addresses": b"a:4150"}, TypeError, "^nsqd_tcp_addr.* not bytes"),
        (("t", "c"), {"lookupd_http_addresses": None}, TypeError, "^lookupd_http_.* not NoneType"),
        (("t", "c"), {**HERE, "handler": 5}, TypeError, "handler takes a function, not int"),
        (("t", "c"), {**HERE, "on_giving_up": "x"}, TypeError, "on_giving_up takes a function"),
        (("t", "c"), {**HERE, "discovery_filter": []}, TypeError, "discovery_filter takes a func"),
        (("t", "c"), {**HERE, "concurrency": "3"}, TypeError, "concurrency takes int, not str"),
        (("t", "c"), {**HERE, "config": {}}, TypeError, r"not dict \(see Config.from_mapping\)"),
    ],
)
async def test_wrong_arguments_raise_in_the_constructor(
    names: Any, options: Any, error: type[Exception], text: str
) -> None:
    """A wrong name, address, option or type raises in the constructor, and names the argument."""
    with pytest.raises(error, match=text):
        Consumer(*names, **options)


async def test_anext_starts_no_task() -> None:
    """``anext(consumer)`` starts no task, neither while it waits nor afterwards."""
    started: list[object] = []
    async with consuming() as (_, peer, consumer):
        deliver(peer, range(10))
        loop = asyncio.get_running_loop()

        def start(loop: Any, work: Any, **named: Any) -> asyncio.Task[Any]:
            started.append(work)
            return asyncio.Task(work, loop=loop, **named)

        loop.set_task_factory(start)
        for _ in range(10):
            await (await anext(consumer)).finish()
        gc.collect()
        await asyncio.sleep(0.01)
        loop.set_task_factory(None)

    assert [] == started


async def test_a_handler_that_blocks_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning contains the blocking handler's name, the duration and advice."""
    monkeypatch.setattr(consumer_module, "LATE_SECONDS", 0.1)

    async def awaits(message: Message) -> None:
        await asyncio.to_thread(time.sleep, 0.2)

    def blocks(message: Message) -> None:
        time.sleep(0.2)

    for handler, count in ((awaits, 0), (blocks, 1)):
        async with consuming(handler=handler, rdy_redistribute_interval=0.01) as (_, peer, _):
            peer.deliver(1)
            await until(lambda peer=peer: not peer.in_flight)
            texts = [each.getMessage() for each in caplog.records if "blocked" in each.msg]
            assert count == len(texts)

    assert "tests.client.test_consumer.test_a_handler_that_blocks_is_named" in texts[0]
    assert "blocks (t/c)" in texts[0]
    assert "blocked for 0." in texts[0]
    assert "asyncio.to_thread" in texts[0]
