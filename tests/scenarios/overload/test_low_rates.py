"""Each setting of docs/policies.md has its effect at a low rate, too: a few small messages.

Limits that count whole files or wait for many messages passed every test at high rates, and had no
effect on the topics that most users have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from sparq.broker import trimming
from sparq.broker.options import QueueSettings
from sparq.protocol.commands import pub, rdy, req, sub
from tests.nsqd.daemon import Daemon, start, stop
from tests.support.v2_client import (
    FRAME_ERROR,
    FRAME_MESSAGE,
    OK,
    AsyncV2Client,
    decode_message,
    fin_each,
)
from tests.support.waiting import until

BODY = b"x" * 400
SECOND = 1_000_000_000
SOON_SECONDS = 8.0
PAUSE_SECONDS = 0.1
"""Between publishes: the low rate itself, so that each is a batch of its own."""


class Few:
    """One nsqd whose topic `t` has the channel `c`, and gets few messages."""

    def __init__(self, nsqd: Daemon, client: AsyncV2Client) -> None:
        self.nsqd, self.client = nsqd, client

    async def publish(self, count: int = 1) -> list[bytes]:
        """Publish one at a time, with pauses; return the answers."""
        answers = []
        for _ in range(count):
            answers.append((await self.client.ask(pub("t", BODY)))[1])
            await asyncio.sleep(PAUSE_SECONDS)
        return answers

    async def subscribe(self, channel: str = "c") -> tuple[AsyncV2Client, tuple[int, bytes]]:
        """Subscribe another client; return it with nsqd's answer."""
        client = await AsyncV2Client.connect(self.nsqd.tcp)
        return client, await client.ask(sub("t", channel))

    async def finish(self, count: int) -> None:
        """Consume and finish so many messages."""
        client, _ = await self.subscribe()
        client.send(rdy(1))
        for left in reversed(range(count)):
            kind, data = await client.frame()
            assert kind == FRAME_MESSAGE
            client.send(rdy(min(left, 1)) + fin_each([decode_message(data)]))
        await self.shows(lambda c: not c["in_flight_count"])
        await client.close()

    async def shows(self, check: Callable[[dict[str, int]], bool]) -> None:
        """Wait until the figures of the channel hold."""

        async def holds() -> bool:
            return check(await self.nsqd.channel("t", "c"))

        await until(holds, SOON_SECONDS)

    async def replayed(self) -> int:
        """Seek to the beginning of the log; return how many messages are there."""
        await self.nsqd.post("/channel/seek?topic=t&channel=c&to=earliest")
        return int((await self.nsqd.channel("t", "c"))["depth"])


@asynccontextmanager
async def few(folder: Path, **options: int) -> AsyncIterator[Few]:
    """Run nsqd with these options."""
    nsqd = await start(folder, **options)
    try:
        client = await AsyncV2Client.connect(nsqd.tcp)
        await nsqd.post("/topic/create?topic=t")
        await nsqd.post("/channel/create?topic=t&channel=c")
        yield Few(nsqd, client)
        await client.close()
    finally:
        await stop(nsqd)


async def max_topic_bytes(it: Few) -> None:
    """In 6,000 bytes, a third of them for messages, two have room; finished ones make it again."""
    answers = await it.publish(5)
    assert [b"OK"] * 2 == answers[:2]
    assert all(b"the limit of 6000 bytes for topic t is reached" in one for one in answers[2:])
    await it.finish(2)
    assert [b"OK"] == await it.publish()


async def max_topic_messages(it: Few) -> None:
    """Three fit; one finished message makes room for one."""
    answers = await it.publish(4)
    assert [b"OK"] * 3 == answers[:3]
    assert b"the limit of 3 messages for topic t is reached" in answers[3]
    await it.finish(1)
    answers = await it.publish(2)
    assert answers[0] == b"OK" != answers[1]


async def drop_oldest(it: Few) -> None:
    """With room for three, five publishes drop two."""
    assert [b"OK"] * 5 == await it.publish(5)
    await it.shows(lambda c: (c["depth"], c["voided_count"]) == (3, 2))


async def max_publish_rate(it: Few) -> None:
    """One per second, after a burst of one second: four publishes take two seconds."""
    assert [b"OK"] * 4 == await it.publish(4)
    assert (await it.nsqd.topic("t"))["held_count"] == 2


async def max_client_publish_rate(it: Few) -> None:
    """One per second and client: the third publish is held, but not that of another client."""
    other = await AsyncV2Client.connect(it.nsqd.tcp)
    for client in (it.client, other, it.client, other):
        assert await client.ask(pub("t", BODY)) == OK
    assert (await it.nsqd.topic("t"))["held_count"] == 0
    assert await it.client.ask(pub("t", BODY)) == OK
    assert (await it.nsqd.topic("t"))["held_count"] == 1
    await other.close()


async def max_channels(it: Few) -> None:
    """There is one channel: the second is refused."""
    other, (kind, text) = await it.subscribe("d")
    assert kind == FRAME_ERROR
    assert b"the limit of 1 channels" in text
    await other.close()


async def retention_bytes(it: Few) -> None:
    """Of ten finished messages in files of 6,000 bytes, 8,000 bytes and up to a file stay."""
    await it.publish(10)
    await it.finish(10)
    log = it.nsqd.nsqd.broker.topics["t"].stream.log
    await until(lambda: 8_000 <= log.size_bytes <= 8_000 + 6_000 + 1_000, SOON_SECONDS)
    assert 3 <= await it.replayed() < 10


async def retention_time(it: Few) -> None:
    """Finished messages are gone after twice that time, although their file is not full."""
    await it.publish(3)
    await it.finish(3)
    assert await it.replayed() == 3
    await it.finish(3)
    await until(lambda: not it.nsqd.nsqd.broker.topics["t"].stream.log.segments(), SOON_SECONDS)
    assert await it.replayed() == 0


async def max_channel_lag_bytes(it: Few) -> None:
    """Of five messages, each about 600 bytes of the log, one is within 1,000 bytes."""
    await it.publish(5)
    await it.shows(lambda c: (c["depth"], c["voided_count"]) == (1, 4))


async def max_channel_lag_time(it: Few) -> None:
    """Unread messages go after a second."""
    await it.publish(3)
    await it.shows(lambda c: (c["depth"], c["voided_count"]) == (0, 3))


async def max_attempts(it: Few) -> None:
    """A message that was requeued once is a dead letter."""
    await it.publish()
    client, _ = await it.subscribe()
    client.send(rdy(1))
    client.send(req(decode_message((await client.frame())[1]).id, 0))
    await it.shows(lambda c: (c["depth"], c["dead_letter_count"]) == (0, 1))
    assert (await it.nsqd.topic("t.dead"))["message_count"] == 1
    await client.close()


async def message_ttl(it: Few) -> None:
    """Messages that nobody asked for within a second are finished."""
    await it.publish(2)
    await it.shows(lambda c: (c["depth"], c["expired_count"]) == (0, 2))


async def max_channel_consumers(it: Few) -> None:
    """The second consumer is refused."""
    first, answer = await it.subscribe()
    assert answer == OK
    second, (kind, text) = await it.subscribe()
    assert kind == FRAME_ERROR
    assert b"exceeds limit of 1" in text
    await first.close()
    await second.close()


Case = tuple[Callable[[Few], Awaitable[None]], dict[str, int]]
CASES: dict[str, Case] = {
    "max_topic_bytes": (max_topic_bytes, {"max_topic_bytes": 6_000}),
    "max_topic_messages": (max_topic_messages, {"max_topic_messages": 3}),
    "drop_oldest": (drop_oldest, {"drop_oldest": True, "max_topic_messages": 3}),
    "max_publish_rate": (max_publish_rate, {"max_publish_rate": 1}),
    "max_client_publish_rate": (max_client_publish_rate, {"max_client_publish_rate": 1}),
    "max_channels": (max_channels, {"max_channels": 1}),
    "retention_bytes": (retention_bytes, {"retention_bytes": 8_000, "max_bytes_per_file": 6_000}),
    "retention_time": (retention_time, {"retention_time": SECOND}),
    "max_channel_lag_bytes": (max_channel_lag_bytes, {"max_channel_lag_bytes": 1_000}),
    "max_channel_lag_time": (max_channel_lag_time, {"max_channel_lag_time": SECOND}),
    "max_attempts": (max_attempts, {"max_attempts": 1}),
    "message_ttl": (message_ttl, {"message_ttl": SECOND}),
    "max_channel_consumers": (max_channel_consumers, {"max_channel_consumers": 1}),
}


@pytest.mark.behaviour("TestMaxChannelConsumers")
@pytest.mark.parametrize("setting", CASES)
async def test_a_setting_has_its_effect(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few small messages, one at a time."""
    monkeypatch.setattr(trimming, "FILE_AGE_MIN_NS", SECOND)
    case, options = CASES[setting]
    async with few(tmp_path, **options) as it:
        await case(it)


def test_every_setting_has_a_case() -> None:
    """A new setting of a policy needs a case here."""
    assert {field.name.removesuffix("_ns") for field in fields(QueueSettings)} == set(CASES)
