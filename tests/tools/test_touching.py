"""Messages that are handled slowly get a TOUCH when half of their timeout is over."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from sparq.tools import touching
from sparq.tools.touching import Touching, halfway
from tests.support.waiting import until


class FakeMessage:
    """A message with this many seconds left; each touch gives it the same time again."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.expires_at = time.monotonic() + seconds
        self.responded = False
        self.touches = 0

    def touch(self) -> None:
        self.touches += 1
        self.expires_at = time.monotonic() + self.seconds


def fake_message(seconds: float) -> Any:
    return FakeMessage(seconds)


def test_a_touch_is_due_after_half_of_the_time_left() -> None:
    """A message without a known timeout is never due."""
    now = time.monotonic()

    assert now + 5 <= halfway(fake_message(10)) <= time.monotonic() + 5
    assert math.inf == halfway(fake_message(math.inf))


def test_each_message_is_touched_after_half_of_its_time() -> None:
    """The next touch is due after half of the new time; a released message gets none."""
    touches, message, now = Touching(), fake_message(10), time.monotonic()
    with touches.holding(message):
        touches.touch_due(now + 4)
        assert 0 == message.touches
        touches.touch_due(now + 6)
        touches.touch_due(now + 4.9)
        assert 1 == message.touches
        touches.touch_due(now + 6)
        assert 2 == message.touches
    touches.touch_due(now + 9)

    assert 2 == message.touches


def test_answered_and_timed_out_messages_are_not_touched() -> None:
    """nsqd would refuse both touches; a message that still waits is touched."""
    touches, waiting = Touching(), fake_message(10)
    answered, timed_out = fake_message(10), fake_message(2)
    for message in (waiting, answered, timed_out):
        touches.add(message)
    answered.responded = True
    touches.touch_due(timed_out.expires_at + 1)
    touches.touch_due(answered.expires_at - 1)

    assert (1, 0, 0) == (waiting.touches, answered.touches, timed_out.touches)


async def test_one_timer_touches_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is touched when it is due, until the task is cancelled."""
    monkeypatch.setattr(touching, "TICK_SECONDS", 0.005)
    touches, messages = Touching(), [fake_message(0.05), fake_message(0.1), fake_message(60)]
    for message in messages:
        touches.add(message)
    running = asyncio.create_task(touches.run())

    await until(lambda: all(message.touches >= 3 for message in messages[:2]))
    assert 0 == messages[2].touches
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
