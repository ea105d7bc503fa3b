"""client.arguments: a delay that nsqd cannot count is refused before anything is done."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from sparq.client import Batch, Message
from sparq.client.publish import publish_deferred_command
from tests.client.scripted import consumer_of, scripted, subscribed
from tests.support.waiting import until

USES: dict[str, Callable[[Message, Any], object]] = {
    "a message": Message.requeue,
    "a batch": lambda message, delay: Batch([message]).requeue(delay),
    "a deferred publish": lambda _, delay: publish_deferred_command("t", b"x", delay),
}


@pytest.mark.parametrize("use", USES)
async def test_what_nsqd_cannot_count(use: str) -> None:
    """The error names the argument, and the message can still be answered for."""
    async with scripted() as [nsqd], consumer_of(nsqd) as consumer:
        peer = await subscribed(nsqd)
        peer.deliver(1)
        message = await anext(consumer)
        for delay in (-0.001, math.inf, math.nan, 1e10, 1e300):
            with pytest.raises(ValueError, match="delay_seconds must be from 0 to "):
                USES[use](message, delay)
        for kind in ("5", b"5"):
            with pytest.raises(TypeError, match="delay_seconds must be a number, not "):
                USES[use](message, kind)
        message.requeue(9e9, backoff=False)
        await until(lambda: not peer.in_flight)

        assert nsqd.lines(b"REQ") == [b"REQ 0000000000000001 9000000000000"]


def test_a_long_delay() -> None:
    """What nsqd can count is nsqd's to judge."""
    assert publish_deferred_command("t", b"x", 9e9).startswith(b"DPUB t 9000000000000\n")
