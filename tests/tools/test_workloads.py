"""Workloads of `sparq bench`: their figures, and the limit of their waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import cast
from unittest.mock import create_autospec

import pytest

from sparq.client.consumer import Consumer
from sparq.client.message import Message
from sparq.client.producer import Producer
from sparq.protocol.errors import RemoteError
from sparq.tools.command_line import ToolError
from sparq.tools.workloads import LatencyWorkload, Measurement, patience


async def _messages(bodies: asyncio.Queue[bytes]) -> AsyncIterator[Message]:
    while True:
        message = create_autospec(Message, instance=True)
        message.body = await bodies.get()
        yield message


async def test_the_wait_for_a_missing_message_is_an_error() -> None:
    """The wait for a message that does not arrive ends with an error."""
    with pytest.raises(ToolError, match="did not arrive"):
        async with patience(0.01):
            await asyncio.Event().wait()


async def test_a_failed_publish_ends_the_latency_workload_with_its_error() -> None:
    """nsqd's error is raised at once, and not that a message did not arrive."""
    bodies: asyncio.Queue[bytes] = asyncio.Queue()
    published = 0

    async def publish(_topic: str, body: bytes) -> None:
        nonlocal published
        published += 1
        if published == 5:
            raise RemoteError("E_PUB_FAILED", "disk full")
        bodies.put_nowait(body)

    producer = create_autospec(Producer, instance=True)
    producer.publish = publish
    consumer = cast(Consumer, _messages(bodies))

    with pytest.raises(RemoteError, match="disk full"):
        async with asyncio.timeout(5):
            await LatencyWorkload(producer, "t", 8, rate=100).run(consumer, seconds=60)


def test_quantiles_are_of_the_times() -> None:
    """A quantile is the value that this share of the times does not exceed."""
    measurement = Measurement("", 4, 2.0, 1 << 20, [0.004, 0.001, 0.003, 0.002])

    assert [2.0, 4.0, 4.0, 1.0] == [measurement.quantile_ms(part) for part in (0.5, 0.99, 1.0, 0.0)]
    assert (2.0, 2.0) == (measurement.rate, measurement.mib_rate)
    assert Measurement("", 0, 0.0, 1).rate == 0.0


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_without_times_a_quantile_is_nan(part: float) -> None:
    """NaN is shown as "-" in the table: there is no time to show."""
    assert math.isnan(Measurement("", 4, 2.0, 1 << 20).quantile_ms(part))
