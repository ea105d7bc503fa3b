"""Scenarios of NSQ's own tests, over TCP and over a unix socket."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparq.protocol import commands as c
from sparq.protocol.receiver import decode_message
from tests.nsqd.daemon import Daemon, connected, start, stop
from tests.support.v2_client import AsyncV2Client
from tests.support.waiting import until


class Got(NamedTuple):
    """A delivered message."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


@pytest.fixture(params=["tcp", "unix"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The options for a TCP port or a unix socket."""
    return {"tcp_address": str(tmp_path / "s")} if request.param == "unix" else {}


@asynccontextmanager
async def started(folder: Path, **options: Any) -> AsyncIterator[Daemon]:
    """Run an nsqd with these options."""
    daemon = await start(folder, **options)
    try:
        yield daemon
    finally:
        await stop(daemon)


@pytest.fixture
async def nsqd(tmp_path: Path, place: dict[str, Any]) -> AsyncIterator[Daemon]:
    """An nsqd with the small limits of NSQ's own tests."""
    limits = {"max_msg_size": 100, "max_body_size": 1000, "max_rdy_count": 50}
    async with started(tmp_path, id=5, **limits, **place) as daemon:
        yield daemon


@pytest.fixture
async def roomy(tmp_path: Path, place: dict[str, Any]) -> AsyncIterator[Daemon]:
    """An nsqd with a maximum RDY count of 10,000."""
    async with started(tmp_path, max_rdy_count=10_000, **place) as daemon:
        yield daemon


async def ok(client: AsyncV2Client, *commands: bytes) -> None:
    """Send commands one at a time; each must be answered with OK."""
    for command in commands:
        client.send(command)
        assert b"OK" == await client.response()


async def message(client: AsyncV2Client) -> Got:
    kind, data = await client.frame()
    assert kind == 2, data
    timestamp_ns, attempts, message_id, body = decode_message(data)
    return Got(timestamp_ns, attempts, bytes(message_id), bytes(body))


@asynccontextmanager
async def consuming(daemon: Daemon, topic: str, channel: str) -> AsyncIterator[AsyncV2Client]:
    """Connect a client and send IDENTIFY, SUB and RDY 1."""
    async with connected(daemon) as client:
        await client.identify()
        await ok(client, c.sub(topic, channel))
        client.send(c.rdy(1))
        yield client


async def refused(daemon: Daemon, text: str, *said: bytes) -> None:
    """On a new connection, these bytes get this error, and then the connection ends."""
    async with connected(daemon) as client:
        client.send(b"".join(said))
        assert text.encode() == await client.error()


@pytest.mark.behaviour("TestBasicV2", "unix.TestBasicV2", "TestPutMessage")
async def test_a_message_arrives(nsqd: Daemon) -> None:
    """After IDENTIFY, SUB and RDY 1, a published message is delivered once, with attempts 1."""
    async with consuming(nsqd, "t", "ch") as client:
        await nsqd.post("/pub?topic=t", b"test body")
        got = await message(client)
        assert (1, b"test body") == (got.attempts, got.body)
        client.send(c.fin(got.id))
        await nsqd.post("/pub?topic=t", b"next")
        assert b"next" == (await message(client)).body
        assert 1 == (await nsqd.channel("t", "ch"))["in_flight_count"]


@pytest.mark.behaviour(
    "TestMultipleConsumerV2", "unix.TestMultipleConsumerV2", "TestPutMessage2Chan"
)
async def test_each_channel_has_its_copy(nsqd: Daemon) -> None:
    """Two channels of a topic each deliver a message with the same id and body, and attempts 1."""
    async with consuming(nsqd, "t", "ch1") as one, consuming(nsqd, "t", "ch2") as two:
        await nsqd.post("/pub?topic=t", b"x")
        first, second = await message(one), await message(two)

        assert first == second
        assert (1, b"x") == (first.attempts, first.body)


@pytest.mark.behaviour("TestPausing", "unix.TestPausing")
async def test_a_paused_channel(nsqd: Daemon) -> None:
    """A message published while the channel is paused waits, and is delivered after unpause."""
    async with consuming(nsqd, "t", "ch") as client:
        await nsqd.post("/pub?topic=t", b"first")
        client.send(c.fin((await message(client)).id))
        await nsqd.post("/channel/pause?topic=t&channel=ch")
        await nsqd.post("/pub?topic=t", b"second")
        assert 1 == (await nsqd.channel("t", "ch"))["depth"]
        await nsqd.post("/channel/unpause?topic=t&channel=ch")
        assert b"second" == (await message(client)).body


@pytest.mark.behaviour("TestEmptyCommand", "unix.TestEmptyCommand")
async def test_empty_lines(nsqd: Daemon) -> None:
    """Two bare newlines get E_INVALID and end the connection; nsqd accepts other clients."""
    await refused(nsqd, "E_INVALID invalid command ", b"\n\n")
    async with connected(nsqd) as client:
        await ok(client, c.pub("t", b"x"))


@pytest.mark.behaviour("TestSizeLimits", "unix.TestSizeLimits")
async def test_sizes(nsqd: Daemon) -> None:
    """With limits of 100 and 1,000 bytes, larger or empty messages get NSQ's exact error texts."""
    async with connected(nsqd) as client:
        await ok(client, c.pub("t", b"a" * 95), c.pub("t", b"a" * 100))
        await ok(client, c.mpub("t", [b"a" * 100] * 2), c.dpub("t", 1, b"a" * 100))
    texts = {
        "E_BAD_MESSAGE PUB message too big 105 > 100": c.pub("t", b"a" * 105),
        "E_BAD_MESSAGE PUB invalid message body size 0": c.pub("t", b""),
        "E_BAD_MESSAGE DPUB message too big 101 > 100": c.dpub("t", 1, b"a" * 101),
        "E_BAD_BODY MPUB body too big 1148 > 1000": c.mpub("t", [b"a" * 100] * 11),
        "E_BAD_MESSAGE MPUB invalid message(5) body size 0": c.mpub("t", [b"a"] * 5 + [b""]),
        "E_BAD_MESSAGE MPUB message too big 101 > 100": c.mpub("t", [b"a"] * 5 + [b"a" * 101]),
    }
    for text, said in texts.items():
        await refused(nsqd, text, said)
    assert 5 == (await nsqd.topic("t"))["depth"]


@pytest.mark.behaviour("TestDPUB", "unix.TestDPUB")
async def test_a_deferred_publish(nsqd: Daemon) -> None:
    """DPUB defers a message, up to the maximum delay of an hour; a longer delay gets E_INVALID."""
    async with connected(nsqd) as client:
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=ch")
        await ok(client, c.dpub("t", 60_000, b"x"), c.dpub("t", 3_600_000, b"x"))
        channel = await nsqd.channel("t", "ch")
        assert (0, 2, 2) == (channel["depth"], channel["deferred_count"], channel["message_count"])
        client.send(c.dpub("t", 3_600_100, b"x"))
        text = b"E_INVALID DPUB timeout 3600100 out of range 0-3600000"
        assert text == await client.error()


@pytest.mark.behaviour("TestTouch", "unix.TestTouch")
async def test_touch_keeps_a_message(tmp_path: Path, place: dict[str, Any]) -> None:
    """A message that is touched in time does not time out."""
    async with (
        started(tmp_path, msg_timeout=1_500_000_000, **place) as daemon,
        consuming(daemon, "t", "ch") as client,
    ):
        await daemon.post("/pub?topic=t", b"x")
        got = await message(client)
        finished = time.monotonic() + 2.0

        async def outlasted() -> bool:
            client.send(c.touch(got.id))
            return time.monotonic() > finished

        await until(outlasted)
        client.send(c.fin(got.id) + c.cls())
        assert b"CLOSE_WAIT" == await client.response()
        assert 0 == (await daemon.channel("t", "ch"))["timeout_count"]


@pytest.mark.behaviour("TestMaxRdyCount", "unix.TestMaxRdyCount")
async def test_the_largest_rdy(nsqd: Daemon) -> None:
    """IDENTIFY returns max_rdy_count; RDY accepts it, and one more gets E_INVALID."""
    async with connected(nsqd) as client:
        assert 50 == (await client.identify())["max_rdy_count"]
        await ok(client, c.sub("t", "ch"))
        client.send(c.rdy(50) + c.rdy(51))
        assert b"E_INVALID RDY count 51 out of range 0-50" == await client.error()


@pytest.mark.behaviour("TestFatalError", "unix.TestFatalError")
@pytest.mark.behaviour("TestIOLoopReturnsClientErrWhenSendSucceeds")
@pytest.mark.behaviour("unix.TestIOLoopReturnsClientErrWhenSendSucceeds")
async def test_a_fatal_error(nsqd: Daemon) -> None:
    """After a fatal error the connection ends; a command after the bad one is not executed."""
    await refused(nsqd, "E_INVALID invalid command ASDF", b"ASDF\n", c.pub("t", b"x"))
    assert {} == nsqd.nsqd.broker.topics


@pytest.mark.behaviour("TestIOLoopReturnsClientErrWhenSendFails")
@pytest.mark.behaviour("unix.TestIOLoopReturnsClientErrWhenSendFails")
async def test_an_error_that_nobody_reads(nsqd: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    """A client that disconnects before its error is sent is removed without a logged exception."""
    for _ in range(10):
        async with connected(nsqd) as client:
            client.send(b"ASDF\n" * 100)

    async def is_forgotten() -> bool:
        return not nsqd.nsqd.broker.sessions

    await until(is_forgotten)
    assert [] == [record for record in caplog.records if record.exc_info]


@pytest.mark.behaviour("TestSampling", "unix.TestSampling")
async def test_a_sample(roomy: Daemon) -> None:
    """With sample_rate 42, a client gets about 42 % of 10,000 messages; the rest are finished."""
    for _ in range(4):
        await roomy.post("/mpub?topic=t", b"x\n" * 2_500)
    async with connected(roomy) as client:
        assert 42 == (await client.identify(sample_rate=42))["sample_rate"]
        await ok(client, c.sub("t", "ch"))
        client.send(c.rdy(10_000))

        async def is_drained() -> bool:
            return 0 == int((await roomy.channel("t", "ch"))["depth"])

        await until(is_drained)
        in_flight = (await roomy.channel("t", "ch"))["in_flight_count"]
        assert 3_700 <= in_flight <= 4_700


@pytest.mark.behaviour("TestClientMsgTimeout", "unix.TestClientMsgTimeout")
async def test_a_clients_own_timeout(nsqd: Daemon) -> None:
    """A client may request a shorter timeout; a FIN after it gets E_FIN_FAILED."""
    async with connected(nsqd) as client:
        assert 1_000 == (await client.identify(msg_timeout=1_000))["msg_timeout"]
        await ok(client, c.sub("t", "ch"))
        client.send(c.rdy(1))
        await nsqd.post("/pub?topic=t", b"x")
        got = await message(client)
        client.send(c.rdy(0))

        async def timed_out() -> bool:
            return 1 == int((await nsqd.channel("t", "ch"))["timeout_count"])

        await until(timed_out)
        assert 0 == (await nsqd.channel("t", "ch"))["requeue_count"]
        client.send(c.fin(got.id))
        text = b"E_FIN_FAILED FIN %b failed ID not in flight" % got.id
        assert (1, text) == await client.frame()
        client.send(c.rdy(1))
        assert (2, got.id) == ((again := await message(client)).attempts, again.id)


@pytest.mark.behaviour("TestBadFin", "unix.TestBadFin")
async def test_a_malformed_id(nsqd: Daemon) -> None:
    """A message id that does not have 16 bytes is a fatal error."""
    await refused_behind_sub(nsqd, "E_INVALID invalid message ID", b"FIN \n")


async def refused_behind_sub(daemon: Daemon, text: str, said: bytes) -> None:
    async with connected(daemon) as client:
        await ok(client, c.sub("t", "ch"))
        client.send(said)
        assert text.encode() == await client.error()


@pytest.mark.behaviour("TestReqTimeoutRange", "unix.TestReqTimeoutRange")
async def test_requeue_delays(nsqd: Daemon) -> None:
    """REQ 0 requeues immediately, a long delay is cut to the maximum, a negative one is fatal."""
    async with consuming(nsqd, "t", "ch") as client:
        await nsqd.post("/pub?topic=t", b"x")
        first = await message(client)
        client.send(c.req(first.id, 0))
        second = await message(client)
        assert (first.id, 2) == (second.id, second.attempts)
        client.send(c.req(second.id, 2 * 3_600_000))

        async def is_deferred() -> bool:
            return 1 == int((await nsqd.channel("t", "ch"))["deferred_count"])

        await until(is_deferred)
        (due_ns,) = (due for due, *_ in nsqd.nsqd.broker.topics["t"].channels["ch"].delays._heap)
        now_ns = nsqd.nsqd.runner.now().mono_ns
        assert 0 < due_ns - now_ns <= 3_600 * 10**9
    text = "E_INVALID REQ could not parse timeout -5"
    await refused_behind_sub(nsqd, text, c.req(first.id, -5))


@pytest.mark.behaviour("TestChannelTopicNames")
async def test_names(nsqd: Daemon) -> None:
    """Names have up to 64 characters, including `#ephemeral`; any other suffix is invalid."""
    fit = ["a", "a" * 64, "a" * 54 + "#ephemeral", "._-09AZ", "t#ephemeral"]
    for name in fit:
        async with connected(nsqd) as client:
            await ok(client, c.sub(name, name))
    for name in ["a" * 65, "a" * 55 + "#ephemeral", "a#x", "#ephemeral", "a:b", "ä"]:
        quoted = f'"{name}"'
        await refused(
            nsqd, f"E_BAD_TOPIC SUB topic name {quoted} is not valid", b"SUB %b c\n" % name.encode()
        )
        await refused(
            nsqd,
            f"E_BAD_CHANNEL SUB channel name {quoted} is not valid",
            b"SUB t %b\n" % name.encode(),
        )


@pytest.mark.behaviour("TestMaxChannelConsumers")
async def test_consumers_of_a_channel_are_limited(tmp_path: Path, place: dict[str, Any]) -> None:
    """With max_channel_consumers 1, a second consumer is refused until the first has left."""
    text = "E_SUB_FAILED SUB failed consumers for t:ch exceeds limit of 1"
    async with started(tmp_path, max_channel_consumers=1, **place) as daemon:
        async with consuming(daemon, "t", "ch"):
            await refused(daemon, text, c.sub("t", "ch"))
            async with consuming(daemon, "t2", "ch"):
                pass

        async def has_left() -> bool:
            return not (await daemon.channel("t", "ch"))["client_count"]

        await until(has_left)
        async with consuming(daemon, "t", "ch"):
            assert 1 == (await daemon.channel("t", "ch"))["client_count"]


@pytest.mark.behaviour("TestClientAttributes", "TestStats")
async def test_what_identify_said_is_in_the_stats(nsqd: Daemon) -> None:
    """/stats shows a client's IDENTIFY values; its filters and include_clients work."""
    said = {
        "client_id": "me",
        "hostname": "host",
        "user_agent": "test/1",
        "sample_rate": 7,
        "topology_region": "r",
        "topology_zone": "z",
    }
    async with connected(nsqd) as client:
        await client.identify(**said)
        await ok(client, c.sub("t", "ch"))
        (found,) = (await nsqd.channel("t", "ch"))["clients"]
        assert said == {key: found[key] for key in said}
        (topic,) = (await nsqd.stats("include_clients=false"))["topics"]
        (channel,) = topic["channels"]
        assert (1, None) == (channel["client_count"], channel["clients"])
        assert not (await nsqd.stats("topic=other"))["topics"]
        assert not (await nsqd.stats("topic=t&channel=other"))["topics"]


@pytest.mark.behaviour("TestStatsChannelLocking")
async def test_stats_while_messages_go_out(nsqd: Daemon) -> None:
    """/stats during deliveries never shows more than RDY in flight, and adds up at the end."""
    async with connected(nsqd) as client:
        await ok(client, c.sub("t", "ch"))
        client.send(c.rdy(25))
        for _ in range(10):
            await nsqd.post("/mpub?topic=t", b"x\n" * 5)
            channel = await nsqd.channel("t", "ch")
            assert 25 >= channel["in_flight_count"]

        async def is_full() -> bool:
            channel = await nsqd.channel("t", "ch")
            return (25, 25) == (channel["in_flight_count"], channel["depth"])

        await until(is_full)
