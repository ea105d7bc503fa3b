"""Scenarios of NSQ's own tests, each over TCP and over a unix socket: commands and messages."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from sparq.nsqd.turns import instant
from sparq.protocol import commands as c
from tests.nsqd.daemon import Daemon, connected
from tests.scenarios.protocol.client_steps import (
    StartNsqd,
    assert_refused,
    consuming,
    message,
    send_ok,
    wait_for_channel,
)
from tests.support.behaviours import over_tcp_and_unix
from tests.support.waiting import until


@over_tcp_and_unix("BasicV2")
@pytest.mark.behaviour("TestPutMessage")
async def test_a_published_message_is_delivered(nsqd: Daemon) -> None:
    """After IDENTIFY, SUB and RDY 1, a published message is delivered once, with attempts 1.

    A unix socket's client has no address in /stats, and its nsqd no TCP port in /info.
    """
    async with consuming(nsqd) as client:
        await nsqd.post("/pub?topic=t", b"test body")
        found = await message(client)
        assert (1, b"test body", 16) == (found.attempts, found.body, len(found.id))
        client.send(c.fin(found.id))
        await wait_for_channel(nsqd, in_flight_count=0)
        await nsqd.post("/pub?topic=t", b"next")
        assert b"next" == (await message(client)).body
        assert 1 == (await nsqd.channel("t", "ch"))["in_flight_count"]
        (stats,) = (await nsqd.channel("t", "ch"))["clients"]
    is_unix = nsqd.nsqd.tcp_port < 0
    assert is_unix is (stats["remote_address"] == "")
    assert nsqd.nsqd.tcp_port == json.loads((await nsqd.ask("GET", "/info"))[1])["tcp_port"]


@over_tcp_and_unix("MultipleConsumerV2")
@pytest.mark.behaviour("TestPutMessage2Chan")
async def test_each_channel_delivers_each_message(nsqd: Daemon) -> None:
    """Two channels of a topic each deliver a message with the same id and body, and attempts 1."""
    async with consuming(nsqd, "ch1") as one, consuming(nsqd, "ch2") as two:
        await nsqd.post("/pub?topic=t", b"x")
        first, second = await message(one), await message(two)

        assert first == second
        assert (1, b"x") == (first.attempts, first.body)


@over_tcp_and_unix("Pausing")
async def test_a_paused_channel_delivers_nothing(nsqd: Daemon) -> None:
    """A message published while the channel is paused waits, and is delivered after unpause."""
    async with consuming(nsqd) as client:
        await nsqd.post("/pub?topic=t", b"first")
        found = await message(client)
        assert b"first" == found.body
        client.send(c.fin(found.id))
        await nsqd.post("/channel/pause?topic=t&channel=ch")
        await nsqd.post("/pub?topic=t", b"second")
        assert 1 == (await nsqd.channel("t", "ch"))["depth"]
        await wait_for_channel(nsqd, depth=1, in_flight_count=0)
        await nsqd.post("/channel/unpause?topic=t&channel=ch")
        assert b"second" == (await message(client)).body


@over_tcp_and_unix("EmptyCommand")
async def test_an_empty_line_is_refused(nsqd: Daemon) -> None:
    """Two bare newlines get E_INVALID and end the connection; nsqd accepts other clients."""
    await assert_refused(nsqd, "E_INVALID invalid command ", b"\n\n")
    assert b"OK" == await nsqd.post("/pub?topic=t", b"x")
    async with connected(nsqd) as client:
        await send_ok(client, c.pub("t", b"x"))


@over_tcp_and_unix("SizeLimits")
async def test_sizes_are_limited(nsqd: Daemon) -> None:
    """With limits of 100 and 1,000 bytes, larger or empty messages get NSQ's exact error texts."""
    async with connected(nsqd) as client:
        await send_ok(client, c.pub("t", b"a" * 95), c.pub("t", b"a" * 100))
        await send_ok(client, c.mpub("t", [b"a" * 100] * 2), c.dpub("t", 1, b"a" * 100))
        client.send(c.pub("t", bytes(95)) + c.mpub("t", [bytes(95)] * 5))
        assert [b"OK", b"OK"] == [await client.response(), await client.response()]
    for sent, text in (
        (c.pub("t", b"a" * 105), "E_BAD_MESSAGE PUB message too big 105 > 100"),
        (c.mpub("t", [b"a" * 100] * 11), "E_BAD_BODY MPUB body too big 1148 > 1000"),
        (c.mpub("t", [b"a"] * 5 + [b"a" * 101]), "E_BAD_MESSAGE MPUB message too big 101 > 100"),
    ):
        await assert_refused(nsqd, text, sent)
    assert 11 == (await nsqd.topic("t"))["depth"]


@over_tcp_and_unix("DPUB")
async def test_a_publish_can_be_deferred(nsqd: Daemon) -> None:
    """DPUB defers a message, up to the maximum delay of an hour; a longer delay gets E_INVALID."""
    text = "E_INVALID DPUB timeout 3600100 out of range 0-3600000"
    await nsqd.post("/topic/create?topic=t")
    await nsqd.post("/channel/create?topic=t&channel=ch")
    async with connected(nsqd) as client:
        await send_ok(client, c.dpub("t", 60_000, b"x"), c.dpub("t", 3_600_000, b"x"))
        channel = await nsqd.channel("t", "ch")
        assert (0, 2, 2) == (channel["depth"], channel["deferred_count"], channel["message_count"])
        client.send(c.dpub("t", 3_600_100, b"x"))
        assert text.encode() == await client.error()
    await assert_refused(nsqd, text, c.dpub("t", 3_600_100, b"x"))


@over_tcp_and_unix("Touch")
@pytest.mark.parametrize("setting", ["option", "IDENTIFY"])
async def test_a_touched_message_does_not_time_out(start_nsqd: StartNsqd, setting: str) -> None:
    """TOUCH restarts a message's timeout, nsqd's or the client's own: a later FIN succeeds."""
    timeout_ms = 1_500
    option, asked = {"msg_timeout": timeout_ms * 10**6}, {"msg_timeout": timeout_ms}
    daemon = await start_nsqd(**option if setting == "option" else {})
    async with consuming(daemon, **asked if setting == "IDENTIFY" else {}) as client:
        await daemon.post("/pub?topic=t", b"x")
        began = time.monotonic()
        found = await message(client)
        while time.monotonic() - began < timeout_ms / 1000 + 0.5:
            client.send(c.touch(found.id))
            await asyncio.sleep(0.1)  # any interval well below the timeout
        client.send(c.fin(found.id) + c.cls())
        assert b"CLOSE_WAIT" == await client.response()
        await wait_for_channel(daemon, in_flight_count=0, timeout_count=0)


@over_tcp_and_unix("FatalError", "IOLoopReturnsClientErrWhenSendSucceeds")
@pytest.mark.parametrize("following", [b"", c.pub("t", b"x")])
async def test_a_fatal_error_ends_the_connection(nsqd: Daemon, following: bytes) -> None:
    """After a fatal error the connection ends; a command after the bad one is not executed."""
    await assert_refused(nsqd, "E_INVALID invalid command ASDF", b"ASDF\n", following)
    assert {} == nsqd.nsqd.broker.topics


@over_tcp_and_unix("IOLoopReturnsClientErrWhenSendFails")
async def test_a_client_that_is_gone_before_its_error_is_removed(
    nsqd: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that disconnects before its error is sent is removed without a logged exception."""
    for count in [1] + [100] * 10:
        async with connected(nsqd) as client:
            client.send(b"ASDF\n" * count)
            client.writer.transport.abort()

    async def is_removed() -> bool:
        return not nsqd.nsqd.broker.sessions and not nsqd.nsqd.connections

    await until(is_removed)
    assert b"OK" == await nsqd.post("/pub?topic=t", b"x")
    assert [] == [record for record in caplog.records if record.exc_info]


@over_tcp_and_unix("BadFin")
async def test_a_message_id_has_16_bytes(nsqd: Daemon) -> None:
    """A message id of another length than 16 bytes is a fatal error."""
    async with consuming(nsqd) as client:
        client.send(b"FIN abc\n")
        assert b"E_INVALID invalid message ID" == await client.error()


@over_tcp_and_unix("ReqTimeoutRange")
@pytest.mark.parametrize("maximum_s", [3_600, 60])
async def test_a_requeue_delay_is_limited(start_nsqd: StartNsqd, maximum_s: int) -> None:
    """REQ 0 requeues immediately, a long delay is cut to the maximum, a negative one is fatal."""
    nsqd = await start_nsqd(max_req_timeout=maximum_s * 10**9)
    text = "E_INVALID REQ could not parse timeout -5"
    async with consuming(nsqd) as client:
        await nsqd.post("/pub?topic=t", b"x")
        first = await message(client)
        client.send(c.req(first.id, 0))
        second = await message(client)
        assert (first.id, 2, b"x") == (second.id, second.attempts, second.body)
        client.send(c.req(second.id, 2_000 * maximum_s))
        await wait_for_channel(nsqd, deferred_count=1)
        (due_ns,) = (due for due, *_ in nsqd.nsqd.broker.topics["t"].channels["ch"].delays._heap)
        now_ns = instant().mono_ns
        assert 0 < due_ns - now_ns <= maximum_s * 10**9
        next_ns = nsqd.nsqd.broker.tick(instant())
        assert next_ns is None or next_ns <= instant().mono_ns + maximum_s * 10**9
        client.send(c.req(second.id, -5))
        assert text.encode() == await client.error()
    await assert_refused(nsqd, text, c.req(first.id, -5), subscribed=True)


@pytest.mark.behaviour("TestStatsChannelLocking")
async def test_stats_during_deliveries_are_consistent(nsqd: Daemon) -> None:
    """/stats during deliveries never shows more than RDY in flight, and adds up at the end."""
    async with connected(nsqd) as client:
        await send_ok(client, c.sub("t", "ch"))
        client.send(c.rdy(25))
        for _ in range(10):
            await nsqd.post("/mpub?topic=t", b"x\n" * 5)
            channel = await nsqd.channel("t", "ch")
            assert 25 >= channel["in_flight_count"]
        await wait_for_channel(nsqd, in_flight_count=25, depth=25)
