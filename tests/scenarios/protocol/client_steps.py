"""Steps that tests of a client's commands have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from sparq.protocol import commands as c
from sparq.protocol.receiver import decode_message
from tests.nsqd.daemon import Daemon, connected
from tests.support.v2_client import AsyncV2Client
from tests.support.waiting import until

StartNsqd = Callable[..., Awaitable[Daemon]]


class Delivered(NamedTuple):
    """A delivered message."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


async def send_ok(client: AsyncV2Client, *commands: bytes) -> None:
    """Send commands one at a time; each must be answered with OK."""
    for command in commands:
        client.send(command)
        assert b"OK" == await client.response()


async def message(client: AsyncV2Client) -> Delivered:
    """Read the next frame, which must be a message."""
    kind, data = await client.frame()
    assert 2 == kind, data
    timestamp_ns, attempts, message_id, body = decode_message(data)
    return Delivered(timestamp_ns, attempts, bytes(message_id), bytes(body))


async def subscribe(client: AsyncV2Client, ready: int, channel: str = "ch", **asked: Any) -> None:
    """Send IDENTIFY, SUB to the topic `t`, and RDY."""
    await client.identify(**asked)
    await send_ok(client, c.sub("t", channel))
    client.send(c.rdy(ready))


@asynccontextmanager
async def consuming(
    daemon: Daemon, channel: str = "ch", ready: int = 1, **asked: Any
) -> AsyncIterator[AsyncV2Client]:
    """Connect a client and send IDENTIFY, SUB to the topic `t`, and RDY."""
    async with connected(daemon) as client:
        await subscribe(client, ready, channel, **asked)
        yield client


async def assert_refused(daemon: Daemon, text: str, *sent: bytes, subscribed: bool = False) -> None:
    """On a new connection, these bytes get this error, and then the connection ends."""
    async with connected(daemon) as client:
        if subscribed:
            await send_ok(client, c.sub("t", "ch"))
        client.send(b"".join(sent))
        assert text.encode() == await client.error()


async def wait_for_channel(daemon: Daemon, **expected: int) -> None:
    """Wait until these values are in /stats of the channel `ch` of the topic `t`."""

    async def is_so() -> bool:
        found = await daemon.channel("t", "ch")
        return expected == {key: found[key] for key in expected}

    await until(is_so)
