"""Publishing without waiting: the same outcomes by callback, and a bound on what waits."""

import asyncio
import logging
from typing import Any

import pytest

from sparq.client import (
    ClosedError,
    Producer,
    ProducerFullError,
    PublishError,
    Receipt,
    RemoteError,
)
from tests.client.scripted import ScriptedNsqd, scripted
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Expected losses need no lines."""
    caplog.set_level(logging.CRITICAL, "sparq.client.pool")


def producer_of(*nsqds: ScriptedNsqd, **options: Any) -> Producer:
    """A producer for these nsqds that loses no time in connecting again."""
    given = {"max_reconnect_delay": 0.05, "stop_timeout": 2.0, **options}
    return Producer([nsqd.address for nsqd in nsqds], **given)


async def test_each_way_to_publish_tells_its_outcome() -> None:
    """PUB, MPUB and DPUB leave in order, with those awaited; receipts and refusals are told."""
    outcomes: list[Any] = []
    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        nsqd.on_publish = lambda peer, _, body: b"E_PUB_FAILED full" if body == b"full" else b"OK"
        producer.publish_nowait("t", b"one", outcomes.append)
        producer.multi_publish_nowait("t", [b"two", b"three"], outcomes.append)
        producer.publish_deferred_nowait("t", b"four", 1.5, outcomes.append)
        assert producer.under_way == 3
        assert [] == outcomes
        await producer.publish("u", b"five")
        producer.publish_nowait("t", b"full", outcomes.append)
        await producer.flush()

        lines = [b"PUB t", b"MPUB t", b"DPUB t 1500", b"PUB u", b"PUB t"]
        assert lines == nsqd.lines(b"PUB", b"MPUB", b"DPUB")
        assert [Receipt(nsqd.address)] * 3 == outcomes[:3]
        assert [RemoteError, "E_PUB_FAILED"] == [type(outcomes[3]).__mro__[1], outcomes[3].code]
        assert (5, 1, 0) == (producer.published, producer.failed, producer.under_way)


async def test_what_waits_is_bounded() -> None:
    """Beyond max_pending_bytes nothing is taken, until there is room; nothing taken is lost."""
    outcomes: list[Any] = []
    async with scripted() as [nsqd], producer_of(nsqd, max_pending_bytes=1000) as producer:
        stored: list[bytes] = []
        nsqd.on_publish = lambda peer, words, body: stored.append(body[:2])
        await until(lambda: producer.connections)
        taken = 0
        with pytest.raises(ProducerFullError, match=r"max_pending_bytes 1000.*drain"):
            for number in range(100):
                producer.publish_nowait("t", b"%02d" % number + bytes(398), outcomes.append)
                taken += 1
        # Two await their OK, two wait in line: 410 bytes each.
        assert taken == 4
        await until(lambda: len(stored) == 2)
        draining = asyncio.create_task(producer.drain())
        nsqd.on_publish = lambda peer, words, body: stored.append(body[:2]) or b"OK"
        nsqd.peers[0].send(0, b"OK")
        nsqd.peers[0].send(0, b"OK")
        await draining
        producer.publish_nowait("t", b"04", outcomes.append)
        await producer.flush()

        assert [b"00", b"01", b"02", b"03", b"04"] == stored
        assert [Receipt(nsqd.address)] * 5 == outcomes


async def test_before_there_is_an_nsqd() -> None:
    """What is published first waits for the connection, bounded; what it is refused for is said."""
    outcomes: list[Any] = []
    nsqd = ScriptedNsqd()
    producer = producer_of(nsqd, max_pending_bytes=10)
    producer.publish_nowait("t", bytes(100), outcomes.append)
    await until(lambda: producer.errors)
    with pytest.raises(ProducerFullError, match=nsqd.address):
        producer.publish_nowait("t", b"x", outcomes.append)
    await nsqd.start()
    await producer.flush()

    assert [Receipt(nsqd.address)] == outcomes
    await producer.close()
    await nsqd.stop()


async def test_what_never_gets_through_is_told_too() -> None:
    """Time runs out for one, the producer is closed under another: each callback hears why."""
    outcomes: list[Any] = []
    producer = producer_of(ScriptedNsqd(), publish_timeout=0.1, stop_timeout=0.0)
    producer.publish_nowait("t", b"late", outcomes.append)
    await until(lambda: outcomes)
    producer.publish_nowait("t", b"closed", outcomes.append)
    await producer.close()

    assert [PublishError, ClosedError] == [type(outcome) for outcome in outcomes]
    assert 2 == producer.failed
    with pytest.raises(ClosedError):
        producer.publish_nowait("t", b"x")


async def test_mistakes_are_raised_at_once() -> None:
    """A name or body that cannot be is raised where it is published, and counts as nothing."""
    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        with pytest.raises(ValueError, match="topic name"):
            producer.publish_nowait("no topic", b"x")
        with pytest.raises(ValueError, match="bodies is empty"):
            producer.multi_publish_nowait("t", [])
        with pytest.raises(TypeError, match="not str"):
            producer.publish_deferred_nowait("t", "x", 1)  # type: ignore[arg-type] # a mistake
        with pytest.raises(TypeError, match="on_done must be a function, not int"):
            producer.publish_nowait("t", b"x", 5)  # type: ignore[arg-type] # a mistake
        assert (0, 0) == (producer.failed, producer.under_way)


async def test_a_failure_that_nobody_asks_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without a callback a refusal is a line of the log, and a success none."""
    caplog.set_level(logging.WARNING, "sparq.client.producer")
    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        producer.publish_nowait("t", b"good")
        await producer.flush()
        assert not caplog.records
        nsqd.on_publish = lambda peer, words, body: b"E_BAD_MESSAGE PUB message too big"
        producer.publish_nowait("t", b"bad")
        await producer.flush()

    assert "publish_nowait: E_BAD_MESSAGE PUB message too big" in caplog.text


async def test_a_callback_may_publish() -> None:
    """From within a callback the next is published; one that raises disturbs no other."""
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    async with scripted() as [nsqd], producer_of(nsqd) as producer:

        def again(outcome: Any) -> None:
            if producer.published < 100:
                producer.publish_nowait("t", b"next", again)
            raise RuntimeError

        producer.publish_nowait("t", b"first", again)
        await producer.flush()

        assert 100 == producer.published == len(said)


async def test_a_lost_connection_keeps_what_was_not_waited_for() -> None:
    """Unanswered ones are sent again and told as in doubt, those in line once."""
    outcomes: list[Any] = []
    async with scripted() as [nsqd], producer_of(nsqd, max_pending_bytes=20) as producer:
        stored: list[bytes] = []
        nsqd.on_publish = lambda peer, words, body: stored.append(body)
        await until(lambda: producer.connections)
        for body in (b"1", b"2"):
            producer.publish_nowait("t", body, outcomes.append)
        await until(lambda: stored)
        nsqd.on_publish = lambda peer, words, body: b"OK"
        nsqd.peers[0].hang_up()
        await producer.flush()

        assert [0, 1] == sorted(outcome.resent for outcome in outcomes)


async def test_a_callback_is_not_awaited() -> None:
    """An ``async def`` would do nothing and say nothing: the loop is told what to give instead."""
    said: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))

    async def on_done(outcome: Any) -> None:
        raise AssertionError(outcome)

    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        producer.publish_nowait("t", b"x", on_done)
        await producer.flush()

    assert [TypeError] == [type(context["exception"]) for context in said]
    assert "use a function that is not async" in str(said[0]["exception"])
