"""client.producer: outcomes of publishes, pipelining, limits, and closing."""

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from sparq.client import (
    ClosedError,
    Producer,
    ProducerFullError,
    PublishError,
    Receipt,
    RemoteError,
)
from sparq.client.producer import (
    multi_publish_command,
    publish_command,
    publish_deferred_command,
)
from sparq.protocol import commands
from tests.client.scripted import (
    ScriptedNsqd,
    connected,
    producer_of,
    scripted,
    storing,
    without_answers,
)
from tests.support.servers import free_port
from tests.support.waiting import let_all_run, until

BODIES = st.binary(min_size=1, max_size=50)
TOPICS = st.text("aZ09._-", min_size=1, max_size=64)


async def test_the_three_ways_to_publish() -> None:
    """PUB, MPUB and DPUB have the protocol's format, and each OK gives a receipt."""
    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        stored: list[bytes] = []
        nsqd.on_publish = storing(stored)
        receipts = [
            await producer.publish("t", b"one"),
            await producer.multi_publish("t", [b"two", b"three"]),
            await producer.publish_deferred("t", b"four", 1.5),
        ]

        assert receipts == [Receipt(nsqd.address)] * 3
        assert nsqd.lines(b"PUB", b"MPUB", b"DPUB") == [b"PUB t", b"MPUB t", b"DPUB t 1500"]
        mpub = struct.pack(">i", 2) + b"\x00\x00\x00\x03two" + b"\x00\x00\x00\x05three"
        assert stored == [b"one", mpub, b"four"]
        assert (producer.published, producer.resent) == (4, 0)


async def test_a_publish_without_an_nsqd_raises_the_reason() -> None:
    """After publish_timeout a publish raises PublishError with the reason for each nsqd."""
    address = f"127.0.0.1:{free_port()}"
    async with Producer(address, publish_timeout=0.2) as producer:
        with pytest.raises(PublishError, match=address) as raised:
            await producer.publish("t", b"x")

    assert (raised.value.attempts, raised.value.unanswered) == (0, 0)
    assert not producer._queue


async def test_timeout_seconds_limits_one_publish() -> None:
    """timeout_seconds bounds one publish, queued or unanswered; its late answer is dropped."""
    async with scripted() as [nsqd], producer_of(nsqd, max_pending_bytes=10) as producer:
        stored = without_answers(nsqd)
        await connected(producer, 1)
        unanswered = asyncio.create_task(producer.publish("t", b"1", timeout_seconds=0.05))
        await until(lambda: stored)
        in_line = asyncio.create_task(producer.multi_publish("t", [b"2"], timeout_seconds=0.05))
        results = await asyncio.gather(unanswered, in_line, return_exceptions=True)
        assert [type(result) for result in results] == [PublishError] * 2
        assert [(r.attempts, r.unanswered) for r in results] == [(1, 1), (0, 0)]
        assert (producer.failed, producer.under_way) == (2, 0)

        later = asyncio.create_task(producer.publish_deferred("t", b"3", 1, timeout_seconds=5))
        nsqd.peers[0].send(0, b"OK")
        await until(lambda: stored == [b"1", b"3"])
        assert not later.done()
        nsqd.peers[0].send(0, b"OK")
        assert (await later).attempts == 1
        assert (producer.published, producer.failed, producer.under_way) == (1, 2, 0)
        assert len(nsqd.all_peers) == 1
        with pytest.raises(ValueError, match="timeout_seconds must be above 0"):
            await producer.publish("t", b"4", timeout_seconds=0)


async def test_close_waits_for_pending_publishes() -> None:
    """``close`` refuses new publishes, and waits for pending ones up to stop_timeout."""
    async with scripted() as [nsqd]:
        stored = without_answers(nsqd)
        producer = producer_of(nsqd)
        publish = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: stored)
        closing = asyncio.create_task(producer.close())
        await let_all_run()
        with pytest.raises(ClosedError):
            await producer.publish("t", b"y")
        assert not closing.done()
        nsqd.peers[0].send(0, b"OK")
        await publish
        await closing

        hanging = producer_of(nsqd, stop_timeout=0.1)
        publish = asyncio.create_task(hanging.publish("t", b"x"))
        await until(lambda: len(stored) == 2)
        waiting = producer_of(ScriptedNsqd(), stop_timeout=0.0)
        never = asyncio.create_task(waiting.publish("t", b"x"))
        await let_all_run()
        await asyncio.gather(hanging.close(), waiting.close())
        with pytest.raises(PublishError) as raised:
            await publish
        assert raised.value.unanswered == 1
        with pytest.raises(ClosedError):
            await never


def test_a_producer_can_be_used_in_one_event_loop_only() -> None:
    """In another event loop, publishing raises ClosedError with advice."""
    producer = Producer("127.0.0.1:1", publish_timeout=0.01)

    async def publish() -> None:
        await producer.publish("t", b"x")

    async def publish_nowait() -> None:
        producer.publish_nowait("t", b"x")

    with pytest.raises(PublishError):
        asyncio.run(publish())
    for use in (publish, publish_nowait):
        with pytest.raises(ClosedError, match="make one in each"):
            asyncio.run(use())


async def test_nowait_publishes_report_their_outcomes_to_callbacks() -> None:
    """Nowait publishes are sent in order with awaited ones; callbacks get receipts or errors."""
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


async def test_publish_nowait_above_max_pending_bytes_raises() -> None:
    """Above max_pending_bytes publish_nowait raises ProducerFullError, until ``drain`` returns."""
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
        # Two await their OK, two are queued: 410 bytes each.
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


async def test_nowait_publishes_wait_until_nsqd_is_up() -> None:
    """Before nsqd is up, publishes wait up to max_pending_bytes; the error names the nsqd.

    ``start`` is not needed.
    """
    outcomes: list[Any] = []
    nsqd = ScriptedNsqd()
    producer = producer_of(nsqd, max_pending_bytes=10)
    producer.publish_nowait("t", bytes(100), outcomes.append)
    await until(lambda: producer.errors)
    with pytest.raises(ProducerFullError, match=nsqd.address):
        producer.publish_nowait("t", b"x", outcomes.append)
    awaited = asyncio.create_task(producer.publish("t", b"x"))
    await nsqd.start()
    await producer.flush()

    assert [Receipt(nsqd.address)] == outcomes
    assert await awaited == Receipt(nsqd.address)
    assert not producer.errors
    await producer.close()
    await nsqd.stop()


async def test_a_failure_without_a_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Without a callback, a refusal is logged and a success is not; wrong arguments raise."""
    caplog.set_level(logging.WARNING, "sparq.client.producer")
    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        with pytest.raises(ValueError, match="topic name"):
            producer.publish_nowait("no topic", b"x")
        with pytest.raises(TypeError, match="on_done must be a function, not int"):
            producer.publish_nowait("t", b"x", 5)  # type: ignore[arg-type] # a mistake
        assert (0, 0) == (producer.failed, producer.under_way)
        producer.publish_nowait("t", b"good")
        await producer.flush()
        assert not caplog.records
        nsqd.on_publish = lambda peer, words, body: b"E_BAD_MESSAGE PUB message too big"
        producer.publish_nowait("t", b"bad")
        await producer.flush()

    assert "publish_nowait: E_BAD_MESSAGE PUB message too big" in caplog.text


async def test_a_callback_may_publish() -> None:
    """A callback may publish; one that raises does not affect the others."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with scripted() as [nsqd], producer_of(nsqd) as producer:

        def again(outcome: Any) -> None:
            if producer.published < 100:
                producer.publish_nowait("t", b"next", again)
            raise RuntimeError

        producer.publish_nowait("t", b"first", again)
        await producer.flush()

        assert 100 == producer.published == len(reported)


async def test_a_coroutine_function_as_callback_is_reported() -> None:
    """A coroutine function as callback is reported to the loop as a TypeError with advice."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def on_done(outcome: Any) -> None:
        raise AssertionError(outcome)

    async with scripted() as [nsqd], producer_of(nsqd) as producer:
        producer.publish_nowait("t", b"x", on_done)
        await producer.flush()

    assert [TypeError] == [type(context["exception"]) for context in reported]
    assert "use a function that is not async" in str(reported[0]["exception"])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_body_may_be_bytes_bytearray_or_memoryview(kind: Callable[[bytes], Any]) -> None:
    """A body may be bytes, bytearray or memoryview; its content at the call is used."""
    assert b"PUB t\n\x00\x00\x00\x01x" == publish_command("t", kind(b"x"))
    assert commands.mpub("t", [b"x", b"yz"]) == multi_publish_command("t", [kind(b"x"), b"yz"])


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: publish_command("t", "text"), TypeError, "not str: encode it"),
        (lambda: publish_command("t", None), TypeError, "not NoneType"),
        (lambda: publish_command(b"t", b"x"), TypeError, "topic must be a str, not bytes"),
        (lambda: publish_command("t", bytearray()), ValueError, "must not be empty"),
        (lambda: publish_command("a b", b"x"), ValueError, 'topic name "a b".* 1-64 characters'),
        (lambda: publish_command("t" * 65, b"x"), ValueError, "invalid topic name"),
        (lambda: multi_publish_command("t", b"abc"), TypeError, "a sequence of bytes, not bytes"),
        (lambda: multi_publish_command("t", ["a"]), TypeError, "not str"),
        (lambda: multi_publish_command("t", []), ValueError, "bodies is empty"),
        (lambda: multi_publish_command("t", iter([b"x"])), TypeError, "not list_iterator"),
        (lambda: publish_deferred_command("t", b"x", -0.1), ValueError, "0 to .* not -0.1"),
        (lambda: publish_deferred_command("t", b"x", float("inf")), ValueError, "not inf"),
        (lambda: publish_deferred_command("t", b"x", float("nan")), ValueError, "not nan"),
    ],
)
def test_errors_for_wrong_arguments_state_what_is_required(
    make: Callable[[], bytes], kind: type[Exception], text: str
) -> None:
    """A wrong topic, body or delay raises an error that states what is required."""
    with pytest.raises(kind, match=text):
        make()


def test_a_body_above_the_limit_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body above BODY_BYTES_MAX raises ValueError, also as the sum of an MPUB."""
    monkeypatch.setattr("sparq.client.producer.BODY_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="101 bytes do not fit into one command: at most 100"):
        publish_command("t", bytes(101))
    with pytest.raises(ValueError, match="do not fit into one command"):
        multi_publish_command("t", [bytes(60), bytes(60)])
    assert struct.pack(">i", 100) in publish_command("t", bytes(100))
