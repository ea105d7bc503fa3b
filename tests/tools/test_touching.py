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


class Held:
    """A message with this many seconds left; each touch gives it the same time again."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.expires_at = time.monotonic() + seconds
        self.responded = False
        self.touches = 0

    def touch(self) -> None:
        self.touches += 1
        self.expires_at = time.monotonic() + self.seconds


def held(seconds: float) -> Any:
    return Held(seconds)


def test_halfway_is_half_of_what_is_left() -> None:
    """A message without a known timeout is never due."""
    now = time.monotonic()

    assert now + 5 <= halfway(held(10)) <= time.monotonic() + 5
    assert math.inf == halfway(held(math.inf))


def test_each_is_touched_once_half_of_its_time_is_over() -> None:
    """The next touch is due after half of the new time; a released message gets none."""
    touches, message, now = Touching(), held(10), time.monotonic()
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


def test_what_was_answered_or_is_over_is_not_touched() -> None:
    """nsqd would refuse both touches."""
    touches, answered, over = Touching(), held(10), held(10)
    touches.hold(answered)
    touches.hold(over)
    answered.responded = True
    touches.touch_due(over.expires_at + 1)
    answered.expires_at = math.inf
    touches.touch_due(time.monotonic() + 9)

    assert (0, 1) == (answered.touches, over.touches)


async def test_one_timer_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is touched when it is due, until the task is cancelled."""
    monkeypatch.setattr(touching, "TICK_SECONDS", 0.005)
    touches, messages = Touching(), [held(0.05), held(0.1), held(60)]
    for message in messages:
        touches.hold(message)
    running = asyncio.create_task(touches.run())

    await until(lambda: all(message.touches >= 3 for message in messages[:2]))
    assert 0 == messages[2].touches
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
