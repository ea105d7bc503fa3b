"""client.producer: while one of several nsqds does not answer, publishes go to the others."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop

from sparq.client import Producer, Receipt
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.waiting import until, until_seen

TIMEOUT_SECONDS = 4.0
Nsqds = tuple[NsqdServer, NsqdServer, NsqdServer]


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqds]:
    """Three nsqds."""
    folder = tmp_path_factory.mktemp("nsqds")
    with (
        spawn_nsqd(folder, name="first") as first,
        spawn_nsqd(folder, name="second") as second,
        spawn_nsqd(folder, name="third") as third,
    ):
        yield first, second, third


@pytest.fixture
def stopped(nsqds: Nsqds) -> Iterator[NsqdServer]:
    """An nsqd that a test may stop with SIGSTOP; it is continued after the test."""
    yield nsqds[1]
    os.kill(nsqds[1].pid, signal.SIGCONT)


def producer_of(*servers: NsqdServer, **options: float) -> Producer:
    return Producer([each.tcp for each in servers], publish_timeout=TIMEOUT_SECONDS, **options)


async def publish_six(producer: Producer, topic: str) -> list[Receipt]:
    """Publish six messages, one after the other."""
    return [await producer.publish(topic, b"%d" % number) for number in range(6)]


async def test_all_publishes_succeed_while_one_nsqd_is_stopped(
    nsqds: Nsqds, stopped: NsqdServer, caplog: pytest.LogCaptureFixture
) -> None:
    """An overdue publish on a stopped nsqd is sent to another; later ones skip it directly."""
    async with producer_of(*nsqds) as producer:
        await producer.until_connected()
        os.kill(stopped.pid, signal.SIGSTOP)
        with caplog.at_level(logging.WARNING, "sparq.client"):
            receipts = await publish_six(producer, "silent")
        began = time.monotonic()
        again = await publish_six(producer, "silent")

        assert time.monotonic() - began < TIMEOUT_SECONDS / 4
        assert 6 == len(receipts)
        assert stopped.tcp not in {each.nsqd for each in (*receipts, *again)}
        # The stopped nsqd may store its publish, too: the receipt and the log state that.
        assert [1] == [each.resent for each in receipts if each.attempts > 1]
        assert (1, 12, 0) == (producer.resent, producer.published, producer.failed)
        assert f"nsqd {stopped.tcp} does not answer" in caplog.text
        assert "may be stored twice" in caplog.text


async def test_a_continued_nsqd_is_used_again(nsqds: Nsqds, stopped: NsqdServer) -> None:
    """A continued nsqd is used again; messages are stored twice as often as ``resent`` counts."""
    async with producer_of(*nsqds) as producer:
        await producer.until_connected()
        os.kill(stopped.pid, signal.SIGSTOP)
        receipts = await publish_six(producer, "comes_back")
        os.kill(stopped.pid, signal.SIGCONT)

        async def is_back() -> bool:
            return (await producer.publish("comes_back", b"more")).nsqd == stopped.tcp

        await until(is_back, 20)
        published, resent = producer.published, producer.resent

    def depth(server: NsqdServer) -> int:
        stats = server.get_json("/stats?format=json&topic=comes_back")["topics"]
        return sum(topic["depth"] for topic in stats)

    assert sum(each.resent for each in receipts) == resent
    await until_seen(lambda: sum(map(depth, nsqds)) == published + resent)


async def test_a_publish_on_the_only_nsqd_waits_while_it_is_silent(
    nsqds: Nsqds, stopped: NsqdServer
) -> None:
    """A publish on a silent nsqd without an alternative waits and is not sent twice."""
    async with producer_of(stopped) as producer:
        await producer.until_connected()
        os.kill(stopped.pid, signal.SIGSTOP)
        publishing = asyncio.create_task(producer.publish("alone", b"x"))
        await asyncio.sleep(TIMEOUT_SECONDS * 0.6)  # another nsqd would have been tried
        os.kill(stopped.pid, signal.SIGCONT)

        assert Receipt(stopped.tcp, 1, 0) == await publishing


async def test_no_publish_waits_for_a_connection_that_cannot_be_made(nsqds: Nsqds) -> None:
    """No publish waits for a connection to a host that drops its packets."""
    with socket.socket() as hole, socket.socket() as first, socket.socket() as second:
        hole.bind(("127.0.0.1", 0))
        hole.listen(0)
        for filler in (first, second):  # with a full backlog, later connects are dropped
            filler.setblocking(False)
            filler.connect_ex(hole.getsockname())
        nowhere = f"127.0.0.1:{hole.getsockname()[1]}"
        places = [nowhere, nsqds[0].tcp, nsqds[1].tcp]
        async with Producer(places, publish_timeout=TIMEOUT_SECONDS) as producer:
            receipts = await publish_six(producer, "hole")

            assert nowhere not in {each.nsqd for each in receipts}
            assert 0 == producer.resent


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_program_that_was_blocked_takes_no_connection_for_silent(
    nsqds: Nsqds, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """After the program itself was blocked, what has arrived is read before a check counts."""

    async def publish() -> Receipt:
        async with producer_of(*nsqds[:2]) as producer:
            await producer.until_connected()
            publishing = asyncio.create_task(producer.publish("blocked", b"x"))
            for _ in range(3):
                await asyncio.sleep(0)
            time.sleep(TIMEOUT_SECONDS * 0.6)  # noqa: ASYNC251 - it blocks the loop
            return await publishing

    with asyncio.Runner(loop_factory=new_loop) as runner:
        receipt = runner.run(publish())

    assert (1, 0) == (receipt.attempts, receipt.resent)
