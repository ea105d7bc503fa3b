"""client.subscription: RDY and backoff over all connections, as seen by nsqds."""

import asyncio

import pytest

from tests.client.scripted import consumer_of, consuming, scripted, subscribed
from tests.support.waiting import until


async def test_backoff_changes_the_rdy_sent_to_nsqd() -> None:
    """RDY 0 precedes a failing REQ, each probe has RDY 1, and the last success restores RDY 10."""
    options = {"backoff_multiplier": 0.05, "max_backoff_duration": 0.2}
    async with consuming(**options) as (nsqd, peer, consumer):

        async def answer(number: int, good: bool) -> None:
            peer.deliver(number)
            message = await anext(consumer)
            message.finish() if good else message.requeue(0)

        await answer(1, good=False)
        assert consumer.backoff_level == 1
        await until(lambda: peer.ready == 1)
        await answer(2, good=False)
        await until(lambda: peer.ready == 0)
        await until(lambda: peer.ready == 1)
        await answer(3, good=True)
        await until(lambda: peer.ready == 0)
        await until(lambda: peer.ready == 1)
        await answer(4, good=True)
        await until(lambda: not peer.in_flight)

        assert [line.split(b" ")[:2] for line in nsqd.lines(b"RDY", b"REQ", b"FIN")] == [
            [b"RDY", b"10"],
            [b"RDY", b"0"],
            [b"REQ", b"0000000000000001"],
            [b"RDY", b"1"],
            [b"RDY", b"0"],
            [b"REQ", b"0000000000000002"],
            [b"RDY", b"1"],
            [b"RDY", b"0"],
            [b"FIN", b"0000000000000003"],
            [b"RDY", b"1"],
            [b"RDY", b"10"],
            [b"FIN", b"0000000000000004"],
        ]
        assert consumer.backoff_level == 0


async def test_a_lost_probe_moves_to_another_connection() -> None:
    """If the probing connection is lost, another one gets RDY 1."""
    options = {"backoff_multiplier": 0.02, "max_backoff_duration": 0.04}
    async with scripted(2) as nsqds, consumer_of(*nsqds, **options) as consumer:
        peers = [await subscribed(nsqd) for nsqd in nsqds]
        peers[0].deliver(1)
        (await anext(consumer)).requeue(0)
        await until(lambda: sum(peer.ready for peer in peers) == 1)
        probe = next(nsqd for nsqd in nsqds if nsqd.peers[0].ready)
        other = next(nsqd for nsqd in nsqds if nsqd is not probe)
        await probe.stop()
        await until(lambda: other.peers[0].ready == 1)
        await probe.start()


async def test_rdy_is_shared_and_redistributed() -> None:
    """Two connections get RDY 5 each; if one is lost, the other gets 10, until it reconnects."""
    async with scripted(2) as nsqds, consumer_of(*nsqds) as consumer:
        await until(lambda: [nsqd.peers and nsqd.peers[0].ready for nsqd in nsqds] == [5, 5])
        await nsqds[0].stop()
        await until(lambda: nsqds[1].peers[0].ready == 10)
        assert consumer.errors.keys() == {nsqds[0].address}
        await nsqds[0].start()
        await until(lambda: [nsqd.peers and nsqd.peers[0].ready for nsqd in nsqds] == [5, 5])
        await until(lambda: not consumer.errors)

        consumer.max_in_flight = 0
        await until(lambda: [nsqd.peers[0].ready for nsqd in nsqds] == [0, 0])
        consumer.max_in_flight = 4
        await until(lambda: [nsqd.peers[0].ready for nsqd in nsqds] == [2, 2])
        with pytest.raises(ValueError, match="max_in_flight"):
            consumer.max_in_flight = -1


async def test_a_connection_that_is_left_passes_on_its_rdy() -> None:
    """A connection being left gets CLS; its RDY moves to the other as its messages are finished."""
    async with scripted(2) as [old, other], consumer_of(old, other) as consumer:
        peers = [await subscribed(nsqd) for nsqd in (old, other)]
        await until(lambda: [peer.ready for peer in peers] == [5, 5])
        for number in range(5):
            peers[0].deliver(number)
        held = [await anext(consumer) for _ in range(5)]
        leaving = asyncio.create_task(consumer.disconnect_from_nsqd(old.address))
        await until(lambda: old.lines(b"RDY", b"CLS")[-2:] == [b"RDY 0", b"CLS"])
        await until(lambda: peers[1].ready == 5)
        for message in held[:3]:
            message.finish()
        await until(lambda: peers[1].ready == 8)
        assert not leaving.done()
        for message in held[3:]:
            message.finish()
        await asyncio.wait_for(leaving, 5)

        assert len(old.lines(b"FIN")) == 5
        assert consumer.counters.lost == 0
        assert consumer.connections == [other.address]
        assert peers[1].ready == 10
        with pytest.raises(ValueError, match="last source"):
            await consumer.disconnect_from_nsqd(other.address)
        with pytest.raises(ValueError, match="not among"):
            await consumer.disconnect_from_nsqd(old.address)
        consumer.connect_to_nsqd(old.address)
        assert (await subscribed(old)).ready == 5


async def test_leaving_a_connection_takes_at_most_stop_timeout() -> None:
    """Leaving a connection takes at most stop_timeout; nsqd redelivers unanswered messages."""
    async with scripted(2) as [old, other], consumer_of(old, other, stop_timeout=0.05) as consumer:
        peer = await subscribed(old)
        peer.deliver(1)
        await anext(consumer)
        await asyncio.wait_for(consumer.disconnect_from_nsqd(old.address), 5)
        await until(lambda: not old.peers)

        assert consumer.counters.lost == 1
        assert old.lines(b"FIN", b"REQ") == []


async def test_redeliveries_after_timeouts_do_not_count_as_ignoring_rdy() -> None:
    """Redeliveries after timeouts do not count as ignoring RDY: the connection stays."""
    async with scripted() as [nsqd]:
        nsqd.facts["msg_timeout"] = 40
        async with consumer_of(nsqd, max_in_flight=200) as consumer:
            peer = await subscribed(nsqd)
            for turn in range(1, 5):
                for number in range(200):
                    peer.deliver(number)
                await until(lambda t=turn: consumer.counters.received == 200 * t)
                await asyncio.sleep(0.06)  # longer than msg_timeout
            assert consumer.counters.expired >= 400
            assert consumer.connections == [nsqd.address]
            assert len(nsqd.all_peers) == 1
