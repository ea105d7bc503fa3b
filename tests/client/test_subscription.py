"""client.subscription: messages in flight, their timeouts, and lost connections."""

import asyncio
import time

import pytest

from tests.client.scripted import consumer_of, consuming, scripted, subscribed
from tests.support.waiting import until


async def test_the_default_delay_of_a_requeue_grows_with_attempts() -> None:
    """REQ without a delay uses default_requeue_delay x attempts, at most max_requeue_delay."""
    options = {"default_requeue_delay": 2.0, "max_requeue_delay": 7.0, "max_attempts": 0}
    async with consuming(**options) as (nsqd, peer, consumer):
        for attempts in (1, 3, 4):
            peer.deliver(attempts, attempts=attempts)
            (await anext(consumer)).requeue(backoff=False)
        await until(lambda: len(nsqd.lines(b"REQ")) == 3)

        assert [line.split()[2] for line in nsqd.lines(b"REQ")] == [b"2000", b"6000", b"7000"]


async def test_waiting_messages_of_a_lost_connection_are_dropped() -> None:
    """Waiting messages of a lost connection are dropped; late responses to it are not sent."""
    async with consuming() as (nsqd, peer, consumer):
        for number in range(3):
            peer.deliver(number)
        held = await anext(consumer)
        peer.hang_up()
        await until(lambda: consumer.counters.lost == 3)
        (await subscribed(nsqd)).deliver(7)
        message = await anext(consumer)
        held.finish()
        message.finish()
        await until(lambda: nsqd.lines(b"FIN"))

        assert nsqd.lines(b"FIN") == [b"FIN 0000000000000007"]
        assert consumer.counters.finished == 1


@pytest.mark.parametrize("way", ["singly", "batch"])
async def test_a_late_response_counts_as_expired(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``stale`` turns true with the timeout; later responses are sent, but count as expired.

    No timer has run by then. A warning says once what to do, however many are late.
    """
    async with scripted() as [nsqd]:
        nsqd.facts["msg_timeout"] = 100
        async with consumer_of(nsqd, rdy_redistribute_interval=5.0, max_in_flight=9) as consumer:
            peer = await subscribed(nsqd)
            for number in range(3):
                peer.deliver(number)
            await until(lambda: consumer.in_flight == 3)
            held = await anext(consumer.batches(3, wait=1))
            messages = [held] if way == "batch" else list(held)
            ended = held.expires_at
            if way == "singly":
                assert not messages[0].stale
                await until(lambda: messages[0].stale)
                assert ended <= time.monotonic() < ended + 1
                messages[0].touch()
                assert messages[0].stale, "a late touch is too late as well"
            await until(lambda: time.monotonic() > ended)
            messages.pop().requeue(0)
            for message in messages:
                message.finish()
            await until(lambda: len(nsqd.lines(b"FIN", b"REQ")) == 3)

            counters = consumer.counters
            assert (3, 0, 0) == (counters.expired, counters.finished, counters.requeued)
            assert 0 == consumer.in_flight
    [line] = [each.getMessage() for each in caplog.records if "msg_timeout" in each.getMessage()]
    assert "within msg_timeout (0.1 s)" in line
    assert "call touch()" in line


async def test_the_first_of_two_deliveries_to_one_consumer_counts_as_expired() -> None:
    """A message that comes again while its handler still runs has expired, and counts once."""
    async with consuming(max_in_flight=9) as (_, peer, consumer):
        peer.deliver(1)
        first = await anext(consumer)
        peer.deliver(1)
        second = await anext(consumer)
        assert (first.stale, second.stale, consumer.in_flight) == (True, False, 1)
        first.finish()
        second.finish()

        counters = consumer.counters
        assert (1, 1, 0) == (counters.expired, counters.finished, consumer.in_flight)


async def test_touch_keeps_a_message_from_expiring() -> None:
    """Each ``touch`` restarts the message's timeout."""
    async with scripted() as [nsqd]:
        nsqd.facts["msg_timeout"] = 1000
        async with consumer_of(nsqd, rdy_redistribute_interval=0.02) as consumer:
            peer = await subscribed(nsqd)
            peer.deliver(1)
            message = await anext(consumer)
            for _ in range(20):
                await asyncio.sleep(0.08)  # in total 1.6 s, longer than msg_timeout
                message.touch()

            assert consumer.counters.expired == 0
            assert consumer.counters.touched == 20


async def test_touch_does_not_extend_beyond_max_msg_timeout() -> None:
    """``expires_at`` of messages and batches is at most max_msg_timeout after the delivery."""
    async with scripted() as [nsqd]:
        nsqd.facts.update(msg_timeout=10_000, max_msg_timeout=10_050)
        async with consumer_of(nsqd) as consumer:
            peer = await subscribed(nsqd)
            peer.deliver(1)
            peer.deliver(2)
            message = await anext(consumer)
            latest = message.expires_at + 0.05
            message.touch()
            assert message.untouched_until < message.expires_at < latest

            await asyncio.sleep(0.06)  # longer than the 50 ms between the timeouts
            message.touch()
            batch = await anext(consumer.batches(1, wait=0))
            batch.touch()

            assert message.expires_at == pytest.approx(latest, abs=1e-6)
            assert batch.expires_at == pytest.approx(latest, abs=0.05)
            assert batch[0].expires_at == batch.expires_at
            assert batch.expires_at == pytest.approx(batch[0].untouched_until + 0.05, abs=1e-6)
