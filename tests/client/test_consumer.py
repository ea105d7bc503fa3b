"""client.consumer: each delivery is seen once and answered once, whatever connections do."""

import asyncio
import contextlib
import logging
import time

import pytest

from sparq.client import AlreadyRespondedError, ClosedError, Consumer, Message
from sparq.client.subscription import ReceivedMessages
from tests.client.scripted import consumer_of, scripted, subscribed
from tests.support.waiting import let_all_run, until


async def test_iteration() -> None:
    """Messages come in order with all that nsqd says of them; FINs of one turn are one write."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        peer = await subscribed(nsqd)
        assert peer.commands[1:] == [b"SUB t c", b"RDY 10"]
        for number in range(10):
            peer.deliver(number, b"body %d" % number, attempts=2)
        seen = []
        async for message in consumer:
            seen.append(message)
            await message.finish()
            if len(seen) == 10:
                break
        await until(lambda: not peer.in_flight)

        assert [message.body for message in seen] == [b"body %d" % n for n in range(10)]
        assert seen[3].id == "0000000000000003"
        assert (seen[3].attempts, seen[3].nsqd) == (2, nsqd.address)
        assert seen[3].timestamp_ns > 10**18
        assert consumer.counters.received == consumer.counters.finished == 10
        assert consumer.connections == [nsqd.address]


async def test_a_message_is_answered_once() -> None:
    """After FIN or REQ every further answer raises, and nsqd hears the first only."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        peer = await subscribed(nsqd)
        peer.deliver(1)
        peer.deliver(2)
        first, second = await anext(consumer), await anext(consumer)
        first.touch()
        first.finish()
        second.requeue(1.5, backoff=False)

        for message in (first, second):
            for answer in (message.finish, message.requeue, message.touch):
                with pytest.raises(AlreadyRespondedError, match=message.id):
                    answer()
        with pytest.raises(ValueError, match="delay_seconds"):
            Message.requeue(second, -1)
        await until(lambda: not peer.in_flight)
        assert nsqd.lines(b"TOUCH", b"FIN", b"REQ") == [
            b"TOUCH 0000000000000001",
            b"FIN 0000000000000001",
            b"REQ 0000000000000002 1500",
        ]


async def test_the_default_delay_of_a_requeue_grows_with_attempts() -> None:
    """Without a delay it is default_requeue_delay x attempts, at most max_requeue_delay."""
    options = {"default_requeue_delay": 2.0, "max_requeue_delay": 7.0, "max_attempts": 0}
    async with scripted() as [nsqd], consumer_of(nsqd, **options) as consumer:
        peer = await subscribed(nsqd)
        for attempts in (1, 3, 4):
            peer.deliver(attempts, attempts=attempts)
            (await anext(consumer)).requeue(backoff=False)
        await until(lambda: len(nsqd.lines(b"REQ")) == 3)

        assert [line.split()[2] for line in nsqd.lines(b"REQ")] == [b"2000", b"6000", b"7000"]


async def test_several_tasks_iterate_and_none_is_left_asleep() -> None:
    """Messages of one read reach as many waiting tasks, one each; the rest wait on."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        peer = await subscribed(nsqd)
        tasks = [asyncio.create_task(anext(consumer)) for _ in range(3)]
        await until(lambda: len(consumer._inbox._takers) == 3)
        peer.deliver(1)
        peer.deliver(2)
        await until(lambda: len([task for task in tasks if task.done()]) == 2)
        waiting = next(task for task in tasks if not task.done())
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

        assert len({task.result().id for task in tasks if task is not waiting}) == 2
        assert not consumer._inbox._takers


async def test_a_wakeup_is_handed_on_by_a_cancelled_task() -> None:
    """A task that is cancelled after it was woken lets the next one take the message."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        peer = await subscribed(nsqd)
        first = asyncio.create_task(anext(consumer))
        second = asyncio.create_task(anext(consumer))
        await until(lambda: len(consumer._inbox._takers) == 2)
        plain = consumer._inbox.put

        def received_then_cancel(received: ReceivedMessages) -> None:
            plain(received)
            first.cancel()

        [subscription] = consumer._flow.subscriptions.values()
        subscription._received = received_then_cancel
        peer.deliver(1)

        assert (await asyncio.wait_for(second, 5)).id == "0000000000000001"
        assert first.cancelled()


async def test_whoever_is_cancelled_as_news_come_is_cancelled() -> None:
    """A task that is cancelled in the turn in which its consumer stops ends by that alone."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        await subscribed(nsqd)
        waiting = [asyncio.ensure_future(anext(consumer)), asyncio.ensure_future(anext(consumer))]
        await let_all_run()
        waiting[0].cancel()
        await consumer.stop()
        ended = await asyncio.gather(*waiting, return_exceptions=True)

        assert [type(error) for error in ended] == [asyncio.CancelledError, StopAsyncIteration]


async def test_max_attempts(caplog: pytest.LogCaptureFixture) -> None:
    """A message delivered too often is given up: finished, after the callback has seen it."""
    caplog.set_level(logging.CRITICAL, "sparq.client")
    seen: list[int] = []

    async def giving_up(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 8:
            raise OSError("the dead letters' shelf is full")

    options = {"max_attempts": 5, "on_giving_up": giving_up, "max_backoff_duration": 0}
    async with scripted() as [nsqd], consumer_of(nsqd, **options) as consumer:
        peer = await subscribed(nsqd)
        for number, attempts in enumerate((6, 8, 5)):
            peer.deliver(number, attempts=attempts)
        message = await anext(consumer)

        assert message.attempts == 5
        assert seen == [6, 8]
        assert consumer.counters.given_up == 2
        await until(lambda: len(nsqd.lines(b"FIN", b"REQ")) == 2)
        assert [line.split()[0] for line in nsqd.lines(b"FIN", b"REQ")] == [b"FIN", b"REQ"]

    async with scripted() as [nsqd], consumer_of(nsqd, max_attempts=5) as consumer:
        peer = await subscribed(nsqd)
        peer.deliver(1, attempts=6)
        peer.deliver(2)
        assert (await anext(consumer)).attempts == 1
        await until(lambda: nsqd.lines(b"FIN") == [b"FIN 0000000000000001"])


async def test_what_a_lost_connection_left_is_not_handed_out() -> None:
    """Messages waiting when their connection is lost are dropped; late answers go nowhere."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        peer = await subscribed(nsqd)
        for number in range(3):
            peer.deliver(number)
        held = await anext(consumer)
        peer.hang_up()
        await until(lambda: consumer.counters.lost == 3)
        peer = await subscribed(nsqd)
        peer.deliver(7)
        message = await anext(consumer)
        held.finish()
        message.finish()
        await until(lambda: nsqd.lines(b"FIN"))

        assert nsqd.lines(b"FIN") == [b"FIN 0000000000000007"]
        assert consumer.counters.finished == 1


async def test_what_nsqd_has_given_up_is_not_handed_out() -> None:
    """A message that waited here longer than its timeout is dropped, and its place is free."""
    async with scripted() as [nsqd]:
        nsqd.facts["msg_timeout"] = 100
        async with consumer_of(nsqd, rdy_redistribute_interval=0.02) as consumer:
            peer = await subscribed(nsqd)
            peer.deliver(1)
            await until(lambda: consumer.counters.expired == 1)
            assert consumer.in_flight == 0
            peer.deliver(2)

            assert (await anext(consumer)).id == "0000000000000002"


@pytest.mark.parametrize("way", ["singly", "in batches"])
async def test_what_is_over_is_not_handed_out_however_seldom_rdy_is_looked_at(way: str) -> None:
    """The time of a message is looked at as it is handed out, and its place is free then."""
    async with scripted() as [nsqd]:
        nsqd.facts["msg_timeout"] = 100
        async with consumer_of(nsqd, rdy_redistribute_interval=5.0) as consumer:
            peer = await subscribed(nsqd)
            for number in range(3):
                peer.deliver(number)
            await until(lambda: consumer.in_flight == 3)
            (await anext(consumer)).finish()
            await asyncio.sleep(0.11)  # the time of the message, which nothing tells
            peer.deliver(3)
            await until(lambda: consumer.counters.received == 4)
            if way == "singly":
                message = await anext(consumer)
            else:
                [message] = await anext(consumer.batches(10, wait=0))

            assert message.id == "0000000000000003"
            assert (consumer.in_flight, consumer.counters.expired) == (1, 2)


async def test_touch_keeps_a_message_from_expiring() -> None:
    """Each touch starts the message's time anew."""
    async with scripted() as [nsqd]:
        nsqd.facts["msg_timeout"] = 1000
        async with consumer_of(nsqd, rdy_redistribute_interval=0.02) as consumer:
            peer = await subscribed(nsqd)
            peer.deliver(1)
            message = await anext(consumer)
            for _ in range(20):
                await asyncio.sleep(0.08)  # together far longer than the time of the message
                message.touch()

            assert consumer.counters.expired == 0
            assert consumer.counters.touched == 20


async def test_touch_does_not_reach_beyond_max_msg_timeout() -> None:
    """Singly and in batches, opened or not, ``expires_at`` is when nsqd gives up whatever comes."""
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

            await asyncio.sleep(0.06)  # the time of the messages, which nothing tells
            message.touch()
            batch = await anext(consumer.batches(1, wait=0))
            batch.touch()

            assert message.expires_at == pytest.approx(latest, abs=1e-6)
            assert batch.expires_at == pytest.approx(latest, abs=0.05)
            assert batch[0].expires_at == batch.expires_at
            assert batch.expires_at == pytest.approx(batch[0].untouched_until + 0.05, abs=1e-6)


async def test_leaving_the_block_gives_back_what_was_not_handed_out() -> None:
    """CLS, REQ 0 for what waits, and the end; before the CLS it would only come here once more."""
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


async def test_stop_lets_handlers_finish_what_is_here() -> None:
    """A handler sees every message that had arrived, though stop was called before."""
    bodies = []

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.01)  # the others wait for their turn when stop is called
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


async def test_stop_is_bounded() -> None:
    """A handler that hangs is left behind after stop_timeout; nsqd delivers its message again."""

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


async def test_a_stop_that_is_cancelled_again_and_again_ends_the_consumer() -> None:
    """Nothing is left that would keep the connection, or make it anew."""
    async with scripted() as [nsqd]:
        consumer = consumer_of(nsqd)
        consumer.start()
        (await subscribed(nsqd)).deliver(1)
        await until(lambda: consumer.in_flight)
        held = await anext(consumer)
        stopping = asyncio.create_task(consumer.stop())
        for _ in range(5):
            await asyncio.sleep(0)  # a turn further on each time
            stopping.cancel()
        async with asyncio.timeout(10):
            await consumer.join()

        assert stopping.cancelled()
        assert held.stale
        await until(lambda: not nsqd.peers)


async def test_stop_ends_a_waiting_iteration() -> None:
    """A task that waits for a message leaves its loop when the consumer is stopped."""

    async def iterate(consumer: Consumer) -> str:
        async for _ in consumer:
            pass
        return "over"

    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        task = asyncio.create_task(iterate(consumer))
        await subscribed(nsqd)
        await consumer.stop()

        assert await asyncio.wait_for(task, 5) == "over"


async def test_a_refused_subscription_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A channel that is held by another says so in ``errors``, and is consumed once it is free."""
    caplog.set_level(logging.CRITICAL, "sparq.client")
    async with scripted() as [nsqd]:
        nsqd.sub_answer = (1, b"E_SUB_FAILED SUB failed channel t:c is held by a range reader")
        async with consumer_of(nsqd) as consumer:
            await until(lambda: len(nsqd.all_peers) >= 2)
            assert "held by a range reader" in consumer.errors[nsqd.address]
            assert not consumer.connections
            nsqd.sub_answer = (0, b"OK")
            await subscribed(nsqd)
            await until(lambda: not consumer.errors)


async def test_a_broken_message_costs_the_connection_only() -> None:
    """A message frame without room for its header: the connection is made again."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        peer = await subscribed(nsqd)
        peer.send(2, b"short")
        await until(lambda: len(nsqd.all_peers) == 2)
        peer = await subscribed(nsqd)
        peer.deliver(1)

        assert (await anext(consumer)).body == b"x"


async def test_pause_and_resume() -> None:
    """Nothing comes while paused, connections stay, and max_in_flight is what it was or becomes."""
    async with scripted() as [nsqd], consumer_of(nsqd, max_in_flight=7) as consumer:
        peer = await subscribed(nsqd)
        consumer.pause()
        await until(lambda: peer.ready == 0)
        assert (consumer.is_paused, consumer.max_in_flight) == (True, 7)
        consumer.max_in_flight = 9
        consumer.resume()
        await until(lambda: peer.ready == 9)

    assert not consumer.is_paused
    assert nsqd.lines(b"RDY") == [b"RDY 7", b"RDY 0", b"RDY 9"]


async def test_is_starved() -> None:
    """At 85 per cent of a connection's RDY, and only with something in flight."""
    async with scripted() as [nsqd], consumer_of(nsqd, max_in_flight=20) as consumer:
        peer = await subscribed(nsqd)
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
    """Something that takes its time and does not wait."""
    time.sleep(0.0001)


async def test_who_never_waits_leaves_the_loop_to_others() -> None:
    """A loop over messages that are all there lets other tasks run in between."""
    async with scripted() as [nsqd], consumer_of(nsqd, max_in_flight=2500) as consumer:
        peer = await subscribed(nsqd)
        for number in range(2500):
            peer.deliver(number)
        await until(lambda: consumer.in_flight == 2500)
        turns, seen = 0, 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)  # one turn is what is counted

        other = asyncio.create_task(others())
        async for message in consumer:
            message.finish()
            seen += 1
            compute()
            if seen == 2500:
                break
        other.cancel()

    assert turns > 10
