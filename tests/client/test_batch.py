"""client.subscription: messages received and responded to as a batch."""

import asyncio

import pytest

from sparq.client import AlreadyRespondedError
from tests.client.batches import bodies, deliver, first_batch
from tests.client.scripted import consumer_of, consuming, record_writes, scripted, subscribed
from tests.support.waiting import until


async def test_finish_sends_all_fins_of_a_batch_in_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``finish`` sends 100 FINs in one write; bodies keep their order of arrival."""
    writes = record_writes(monkeypatch)
    async with consuming(max_in_flight=100) as (_, peer, consumer):
        deliver(peer, range(100))
        batch = await first_batch(consumer)
        assert (len(batch), consumer.in_flight) == (100, 100)
        assert batch.bodies == bodies(range(100))
        await batch.finish()
        await until(lambda: not peer.in_flight)

    fins = b"".join(b"FIN %016x\n" % number for number in range(100))
    assert [fins] == [data for data in writes if b"FIN" in data]
    assert consumer.counters.finished == 100
    assert batch.responded


async def test_a_batch_has_at_most_size_messages() -> None:
    """30 messages of one read are split into batches of 12, 12 and 6, in order."""
    async with consuming(max_in_flight=100) as (_, peer, consumer):
        deliver(peer, range(30))
        sizes, seen = [], []
        async for batch in consumer.batches(12, wait=0.05):
            sizes.append(len(batch))
            seen += batch.bodies
            await batch.finish()
            if len(seen) == 30:
                break
        await until(lambda: not peer.in_flight)

    assert sizes == [12, 12, 6]
    assert seen == bodies(range(30))


async def test_messages_of_a_batch_can_be_answered_one_by_one() -> None:
    """The batch responds only for messages without a response; a second response raises."""
    async with consuming() as (nsqd, peer, consumer):
        deliver(peer, range(6))
        batch = await first_batch(consumer)
        batch[1].requeue(2.0, backoff=False)
        batch[-1].finish()
        with pytest.raises(AlreadyRespondedError):
            batch[1].finish()
        await batch.touch()
        await batch.finish()
        await until(lambda: not peer.in_flight)

        assert [message.body for message in batch] == batch.bodies == bodies(range(6))
        assert all(message.responded for message in batch)
        assert nsqd.lines(b"REQ") == [b"REQ %016x 2000" % 1]
        assert sorted(nsqd.lines(b"FIN")) == [b"FIN %016x" % number for number in (0, 2, 3, 4, 5)]
        assert sorted(nsqd.lines(b"TOUCH")) == [b"TOUCH %016x" % number for number in (0, 2, 3, 4)]
        for answer in (batch.finish, batch.requeue, batch.touch):
            with pytest.raises(AlreadyRespondedError, match="batch"):
                answer()


async def test_a_requeued_batch_raises_the_backoff_by_one_level() -> None:
    """Requeuing a batch sends RDY 0 before its REQs and raises the backoff by one level only."""
    async with consuming(max_requeue_delay=3.0) as (nsqd, peer, consumer):
        deliver(peer, range(3), attempts=2)
        batch = await first_batch(consumer)
        with pytest.raises(ValueError, match="delay_seconds"):
            batch.requeue(-1)
        batch.requeue()
        await until(lambda: not peer.in_flight)

        assert consumer.backoff_level == 1
        assert nsqd.lines(b"RDY", b"REQ")[1:] == [
            b"RDY 0",
            *(b"REQ %016x 3000" % number for number in range(3)),
        ]
        assert consumer.counters.requeued == 3


async def test_messages_above_max_attempts_are_in_no_batch() -> None:
    """Messages above max_attempts are given up; the batch has the others."""
    async with consuming(max_attempts=3) as (_, peer, consumer):
        peer.deliver(1, b"fresh")
        peer.deliver(2, b"old", attempts=4)
        peer.deliver(3, b"last", attempts=3)
        seen: list[bytes] = []
        async for batch in consumer.batches(wait=0.05):
            seen += batch.bodies
            await batch.finish()
            if len(seen) == 2:
                break
        await until(lambda: not peer.in_flight)

    assert seen == [b"fresh", b"last"]
    assert consumer.counters.given_up == 1


async def test_messages_of_a_lost_connection_are_in_no_batch() -> None:
    """Gathered messages of a lost connection are dropped from the batch: nsqd redelivers them."""
    async with scripted(2) as nsqds, consumer_of(*nsqds, max_in_flight=20) as consumer:
        lost, kept = [await subscribed(nsqd) for nsqd in nsqds]
        waiting = asyncio.create_task(first_batch(consumer, size=10, wait=60))
        deliver(lost, range(3))
        await until(lambda: consumer.in_flight == 3)
        lost.hang_up()
        await until(lambda: consumer.counters.lost == 3)
        deliver(kept, range(10, 20))
        batch = await waiting
        again = await first_batch(consumer, wait=0.05)

    assert batch.bodies + again.bodies == bodies(range(10, 20))


@pytest.mark.parametrize(("size", "wait"), [(0, 1), (1, -1), (1, float("nan"))])
async def test_a_wrong_size_or_wait_of_a_batch_raises(size: int, wait: float) -> None:
    """A size below 1 or a wait below 0 raises ValueError."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        with pytest.raises(ValueError, match="size must be at least 1"):
            await anext(consumer.batches(size, wait))
