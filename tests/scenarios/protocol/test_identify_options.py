"""Scenarios of NSQ's own tests, each over TCP and over a unix socket: options of IDENTIFY."""

from __future__ import annotations

import asyncio
import time

import pytest

from sparq.protocol import commands as c
from tests.nsqd.daemon import Daemon, connected
from tests.scenarios.protocol.client_steps import (
    StartNsqd,
    assert_refused,
    consuming,
    message,
    send_ok,
    subscribe,
    wait_for_channel,
)
from tests.support.behaviours import over_tcp_and_unix
from tests.support.v2_client import AsyncV2Client, Closed


@over_tcp_and_unix("ClientTimeout")
async def test_a_silent_client_is_disconnected(start_nsqd: StartNsqd) -> None:
    """A client that does not answer heartbeats is disconnected without an error."""
    daemon = await start_nsqd()
    async with consuming(daemon, heartbeat_interval=1000) as client:
        beats = 0
        with pytest.raises(Closed):
            while True:
                assert b"_heartbeat_" == await client.response()
                beats += 1
        assert beats in (1, 2)


@over_tcp_and_unix("ClientHeartbeat")
async def test_a_client_that_answers_heartbeats_stays_connected(start_nsqd: StartNsqd) -> None:
    """A client that answers each heartbeat with NOP stays connected."""
    daemon = await start_nsqd()
    async with consuming(daemon, heartbeat_interval=1000) as client:
        for _ in range(3):
            assert b"_heartbeat_" == await client.response()
            client.send(b"NOP\n")
        await send_ok(client, c.pub("other", b"x"))


@over_tcp_and_unix("ClientHeartbeatDisableSUB")
async def test_a_client_without_heartbeats_cannot_subscribe(start_nsqd: StartNsqd) -> None:
    """SUB without heartbeats gets E_INVALID: nsqd could not detect that such a consumer is gone."""
    daemon = await start_nsqd()
    async with connected(daemon) as client:
        client.send(c.identify(b'{"heartbeat_interval":-1}') + c.sub("t", "c"))
        assert b"OK" == await client.response()
        assert b"E_INVALID cannot SUB with heartbeats disabled" == await client.error()


@over_tcp_and_unix("ClientHeartbeatDisable")
async def test_a_client_without_heartbeats_may_be_silent(start_nsqd: StartNsqd) -> None:
    """A client without heartbeats stays connected when silent clients have been disconnected."""
    daemon = await start_nsqd()
    async with connected(daemon) as quiet, connected(daemon) as other:
        await send_ok(quiet, c.identify(b'{"heartbeat_interval":-1}'))
        await subscribe(other, 1, heartbeat_interval=1000)
        with pytest.raises(Closed):
            while True:
                await other.response()
        quiet.send(b"NOP\n" + c.pub("t", b"x"))
        assert b"OK" == await quiet.response()


@over_tcp_and_unix("MaxHeartbeatIntervalValid", "MaxHeartbeatIntervalInvalid")
async def test_the_heartbeat_interval_is_limited(start_nsqd: StartNsqd) -> None:
    """An interval of max_heartbeat_interval is accepted; a millisecond more gets E_BAD_BODY."""
    daemon = await start_nsqd(max_heartbeat_interval=300 * 10**9)
    async with connected(daemon) as client:
        await send_ok(client, c.identify(b'{"heartbeat_interval":300000}'))

    text = "E_BAD_BODY IDENTIFY heartbeat interval (300001) is invalid"
    await assert_refused(daemon, text, c.identify(b'{"heartbeat_interval":300001}'))


@over_tcp_and_unix("OutputBuffering")
async def test_the_output_buffer_timeout_is_an_upper_bound(start_nsqd: StartNsqd) -> None:
    """A message is delivered without waiting for the output buffer to fill or time out."""
    daemon = await start_nsqd(max_output_buffer_size=512 << 10)
    wait_ms = 20_000
    asked = {"output_buffer_size": 256 << 10, "output_buffer_timeout": wait_ms}
    async with consuming(daemon, ready=10, **asked) as client:
        await daemon.post("/pub?topic=t", b"x")
        began = time.monotonic()

        assert b"x" == (await message(client)).body
        assert wait_ms / 1000 > time.monotonic() - began


@over_tcp_and_unix("OutputBufferingValidity")
async def test_output_buffer_settings_are_limited(start_nsqd: StartNsqd) -> None:
    """The limits, 0 and -1 are valid output buffer settings; larger values get E_BAD_BODY."""
    daemon = await start_nsqd(
        max_output_buffer_size=512 << 10, max_output_buffer_timeout=1_000_000_000
    )
    for size, timeout in ((512 << 10, 1000), (0, 0), (-1, 0), (0, -1)):
        asked = {"output_buffer_size": size, "output_buffer_timeout": timeout}
        async with consuming(daemon, ready=0, **asked):
            pass
    for body, setting in (
        (b'{"output_buffer_size":524289}', "size (524289)"),
        (b'{"output_buffer_timeout":1001}', "timeout (1001)"),
    ):
        text = f"E_BAD_BODY IDENTIFY output buffer {setting} is invalid"
        await assert_refused(daemon, text, c.identify(body))


@over_tcp_and_unix("MaxRdyCount")
@pytest.mark.parametrize("together", [True, False])
async def test_the_rdy_count_is_limited(nsqd: Daemon, together: bool) -> None:
    """IDENTIFY returns max_rdy_count; RDY accepts it, and one more gets E_INVALID."""
    async with connected(nsqd) as client:
        assert 50 == (await client.identify())["max_rdy_count"]
        if together:
            await send_ok(client, c.sub("t", "ch"))
            client.send(c.rdy(50) + c.rdy(51))
        else:
            await send_ok(client, c.sub("t", "ch") + c.rdy(50))
            client.send(c.rdy(51))
        assert b"E_INVALID RDY count 51 out of range 0-50" == await client.error()


async def read_all(client: AsyncV2Client) -> None:
    while True:
        await client.frame()


@over_tcp_and_unix("Sampling")
@pytest.mark.parametrize("reads", [False, True])
async def test_a_sample_of_messages_is_delivered(start_nsqd: StartNsqd, reads: bool) -> None:
    """With sample_rate 42, a client gets about 42 % of 10,000 messages; the rest are finished.

    It does not matter whether the client reads what it gets.
    """
    daemon = await start_nsqd(max_rdy_count=10_000)
    async with connected(daemon) as client:
        for _ in range(4):
            await send_ok(client, c.mpub("t", [b"x"] * 2_500))
        assert 42 == (await client.identify(sample_rate=42))["sample_rate"]
        await send_ok(client, c.sub("t", "ch"))
        client.send(c.rdy(10_000))
        reading = asyncio.create_task(read_all(client)) if reads else None
        await wait_for_channel(daemon, depth=0)
        in_flight = (await daemon.channel("t", "ch"))["in_flight_count"]
        if reading is not None:
            reading.cancel()

    assert 3_700 <= in_flight <= 4_700


@over_tcp_and_unix("ClientMsgTimeout")
async def test_a_client_can_set_its_own_timeout(nsqd: Daemon) -> None:
    """A client's own timeout counts as a timeout, not a requeue; a late FIN gets E_FIN_FAILED."""
    async with connected(nsqd) as client:
        assert 1_000 == (await client.identify(msg_timeout=1_000))["msg_timeout"]
        await send_ok(client, c.sub("t", "ch"))
        client.send(c.rdy(1))
        await nsqd.post("/pub?topic=t", b"x")
        found = await message(client)
        client.send(c.rdy(0))
        await wait_for_channel(nsqd, timeout_count=1)
        assert 0 == (await nsqd.channel("t", "ch"))["requeue_count"]
        client.send(c.fin(found.id))
        text = b"E_FIN_FAILED FIN %b failed ID not in flight" % found.id
        assert (1, text) == await client.frame()
        client.send(c.rdy(1))
        again = await message(client)
        assert (2, found.id) == (again.attempts, again.id)


@pytest.mark.behaviour("TestClientAttributes", "TestStats")
async def test_the_values_of_identify_are_in_the_stats(nsqd: Daemon) -> None:
    """/stats shows a client's IDENTIFY values; its filters and include_clients work."""
    sent = {
        "client_id": "me",
        "hostname": "host",
        "user_agent": "test/1",
        "sample_rate": 7,
        "topology_region": "r",
        "topology_zone": "z",
    }
    async with connected(nsqd) as client:
        await client.identify(**sent)
        await send_ok(client, c.sub("t", "ch"))
        (found,) = (await nsqd.channel("t", "ch"))["clients"]
        assert sent == {key: found[key] for key in sent}
        (topic,) = (await nsqd.stats("include_clients=false"))["topics"]
        (channel,) = topic["channels"]
        assert (1, None) == (channel["client_count"], channel["clients"])
        assert not (await nsqd.stats("topic=other"))["topics"]
        assert not (await nsqd.stats("topic=t&channel=other"))["topics"]
