"""client.subscription: each message is handed out once, and only before its timeout."""

import asyncio
import random

import pytest

from sparq.client.subscription import ReceivedMessages
from tests.client.batches import bodies, deliver, first_batch
from tests.client.scripted import consumer_of, consuming, scripted, subscribed
from tests.support.waiting import let_all_run, until


async def test_a_batch_is_handed_out_when_full_or_after_wait() -> None:
    """A batch is handed out when it is full, or after ``wait``."""
    async with consuming(max_in_flight=100) as (_, peer, consumer):
        waiting = asyncio.create_task(first_batch(consumer, size=3, wait=60))
        for number in range(3):
            deliver(peer, range(number, number + 1))
            await until(lambda n=number: consumer.counters.received == n + 1)
        full = await waiting
        deliver(peer, range(3, 5))
        timed = await first_batch(consumer, size=1000, wait=0.05)
        await full.finish()
        await timed.finish()

    assert (full.bodies, timed.bodies) == (bodies(range(3)), bodies(range(3, 5)))


async def test_a_batch_with_max_in_flight_messages_does_not_wait() -> None:
    """A batch with max_in_flight messages is handed out immediately: no more can arrive."""
    async with consuming(max_in_flight=5) as (_, peer, consumer):
        deliver(peer, range(5))
        batch = await asyncio.wait_for(first_batch(consumer, size=1000, wait=3600), 10)
        assert len(batch) == 5
        batch.finish()


async def test_messages_gathered_by_a_cancelled_task_go_to_the_next() -> None:
    """Messages that a cancelled task had gathered go to the next one, in their order."""
    async with consuming() as (_, peer, consumer):
        gathering = asyncio.create_task(first_batch(consumer, size=9, wait=60))
        deliver(peer, range(3))
        await until(lambda: consumer.in_flight == 3)
        await let_all_run()
        gathering.cancel()
        await asyncio.wait([gathering])
        deliver(peer, range(3, 5))
        await until(lambda: consumer.in_flight == 5)
        batch = await first_batch(consumer, wait=0.05)

        assert batch.bodies == bodies(range(5))
        batch.finish()


async def test_stop_hands_out_the_batch_gathered_so_far() -> None:
    """``stop`` hands out the batch gathered so far, then ends the iteration."""
    async with scripted() as [nsqd]:
        consumer = consumer_of(nsqd)
        consumer.start()
        peer = await subscribed(nsqd)
        sizes = []

        async def gather() -> None:
            async for batch in consumer.batches(9, wait=60):
                sizes.append(len(batch))
                await batch.finish()

        gathering = asyncio.create_task(gather())
        deliver(peer, range(3))
        await until(lambda: consumer.in_flight == 3 and not consumer._inbox.waiting)
        await consumer.stop()
        await gathering

        assert sizes == [3]
        assert len(nsqd.lines(b"FIN")) == 3


@pytest.mark.parametrize("seed", range(4))
async def test_each_message_is_taken_once_singly_or_in_batches(seed: int) -> None:
    """Five tasks take single messages and batches of 1, 4 and 77: each message is taken once."""
    draw = random.Random(seed)
    seen: list[bytes] = []
    async with consuming(max_in_flight=2500) as (_, peer, consumer):

        async def singly() -> None:
            async for message in consumer:
                seen.append(message.body)
                message.finish()
                await asyncio.sleep(0)  # lets the other tasks run

        async def together(size: int) -> None:
            async for batch in consumer.batches(size, wait=0.002):
                seen.extend(batch.bodies)
                if size % 2:
                    for message in batch:
                        message.finish()
                else:
                    batch.finish()

        tasks = [asyncio.create_task(singly()) for _ in range(2)]
        tasks += [asyncio.create_task(together(size)) for size in (1, 4, 77)]
        at = 0
        while at < 2000:
            count = draw.randint(1, 200)
            deliver(peer, range(at, at + count))
            at += count
            await asyncio.sleep(0)  # lets the tasks run
        await until(lambda: len(seen) >= at and not peer.in_flight)
        await consumer.stop()
        await asyncio.gather(*tasks)

    assert sorted(seen) == sorted(bodies(range(at)))
    assert consumer.in_flight == 0


async def test_a_cancelled_task_passes_on_its_wake_up() -> None:
    """A task cancelled after its wake-up passes it on: the next task takes the message."""
    async with consuming() as (_, peer, consumer):
        first = asyncio.create_task(anext(consumer))
        second = asyncio.create_task(anext(consumer))
        await until(lambda: len(consumer._inbox._takers) == 2)
        plain = consumer._inbox.put

        def received_then_cancel(received: ReceivedMessages) -> None:
            plain(received)
            first.cancel()

        [subscription] = consumer._subscriptions
        subscription._received = received_then_cancel
        peer.deliver(1)

        assert (await asyncio.wait_for(second, 5)).id == "0000000000000001"
        assert first.cancelled()


async def test_a_task_cancelled_while_its_consumer_stops_gets_cancelled_error() -> None:
    """A task cancelled while its consumer stops gets CancelledError, not StopAsyncIteration."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        await subscribed(nsqd)
        waiting = [asyncio.ensure_future(anext(consumer)), asyncio.ensure_future(anext(consumer))]
        await let_all_run()
        waiting[0].cancel()
        await consumer.stop()
        ended = await asyncio.gather(*waiting, return_exceptions=True)

        assert [type(error) for error in ended] == [asyncio.CancelledError, StopAsyncIteration]


@pytest.mark.parametrize("way", ["singly", "in batches"])
async def test_messages_past_their_timeout_are_dropped_when_taken(way: str) -> None:
    """Messages past their timeout are dropped when taken, and no longer count as in flight."""
    async with scripted() as [nsqd]:
        nsqd.facts["msg_timeout"] = 100
        async with consumer_of(nsqd, rdy_redistribute_interval=5.0) as consumer:
            peer = await subscribed(nsqd)
            for number in range(3):
                peer.deliver(number)
            await until(lambda: consumer.in_flight == 3)
            (await anext(consumer)).finish()
            await asyncio.sleep(0.11)  # longer than msg_timeout
            peer.deliver(3)
            await until(lambda: consumer.counters.received == 4)
            if way == "singly":
                message = await anext(consumer)
            else:
                [message] = await anext(consumer.batches(10, wait=0))

            assert message.id == "0000000000000003"
            assert (consumer.in_flight, consumer.counters.expired) == (1, 2)
