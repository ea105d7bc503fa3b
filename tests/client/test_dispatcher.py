"""client.producer: which nsqd gets a publish, and which one is next if that one fails."""

import asyncio
from functools import partial

import pytest

from sparq.client import ClosedError, Producer, PublishError, Receipt, RemoteError
from tests.client.scripted import Peer, connected, producer_of, scripted, storing, without_answers
from tests.support.servers import free_port
from tests.support.waiting import let_all_run, stays, until


async def test_publishes_are_spread_evenly_over_two_nsqds() -> None:
    """10 publishes are spread evenly over two nsqds."""
    async with scripted(2) as nsqds, producer_of(*nsqds) as producer:
        await connected(producer, 2)
        receipts = [await producer.publish("t", b"x") for _ in range(10)]

        assert [len(nsqd.lines(b"PUB")) for nsqd in nsqds] == [5, 5]
        assert len({receipt.nsqd for receipt in receipts}) == 2


async def test_an_unanswered_publish_is_sent_again_and_counted() -> None:
    """Unanswered publishes of a lost nsqd go to the other one, with ``resent`` 1."""
    async with scripted(2) as nsqds, producer_of(*nsqds) as producer:
        dying, living = nsqds
        stored = without_answers(dying)
        living.on_publish = storing(stored)
        await connected(producer, 2)
        publishes = [asyncio.create_task(producer.publish("t", b"%d" % n)) for n in range(10)]
        await until(lambda: len(stored) == 10)
        lost = len(dying.lines(b"PUB"))  # five, unless a stall makes it seem silent
        dying.peers[0].hang_up()
        receipts = await asyncio.gather(*publishes)

        assert {receipt.nsqd for receipt in receipts} == {living.address}
        expected = [(1, 0)] * (10 - lost) + [(2, 1)] * lost
        assert sorted((each.attempts, each.resent) for each in receipts) == expected
        assert producer.resent == lost > 0
        assert len(stored) == 10 + lost


async def test_a_publish_is_sent_at_most_publish_attempts_times() -> None:
    """If nsqd disconnects on each publish, PublishError is raised after publish_attempts sends."""
    async with scripted() as [nsqd], producer_of(nsqd, publish_attempts=3) as producer:
        nsqd.on_publish = lambda peer, words, body: peer.hang_up()
        with pytest.raises(PublishError, match="within publish_attempts: sent 3") as raised:
            await producer.publish("t", b"x")

        assert (raised.value.attempts, raised.value.unanswered) == (3, 3)
        assert len(nsqd.lines(b"PUB")) == 3


async def test_a_send_that_was_not_executed_does_not_count_as_resent() -> None:
    """A send that certainly was not executed does not add to an earlier one's ``resent`` 1."""

    def answer(peer: Peer, words: list[bytes], body: bytes) -> bytes | None:
        return {1: None, 2: b"E_INVALID no", 3: None}.get(len(nsqd.lines(b"PUB")), b"OK")

    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        nsqd.on_publish = answer
        await connected(producer, 1)
        doubtful = asyncio.create_task(producer.publish("t", b"doubtful"))
        await until(lambda: nsqd.lines(b"PUB"))
        await nsqd.stop()
        refused = asyncio.create_task(producer.publish("t", b"refused"))
        await until(lambda: len(producer._queue) == 2)
        queue = producer._queue
        queue.move_to_end(next(iter(queue)))
        await nsqd.start()
        with pytest.raises(RemoteError, match="E_INVALID"):
            await refused

        assert await doubtful == Receipt(nsqd.address, attempts=3, resent=1)
        assert producer.resent == 1


async def test_a_publish_that_one_nsqd_cannot_store_goes_to_the_next() -> None:
    """After E_PUB_FAILED a publish goes to the next nsqd; if all refuse, the error is raised."""
    async with scripted(2) as nsqds, producer_of(*nsqds) as producer:
        full = b"E_PUB_FAILED PUB failed no space left on device"
        nsqds[0].on_publish = storing([], full)
        await connected(producer, 2)
        for _ in range(4):
            assert (await producer.publish("t", b"x")).nsqd == nsqds[1].address
        assert producer.resent == 0

        nsqds[1].on_publish = storing([], full)
        with pytest.raises(RemoteError, match="no space left") as raised:
            await producer.publish("t", b"x")
        assert raised.value.code == "E_PUB_FAILED"
        assert len(producer.connections) == 2
        nsqds[0].on_publish = nsqds[1].on_publish = storing([])
        await producer.publish("t", b"x")


@pytest.mark.parametrize(("ours", "doubt"), [(True, 0), (False, 1)])
async def test_a_refused_mpub_counts_as_resent_unless_nsqd_is_sparq(ours: bool, doubt: int) -> None:
    """A refused MPUB counts as resent unless it is sparq's nsqd, which stores all or nothing."""
    async with scripted(2) as nsqds, producer_of(*nsqds) as producer:
        for nsqd in nsqds:
            nsqd.facts |= {"sparq_version": "1"} if ours else {}
        await connected(producer, 2)
        nsqds[0].on_publish = storing([], b"E_MPUB_FAILED MPUB failed disk")
        receipts = [await producer.multi_publish("t", [b"x", b"y"]) for _ in range(2)]

        assert {receipt.nsqd for receipt in receipts} == {nsqds[1].address}
        assert sum(receipt.resent for receipt in receipts) == doubt
        assert producer.resent == 2 * doubt


async def test_a_refusal_fails_only_its_own_publish() -> None:
    """E_BAD_MESSAGE fails its publish; later ones are sent again, with ``resent`` 0."""

    def answer(peer: Peer, words: list[bytes], body: bytes) -> bytes | None:
        if peer.nsqd.lines(b"PUB") == [b"PUB t"] * 2:
            return None
        return b"E_BAD_MESSAGE PUB message too big" if body == b"big" else b"OK"

    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        nsqd.on_publish = answer
        await connected(producer, 1)
        big = asyncio.create_task(producer.publish("t", b"big"))
        small = asyncio.create_task(producer.publish("t", b"small"))

        with pytest.raises(RemoteError) as raised:
            await big
        assert raised.value.code == "E_BAD_MESSAGE"
        assert await small == Receipt(nsqd.address, attempts=2, resent=0)


async def test_at_most_max_pending_bytes_await_an_answer() -> None:
    """At most max_pending_bytes await an answer; the rest waits, in order."""
    async with scripted() as [nsqd], producer_of(nsqd, max_pending_bytes=1000) as producer:
        stored = without_answers(nsqd)
        await connected(producer, 1)
        bodies = [b"%03d" % number + b"x" * 400 for number in range(20)]
        publishes = [asyncio.create_task(producer.publish("t", body)) for body in bodies]
        await until(lambda: len(stored) == 2)
        await stays(lambda: len(stored) == 2)
        publishes[10].cancel()
        for expected in [*range(3, 20), 19, 19]:
            nsqd.peers[0].send(0, b"OK")
            await until(partial(_holds, stored, expected))
        done = await asyncio.gather(*publishes, return_exceptions=True)

        assert stored == bodies[:10] + bodies[11:]
        assert [type(result) for result in done].count(Receipt) == 19
        big = asyncio.create_task(producer.publish("t", b"b" * 5000))
        await until(lambda: len(stored) == 20)
        nsqd.peers[0].send(0, b"OK")
        await big


def _holds(bodies: list[bytes], count: int) -> bool:
    return len(bodies) == count


async def test_a_publish_whose_time_is_over_is_not_sent_again() -> None:
    """A publish whose time is over when its connection is given up is not sent again."""
    async with scripted(2) as nsqds, producer_of(*nsqds, publish_timeout=0.2) as producer:
        for nsqd in nsqds:
            nsqd.on_publish = lambda peer, words, body: None
        await connected(producer, 2)
        with pytest.raises(PublishError) as raised:
            await producer.publish("t", b"x")

        assert (raised.value.attempts, raised.value.unanswered) == (1, 1)
        await connected(producer, 2)
        assert sum(len(nsqd.lines(b"PUB")) for nsqd in nsqds) == 1


async def test_attempts_that_other_publishes_ended_do_not_count() -> None:
    """With publish_attempts 2, a publish succeeds after 20 others that each end the connection."""

    def answer(peer: Peer, words: list[bytes], body: bytes) -> bytes | None:
        if peer in guilty:
            return None  # after a fatal error nsqd executes nothing
        if body == b"bad":
            guilty.append(peer)
            return b"E_BAD_MESSAGE PUB message too big"
        return b"OK"

    guilty: list[Peer] = []
    options = {"publish_attempts": 2, "max_reconnect_delay": 0.01}
    async with scripted() as [nsqd], producer_of(nsqd, **options) as producer:
        nsqd.on_publish = answer
        await connected(producer, 1)
        bad = [asyncio.create_task(producer.publish("t", b"bad")) for _ in range(20)]
        good = asyncio.create_task(producer.publish("t", b"good"))
        results = await asyncio.gather(*bad, return_exceptions=True)

        assert [getattr(result, "code", result) for result in results] == ["E_BAD_MESSAGE"] * 20
        assert (await good).resent == 0
        assert len(guilty) == 20


async def test_a_message_that_makes_nsqd_reset_fails_alone() -> None:
    """A message that makes Go's nsqd reset the connection fails alone; the others succeed.

    Go's nsqd resets a connection on a message that is too large if more data follow, and its
    answers are lost. So all are sent twice without an answer, then one at a time.
    """
    unanswered: dict[Peer, list[bytes]] = {}

    def confirm(peer: Peer) -> None:
        for _ in () if peer.writer.is_closing() else unanswered.pop(peer, []):
            peer.send(0, b"OK")

    def answer(peer: Peer, words: list[bytes], body: bytes) -> None:
        behind = unanswered.setdefault(peer, [])
        behind.append(body)
        if peer.writer.is_closing():
            return
        if body != b"bad":
            asyncio.get_running_loop().call_later(0.002, confirm, peer)
        elif behind == [b"bad"]:
            peer.send(1, b"E_BAD_MESSAGE PUB message too big")
        else:
            peer.hang_up()

    async with scripted() as [nsqd], producer_of(nsqd, max_reconnect_delay=0.01) as producer:
        nsqd.on_publish = answer
        await connected(producer, 1)
        bodies = [b"%d" % number for number in range(30)]
        bodies[20:20] = [b"bad"]
        publishes = (producer.publish("t", body) for body in bodies)
        results = await asyncio.gather(*publishes, return_exceptions=True)

        refused = results.pop(20)
        assert isinstance(refused, RemoteError)
        assert refused.code == "E_BAD_MESSAGE"
        assert {3} == {receipt.attempts for receipt in results if isinstance(receipt, Receipt)}
        assert len(results) == 30
        assert (await producer.publish("t", b"next")).attempts == 1


@pytest.mark.parametrize(
    ("answer", "resent"),
    [
        (b"E_BAD_MESSAGE PUB failed to read message body", 0),
        (b"E_BAD_BODY MPUB failed to read x", 0),
        (b"CLOSE_WAIT", 1),
    ],
)
async def test_an_answer_that_is_no_refusal_leads_to_another_send(
    answer: bytes, resent: int
) -> None:
    """An error about a partly read command, or an unexpected answer, is no refusal."""
    answers = [answer]
    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        nsqd.on_publish = lambda peer, _, body: answers.pop() if answers else b"OK"
        assert await producer.publish("t", b"x") == Receipt(nsqd.address, 2, resent)
        assert len(nsqd.all_peers) == 2


@pytest.mark.parametrize("turns", range(6))
async def test_a_queued_publish_cancelled_while_close_ends_does_not_stop_it(turns: int) -> None:
    """A queued publish cancelled in the iteration in which ``close`` ends does not stop it."""
    producer = Producer(f"127.0.0.1:{free_port()}", stop_timeout=0.0)
    publish = asyncio.create_task(producer.publish("t", b"x"))
    await until(lambda: producer.errors)
    closing = asyncio.create_task(producer.close())
    await let_all_run(turns)
    publish.cancel()
    [outcome] = await asyncio.gather(publish, return_exceptions=True)
    await closing

    assert isinstance(outcome, (asyncio.CancelledError, ClosedError))
    assert (producer.under_way, producer._keepers) == (0, {})
