"""Topics and channels are deleted, emptied and paused while clients publish and consume."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from sparq.protocol import commands as c
from sparq.protocol.receiver import decode_message
from tests.nsqd.daemon import Daemon, connected
from tests.support.v2_client import AsyncV2Client, Closed
from tests.support.waiting import until

ROUNDS = 8


class Load:
    """A publisher and a consumer that work until they are stopped.

    Attributes:
        acknowledged: bodies whose publish got OK.
        refused: errors that answered a publish.
        received: bodies that were finished.
        reconnected: number of times the consumer had to reconnect.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.acknowledged: list[bytes] = []
        self.refused: list[bytes] = []
        self.received: list[bytes] = []
        self.reconnected = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(work()) for work in (self._publish, self._consume)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        found = await asyncio.gather(*self._tasks, return_exceptions=True)
        for error in found:
            assert isinstance(error, asyncio.CancelledError), error

    async def _publish(self) -> None:
        number = 0
        while True:
            async with connected(self.daemon) as client:
                while True:
                    number += 1
                    body = b"%d" % number
                    client.send(c.pub("t", body))
                    kind, data = await client.frame()
                    if kind != 0:
                        # The topic is being deleted: nsqd closes the connection; the next one
                        # works.
                        self.refused.append(data)
                        break
                    self.acknowledged.append(body)

    async def _consume(self) -> None:
        while True:
            async with connected(self.daemon) as client:
                try:
                    await self._receive(client)
                except Closed:
                    self.reconnected += 1

    async def _receive(self, client: AsyncV2Client) -> None:
        client.send(c.sub("t", "c"))
        kind, data = await client.frame()
        if kind != 0:
            assert data.startswith(b"E_SUB_FAILED SUB failed exiting"), data
            return
        client.send(c.rdy(5))
        while True:
            kind, data = await client.frame()
            if kind == 2:
                _, _, message_id, body = decode_message(data)
                self.received.append(bytes(body))
                client.send(c.fin(bytes(message_id)))
            elif kind == 1:  # its message was dropped while in flight
                assert data.endswith(b"failed ID not in flight"), data

    async def wait_for_progress(self) -> None:
        """Wait until more messages have been published and received."""
        published, received = len(self.acknowledged), len(self.received)

        async def both() -> bool:
            return len(self.acknowledged) > published + 3 and len(self.received) > received + 3

        await until(both)


async def test_a_topic_is_deleted_under_load(nsqd: Daemon) -> None:
    """Consumers are disconnected and reconnect; publishing creates the topic again."""
    async with Load(nsqd) as load:
        for _ in range(ROUNDS):
            await load.wait_for_progress()
            await nsqd.post("/topic/delete?topic=t")
        await load.wait_for_progress()
    assert load.reconnected >= ROUNDS // 2
    assert {b"E_PUB_FAILED PUB failed exiting"} >= set(load.refused)


async def test_a_channel_is_emptied_under_load(nsqd: Daemon) -> None:
    """Emptying a channel keeps its clients; late FINs fail; no message is delivered twice."""
    async with Load(nsqd) as load:
        for _ in range(ROUNDS):
            await load.wait_for_progress()
            await nsqd.post("/channel/empty?topic=t&channel=c")
        await load.wait_for_progress()
    assert (0, []) == (load.reconnected, load.refused)
    assert len(set(load.received)) == len(load.received)


async def test_pauses_under_load_lose_no_message(nsqd: Daemon) -> None:
    """Pausing a topic and its channel disconnects nobody; every message is received once."""
    async with Load(nsqd) as load:
        for _ in range(ROUNDS):
            await load.wait_for_progress()
            for what in ("topic", "channel"):
                target = f"topic=t{'&channel=c' * (what == 'channel')}"
                await nsqd.post(f"/{what}/pause?{target}")
                await nsqd.post(f"/{what}/unpause?{target}")
        await load.wait_for_progress()

        async def all_are_there() -> bool:
            return set(load.received) >= set(load.acknowledged[:-50])

        await until(all_are_there)
    assert (0, []) == (load.reconnected, load.refused)
    assert len(set(load.received)) == len(load.received)


@pytest.mark.behaviour("TestEphemeralTopicsAndChannels")
async def test_ephemeral_topics_and_channels_are_deleted_with_their_last_client(
    nsqd: Daemon,
) -> None:
    """An ephemeral channel is deleted with its last client, the topic with its last channel."""
    async with AsyncExitStack() as first, connected(nsqd) as second:
        for client in (await first.enter_async_context(connected(nsqd)), second):
            client.send(c.sub("t#ephemeral", "c#ephemeral"))
            assert b"OK" == await client.response()
        await nsqd.post("/pub?topic=t%23ephemeral", b"x")
        await first.aclose()

        async def has_left() -> bool:
            (topic,) = (await nsqd.stats("topic=t%23ephemeral"))["topics"]
            return 1 == int(topic["channels"][0]["client_count"])

        await until(has_left)
        second.send(c.rdy(1))
        assert (await second.frame())[1].endswith(b"x")

    async def are_gone() -> bool:
        return not (await nsqd.stats())["topics"]

    await until(are_gone)
