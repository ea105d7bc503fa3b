"""Timers: when each topic is due."""

from __future__ import annotations

from sparq.broker.options import NEVER
from sparq.broker.turn import STALE_MIN, Timers


class TimedObject:
    """An object with a scheduled time."""

    def __init__(self) -> None:
        self.scheduled_ns = NEVER


def test_timers_fire_once_and_in_time() -> None:
    """The earliest scheduled time counts; the object must reschedule itself for a later one."""
    timers: Timers[TimedObject] = Timers()
    one, two = TimedObject(), TimedObject()
    timers.schedule(one, 50)
    timers.schedule(one, 30)
    timers.schedule(one, 40)
    timers.schedule(two, 35)
    assert timers.next_ns() == 30

    assert timers.pop_due(29) == []
    assert timers.pop_due(55) == [one, two]
    timers.schedule(one, 60)
    assert timers.pop_due(59) == []
    assert timers.pop_due(60) == [one]
    assert timers.next_ns() == NEVER


def test_outdated_timers_do_not_pile_up() -> None:
    """Repeated rescheduling to an earlier time does not let the heap grow."""
    timers: Timers[TimedObject] = Timers()
    sleepers = [TimedObject() for _ in range(10)]
    for turn in range(10_000):
        for sleeper in sleepers:
            timers.schedule(sleeper, 1_000_000_000)
            timers.schedule(sleeper, turn + 1)
        assert timers.pop_due(turn + 1) == sleepers
        for sleeper in sleepers:
            timers.schedule(sleeper, 1_000_000_000)

    assert len(timers._heap) <= 2 * len(sleepers) + STALE_MIN
    assert timers.next_ns() == 1_000_000_000
    assert timers.pop_due(1_000_000_000) == sleepers
    assert timers.next_ns() == NEVER


def test_a_cancelled_timer_does_not_fire() -> None:
    """A cancelled timer does not fire, and can be scheduled again."""
    timers: Timers[TimedObject] = Timers()
    one, two = TimedObject(), TimedObject()
    timers.schedule(one, 10)
    timers.schedule(two, 10)
    timers.cancel(one)
    timers.cancel(one)
    assert timers.pop_due(10) == [two]

    timers.schedule(one, 20)

    assert timers.pop_due(20) == [one]
