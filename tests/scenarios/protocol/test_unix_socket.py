"""Scenarios that NSQ's own tests run twice: over TCP and over a unix socket."""

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sparq.protocol.commands import dpub, fin, identify, mpub, pub, rdy, req, sub, touch
from sparq.protocol.receiver import decode_message
from tests.nsqd.daemon import Daemon, connected, start, stop
from tests.support.behaviours import both
from tests.support.v2_client import ASYNC_SECONDS, AsyncV2Client, Closed
from tests.support.waiting import until

Starter = Callable[..., Awaitable[Daemon]]


@pytest.fixture(params=["tcp", "unix"])
async def run(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Starter]:
    """Return a function that starts an nsqd with options, on TCP or on a unix socket."""
    address = {"tcp_address": str(tmp_path / "s")} if request.param == "unix" else {}
    started = []

    async def starter(**options: Any) -> Daemon:
        started.append(await start(tmp_path, **address, **options))
        return started[-1]

    yield starter
    for daemon in started:
        await stop(daemon)


async def subscribed(client: AsyncV2Client, ready: int, channel: str = "c", **asked: Any) -> None:
    """Send IDENTIFY, SUB and RDY."""
    client.send(identify(json.dumps(asked).encode()))
    assert b"OK" == await client.response()
    client.send(sub("t", channel) + rdy(ready))
    assert b"OK" == await client.response()


async def message(client: AsyncV2Client) -> tuple[int, bytes, bytes]:
    """Read the next frame, which must be a message: attempts, id, body."""
    kind, data = await client.frame()
    assert 2 == kind, data
    _, attempts, message_id, body = decode_message(data)
    return attempts, bytes(message_id), bytes(body)


async def refusal(daemon: Daemon, command: bytes) -> bytes:
    """Return the fatal error for a command on a new connection."""
    async with connected(daemon) as client:
        client.send(command)
        return await client.error()


async def has(daemon: Daemon, key: str, value: int) -> None:
    """Wait until a value in the channel's /stats equals `value`."""

    async def is_so() -> bool:
        return bool((await daemon.channel("t", "c"))[key] == value)

    await until(is_so)


@both("BasicV2")
async def test_a_message_arrives_as_it_was_published(run: Starter) -> None:
    """A message is delivered with attempts 1; a unix socket's client has no address in /stats."""
    daemon = await run()
    async with connected(daemon) as client:
        await subscribed(client, 1)
        await daemon.post("/pub?topic=t", b"body")
        attempts, message_id, body = await message(client)

        assert (1, b"body", 16) == (attempts, body, len(message_id))
        client.send(fin(message_id))
        await has(daemon, "in_flight_count", 0)
        (stats,) = (await daemon.channel("t", "c"))["clients"]
    is_unix = daemon.nsqd.tcp_port < 0
    assert is_unix is (stats["remote_address"] == "")
    assert daemon.nsqd.tcp_port == json.loads((await daemon.ask("GET", "/info"))[1])["tcp_port"]


@both("MultipleConsumerV2")
async def test_each_channel_gets_a_copy(run: Starter) -> None:
    """Two channels each deliver the same id, body and attempts."""
    daemon = await run()
    async with connected(daemon) as one, connected(daemon) as two:
        await subscribed(one, 1, "a")
        await subscribed(two, 1, "b")
        await daemon.post("/pub?topic=t", b"body")

        assert await message(one) == await message(two)


@both("ClientTimeout")
async def test_a_silent_client_is_dropped(run: Starter) -> None:
    """A client that does not answer heartbeats is disconnected without an error."""
    daemon = await run()
    async with connected(daemon) as client:
        await subscribed(client, 1, heartbeat_interval=1000)
        beats = 0
        with pytest.raises(Closed):
            while True:
                assert b"_heartbeat_" == await client.response()
                beats += 1
        assert beats in (1, 2)


@both("ClientHeartbeat")
async def test_a_client_that_answers_stays(run: Starter) -> None:
    """A client that answers each heartbeat with NOP stays connected."""
    daemon = await run()
    async with connected(daemon) as client:
        await subscribed(client, 1, heartbeat_interval=1000)
        for _ in range(3):
            assert b"_heartbeat_" == await client.response()
            client.send(b"NOP\n")
        client.send(pub("other", b"x"))
        assert b"OK" == await client.response()


@both("ClientHeartbeatDisableSUB")
async def test_who_has_no_heartbeats_cannot_subscribe(run: Starter) -> None:
    """SUB without heartbeats gets E_INVALID: nsqd could not detect that such a consumer is gone."""
    daemon = await run()
    async with connected(daemon) as client:
        client.send(identify(b'{"heartbeat_interval":-1}') + sub("t", "c"))
        assert b"OK" == await client.response()
        assert b"E_INVALID cannot SUB with heartbeats disabled" == await client.error()


@both("ClientHeartbeatDisable")
async def test_who_has_no_heartbeats_may_be_silent(run: Starter) -> None:
    """A client without heartbeats stays connected when silent clients have been disconnected."""
    daemon = await run()
    async with connected(daemon) as quiet, connected(daemon) as other:
        quiet.send(identify(b'{"heartbeat_interval":-1}'))
        assert b"OK" == await quiet.response()
        await subscribed(other, 1, heartbeat_interval=1000)
        await asyncio.gather(other_ends(other))
        quiet.send(b"NOP\n" + pub("t", b"x"))
        assert b"OK" == await quiet.response()


async def other_ends(client: AsyncV2Client) -> None:
    with pytest.raises(Closed):
        while True:
            await client.response()


@both("MaxHeartbeatIntervalValid", "MaxHeartbeatIntervalInvalid")
async def test_the_longest_heartbeat_interval(run: Starter) -> None:
    """An interval of max_heartbeat_interval is accepted; a millisecond more gets E_BAD_BODY."""
    daemon = await run(max_heartbeat_interval=300 * 10**9)
    async with connected(daemon) as client:
        client.send(identify(b'{"heartbeat_interval":300000}'))
        assert b"OK" == await client.response()

    text = b"E_BAD_BODY IDENTIFY heartbeat interval (300001) is invalid"
    assert text == await refusal(daemon, identify(b'{"heartbeat_interval":300001}'))


@both("Pausing")
async def test_a_paused_channel_delivers_nothing(run: Starter) -> None:
    """A paused channel delivers nothing; messages published meanwhile arrive after unpause."""
    daemon = await run()
    async with connected(daemon) as client:
        await subscribed(client, 1)
        await daemon.post("/pub?topic=t", b"one")
        _, message_id, body = await message(client)
        assert b"one" == body
        client.send(fin(message_id))
        await daemon.post("/channel/pause?topic=t&channel=c")
        await daemon.post("/pub?topic=t", b"two")
        await has(daemon, "depth", 1)
        await has(daemon, "in_flight_count", 0)
        await daemon.post("/channel/unpause?topic=t&channel=c")

        assert b"two" == (await message(client))[2]


@both("EmptyCommand")
async def test_empty_lines_hurt_nobody(run: Starter) -> None:
    """Empty lines end the connection with E_INVALID; nsqd keeps running."""
    daemon = await run()

    assert b"E_INVALID invalid command " == await refusal(daemon, b"\n\n")
    assert b"OK" == await daemon.post("/pub?topic=t", b"x")


def multi(*bodies: bytes, size: int | None = None) -> bytes:
    """Encode an MPUB; its bodies may be empty."""
    data = struct.pack(">i", len(bodies))
    data += b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    return b"MPUB t\n" + struct.pack(">i", len(data) if size is None else size) + data


@both("SizeLimits")
async def test_sizes_are_limited(run: Starter) -> None:
    """Message and body sizes are limited, with NSQ's error texts."""
    daemon = await run(max_msg_size=100, max_body_size=1000)
    async with connected(daemon) as client:
        client.send(pub("t", bytes(95)) + mpub("t", [bytes(95)] * 5))
        assert [b"OK", b"OK"] == [await client.response(), await client.response()]
    refused = {
        pub("t", bytes(105)): b"E_BAD_MESSAGE PUB message too big 105 > 100",
        b"PUB t\n\0\0\0\0": b"E_BAD_MESSAGE PUB invalid message body size 0",
        multi(*[bytes(90)] * 12, size=1148): b"E_BAD_BODY MPUB body too big 1148 > 1000",
        multi(*[b"x"] * 5, b""): b"E_BAD_MESSAGE MPUB invalid message(5) body size 0",
        multi(*[b"x"] * 5, bytes(101)): b"E_BAD_MESSAGE MPUB message too big 101 > 100",
    }
    for command, text in refused.items():
        assert text == await refusal(daemon, command)


@both("DPUB")
async def test_a_message_can_be_deferred(run: Starter) -> None:
    """A DPUB is counted as deferred; a delay beyond the maximum gets E_INVALID."""
    daemon = await run()
    await daemon.post("/topic/create?topic=t")
    await daemon.post("/channel/create?topic=t&channel=c")
    async with connected(daemon) as client:
        client.send(dpub("t", 60_000, b"x"))
        assert b"OK" == await client.response()
    await has(daemon, "deferred_count", 1)
    await has(daemon, "message_count", 1)

    text = b"E_INVALID DPUB timeout 3600100 out of range 0-3600000"
    assert text == await refusal(daemon, dpub("t", 3_600_100, b"x"))


@both("Touch")
async def test_a_touched_message_does_not_time_out(run: Starter) -> None:
    """TOUCH restarts a message's timeout: a FIN after the first deadline still succeeds."""
    daemon = await run()
    async with connected(daemon) as client:
        await subscribed(client, 1, msg_timeout=3000)
        await daemon.post("/pub?topic=t", b"x")
        began = time.monotonic()
        _, message_id, _ = await message(client)
        while time.monotonic() - began < 3.5:
            client.send(touch(message_id))
            await asyncio.sleep(0.1)  # any interval well below the timeout
        client.send(fin(message_id))
        await has(daemon, "in_flight_count", 0)

    assert 0 == (await daemon.channel("t", "c"))["timeout_count"]


@both("MaxRdyCount")
async def test_the_largest_ready_count(run: Starter) -> None:
    """IDENTIFY returns max_rdy_count; RDY accepts it, and one more gets E_INVALID."""
    daemon = await run(max_rdy_count=50)
    async with connected(daemon) as client:
        assert 50 == (await client.identify())["max_rdy_count"]
        client.send(sub("t", "c") + rdy(50))
        assert b"OK" == await client.response()
        client.send(rdy(51))
        assert b"E_INVALID RDY count 51 out of range 0-50" == await client.error()


@both("FatalError", "IOLoopReturnsClientErrWhenSendSucceeds")
async def test_a_fatal_error_ends_the_connection(run: Starter) -> None:
    """A fatal error frame is the last frame of a connection."""
    daemon = await run()

    assert b"E_INVALID invalid command HUBBA" == await refusal(daemon, b"HUBBA\n")


@both("IOLoopReturnsClientErrWhenSendFails")
async def test_an_error_that_nobody_can_read_is_the_end_too(run: Starter) -> None:
    """nsqd removes a client that is gone before its error is sent, and keeps running."""
    daemon = await run()
    async with connected(daemon) as client:
        client.send(b"HUBBA\n")
        client.writer.transport.abort()

    async def is_forgotten() -> bool:
        return not daemon.nsqd.clients.connections

    await until(is_forgotten)
    assert b"OK" == await daemon.post("/pub?topic=t", b"x")


@both("OutputBuffering")
async def test_the_buffer_timeout_is_an_upper_bound(run: Starter) -> None:
    """A message is delivered without waiting for the output buffer to fill or time out."""
    daemon = await run(max_output_buffer_size=512 << 10)
    async with connected(daemon) as client:
        wait_ms = 20_000
        await subscribed(client, 10, output_buffer_size=256 << 10, output_buffer_timeout=wait_ms)
        await daemon.post("/pub?topic=t", b"x")
        began = time.monotonic()

        assert b"x" == (await message(client))[2]
        assert wait_ms / 1000 > time.monotonic() - began


@both("OutputBufferingValidity")
async def test_what_output_buffers_may_be(run: Starter) -> None:
    """The limits, 0 and -1 are valid output buffer settings; larger values get E_BAD_BODY."""
    daemon = await run(max_output_buffer_size=512 << 10, max_output_buffer_timeout=1_000_000_000)
    for size, timeout in ((512 << 10, 1000), (0, 0), (-1, 0), (0, -1)):
        async with connected(daemon) as client:
            await subscribed(client, 0, output_buffer_size=size, output_buffer_timeout=timeout)
    refused = {
        b'{"output_buffer_size":524289}': b"size (524289)",
        b'{"output_buffer_timeout":1001}': b"timeout (1001)",
    }
    for body, what in refused.items():
        text = b"E_BAD_BODY IDENTIFY output buffer " + what + b" is invalid"
        assert text == await refusal(daemon, identify(body))


@both("Sampling")
async def test_a_sample_is_delivered(run: Starter) -> None:
    """With sample_rate 42, about 42 % of the messages are delivered; the others are finished."""
    daemon = await run(max_rdy_count=10_000)
    async with connected(daemon) as client:
        client.send(mpub("t", [b"x"] * 10_000))
        assert b"OK" == await client.response()
        assert 42 == (await client.identify(sample_rate=42))["sample_rate"]
        client.send(sub("t", "c") + rdy(10_000))
        assert b"OK" == await client.response()
        reading = asyncio.create_task(read_all(client))
        await has(daemon, "depth", 0)
        in_flight = (await daemon.channel("t", "c"))["in_flight_count"]
        reading.cancel()

    assert 3700 < in_flight < 4800


async def read_all(client: AsyncV2Client) -> None:
    while True:
        await client.frame()


@both("ClientMsgTimeout")
async def test_a_clients_own_timeout(run: Starter) -> None:
    """A client's own timeout counts as a timeout, not a requeue; a late FIN gets E_FIN_FAILED."""
    daemon = await run()
    async with connected(daemon) as client:
        await subscribed(client, 1, msg_timeout=1000)
        await daemon.post("/pub?topic=t", b"x")
        _, message_id, _ = await message(client)
        client.send(rdy(0))
        await has(daemon, "timeout_count", 1)
        assert 0 == (await daemon.channel("t", "c"))["requeue_count"]
        client.send(fin(message_id))

        text = b"E_FIN_FAILED FIN " + message_id + b" failed ID not in flight"
        assert (1, text) == await client.frame()


@both("BadFin")
async def test_an_id_has_sixteen_digits(run: Starter) -> None:
    """A message id of another length than 16 is a fatal error."""
    daemon = await run()
    async with connected(daemon) as client:
        await subscribed(client, 1)
        client.send(b"FIN abc\n")
        assert b"E_INVALID invalid message ID" == await client.error()


@both("ReqTimeoutRange")
async def test_a_requeue_is_held_within_its_range(run: Starter) -> None:
    """REQ 0 requeues immediately, a long delay is cut to the maximum, a negative one is invalid."""
    daemon = await run(max_req_timeout=60 * 10**9)
    async with connected(daemon) as client:
        await subscribed(client, 1)
        await daemon.post("/pub?topic=t", b"x")
        _, message_id, _ = await message(client)
        client.send(req(message_id, 0))
        assert (2, message_id, b"x") == await message(client)
        client.send(req(message_id, 120_000))
        await has(daemon, "deferred_count", 1)
        due_ns = daemon.nsqd.broker.tick(daemon.nsqd.runner.now())
        assert due_ns is None or due_ns <= daemon.nsqd.runner.now().mono_ns + 60 * 10**9
        client.send(b"REQ " + message_id + b" -5\n")
        assert b"E_INVALID REQ could not parse timeout -5" == await client.error()


@pytest.mark.behaviour("TestUnixSocketStartup")
async def test_a_restart_at_a_unix_socket(tmp_path: Path) -> None:
    """Unfinished messages are delivered after a restart; the socket file is deleted on exit."""
    place = tmp_path / "s"
    daemon = await start(tmp_path, tcp_address=str(place))
    async with connected(daemon) as client:
        client.send(mpub("t", [b"%d" % n for n in range(300)]))
        assert b"OK" == await client.response()
        await subscribed(client, 150)
        for _ in range(150):
            client.send(fin((await message(client))[1]))
        client.send(b"CLS\n")
        while (await client.frame())[1] != b"CLOSE_WAIT":
            pass
    await stop(daemon)
    assert not place.exists()

    daemon = await start(tmp_path, tcp_address=str(place))
    found = set[int]()
    async with connected(daemon) as client:
        await subscribed(client, 300)
        async with asyncio.timeout(ASYNC_SECONDS):
            while len(found) < 150:
                _, message_id, body = await message(client)
                found.add(int(body))
                client.send(fin(message_id))
    await stop(daemon)
    assert set(range(150, 300)) == found


async def test_http_at_a_unix_socket(tmp_path: Path) -> None:
    """HTTP works on a unix socket, and /info shows http_port -1."""
    place = tmp_path / "h"
    daemon = await start(tmp_path, http_address=str(place))
    reader, writer = await asyncio.open_unix_connection(str(place))
    writer.write(b"GET /info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(ASYNC_SECONDS):
        answer = await reader.read()
    writer.close()
    await stop(daemon)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert -1 == json.loads(answer.partition(b"\r\n\r\n")[2])["http_port"]
    assert not place.exists()


async def test_ipv6(tmp_path: Path) -> None:
    """TCP and HTTP work on [::1]; the peer's address is shown in brackets."""
    daemon = await start(tmp_path, tcp_address="[::1]:0", http_address="[::1]:0")
    client = await AsyncV2Client.connect(daemon.listeners.tcp.text)
    client.send(pub("t", b"x"))
    assert b"OK" == await client.response()
    reader, http = await asyncio.open_connection("::1", daemon.nsqd.http_port)
    http.write(b"GET /stats?format=json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(ASYNC_SECONDS):
        answer = await reader.read()
    http.close()
    await client.close()
    await stop(daemon)

    (producer,) = json.loads(answer.partition(b"\r\n\r\n")[2])["producers"]
    assert producer["remote_address"].startswith("[::1]:")
    assert "::1" == producer["client_id"]
