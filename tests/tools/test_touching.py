"""Messages that are handled slowly get a TOUCH when half of their timeout is over."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest

from sparq.client.message import Message
from sparq.tools import relay
from sparq.tools.relay import HostPool, Relay
from tests.support.waiting import until


class FakeMessage:
    """A message with this many seconds left; each touch gives it the same time again."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.expires_at = time.monotonic() + seconds
        self.responded = False
        self.touched_at: list[float] = []

    def touch(self) -> None:
        """Note the time."""
        self.touched_at.append(time.monotonic())
        self.expires_at = time.monotonic() + self.seconds

    async def finish(self) -> None:
        """Nothing to do."""
        self.responded = True

    def __len__(self) -> int:
        return 1


@asynccontextmanager
async def held(monkeypatch: pytest.MonkeyPatch, *messages: FakeMessage) -> AsyncIterator[None]:
    """Hand these messages to a host that answers at the end of the block."""
    monkeypatch.setattr(relay, "TICK_SECONDS", 0.005)
    answered = asyncio.Event()

    async def send(_: str) -> None:
        await answered.wait()

    running = Relay(["a"], HostPool("hostpool", ["a"], random.Random(1)), 0, 10)
    stop = asyncio.Event()
    serving = asyncio.create_task(running.serve([], stop, 0))
    sent = [
        asyncio.create_task(running.forward(cast(Message, message), send)) for message in messages
    ]
    try:
        yield
    finally:
        answered.set()
        await asyncio.gather(*sent)
        counts = [len(message.touched_at) for message in messages]
        await asyncio.sleep(0.02)
        stop.set()
        await serving
        assert counts == [len(message.touched_at) for message in messages]


async def test_each_message_is_touched_after_half_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next touch is due after half of the new time; an answered message gets none."""
    began = time.monotonic()
    quick, slow, endless = FakeMessage(0.05), FakeMessage(0.1), FakeMessage(float("inf"))
    messages: list[Any] = [quick, slow, endless]
    async with held(monkeypatch, *messages):
        await until(lambda: all(len(message.touched_at) >= 3 for message in (quick, slow)))

    assert [] == endless.touched_at
    for message in (quick, slow):
        times = [began, *message.touched_at]
        assert all(b - a >= message.seconds / 2 for a, b in pairwise(times))


async def test_answered_and_timed_out_messages_are_not_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """nsqd would refuse both touches; a message that still waits is touched."""
    waiting, answered, timed_out = FakeMessage(0.05), FakeMessage(0.05), FakeMessage(-1)
    answered.responded = True
    async with held(monkeypatch, waiting, answered, timed_out):
        await until(lambda: bool(waiting.touched_at))

    assert ([], []) == (answered.touched_at, timed_out.touched_at)
