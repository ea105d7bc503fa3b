"""Timers, failures, and the errands of a topic."""

from __future__ import annotations

import errno

from sparq.broker.agenda import STALE_TIMERS_MIN, Agenda
from sparq.broker.errands import Errands
from sparq.broker.options import NEVER
from sparq.log.disk import DiskError
from sparq.log.task import TaskKind
from sparq.protocol.instant import Instant


class Sleeper:
    """Notes when it was called; sleeps on until `again`."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.scheduled_ns = NEVER
        self.called: list[int] = []
        self.again = NEVER

    def on_time(self, now: Instant) -> None:
        """Called."""
        self.called.append(now.mono_ns)
        if self.again != NEVER:
            self.agenda.schedule(self, self.again)
            self.again = NEVER


class Nothing:
    """Work that is done at once."""

    kind = TaskKind.READ
    error: DiskError | None = None

    def run(self) -> None:
        """Done."""


def test_timers_fire_once_and_in_time() -> None:
    """The earliest wish counts; a later one is asked for anew by whoever was called."""
    agenda = Agenda()
    one, two = Sleeper(agenda), Sleeper(agenda)
    agenda.schedule(one, 50)
    agenda.schedule(one, 30)
    agenda.schedule(one, 40)
    agenda.schedule(two, 35)
    assert agenda.next_timer_ns() == 30
    one.again = 60

    agenda.run_timers(Instant(0, 55))
    assert (one.called, two.called) == ([55], [55])
    agenda.run_timers(Instant(0, 59))
    agenda.run_timers(Instant(0, 60))

    assert (one.called, two.called, agenda.next_timer_ns()) == ([55, 60], [55], NEVER)


def test_a_failure_that_lasts_is_noted_once() -> None:
    """Health tells the reason; an operator is not told the same thing each turn."""
    agenda = Agenda()
    full = DiskError("write", "/x", errno.ENOSPC)
    agenda.fail("first", full)
    agenda.fail("second", full)

    assert (agenda.failure, agenda.notes) == ("no space left on device", ["first"])


def test_errands_tell_when_nothing_is_under_way() -> None:
    """Whoever wants to remove a topic is called when its last work is done, and once."""
    agenda = Agenda()
    errands = Errands(agenda)
    called: list[str] = []
    errands.submit(Nothing(), lambda _now: called.append("a"))
    errands.submit(Nothing(), lambda _now: called.append("b"))
    errands.when_idle(lambda: called.append("idle"))
    for task in agenda.tasks:
        task.run()
        task.done(Instant(0, 0))

    assert called == ["a", "b", "idle"]
    errands.when_idle(lambda: called.append("at once"))
    assert called[-1] == "at once"


def test_timers_that_no_longer_count_do_not_pile_up() -> None:
    """Whoever wants to be called earlier again and again costs one entry, not one for each wish."""
    agenda = Agenda()
    sleepers = [Sleeper(agenda) for _ in range(10)]
    for turn in range(10_000):
        for sleeper in sleepers:
            agenda.schedule(sleeper, 1_000_000_000)
            sleeper.again = 1_000_000_000
            agenda.schedule(sleeper, turn + 1)
        agenda.run_timers(Instant(0, turn + 1))

    assert [len(sleeper.called) for sleeper in sleepers] == [10_000] * 10
    assert len(agenda._timers) <= 2 * len(sleepers) + STALE_TIMERS_MIN
    assert agenda.next_timer_ns() == 1_000_000_000
    agenda.run_timers(Instant(0, 1_000_000_000))
    assert [sleeper.called[-1] for sleeper in sleepers] == [1_000_000_000] * 10
    assert agenda.next_timer_ns() == NEVER


def test_who_cancels_is_not_called() -> None:
    """An object that is gone is not called any more, and may be scheduled anew."""
    agenda = Agenda()
    one, two = Sleeper(agenda), Sleeper(agenda)
    agenda.schedule(one, 10)
    agenda.schedule(two, 10)
    agenda.cancel(one)
    agenda.cancel(one)
    agenda.run_timers(Instant(0, 10))
    assert (one.called, two.called) == ([], [10])

    agenda.schedule(one, 20)
    agenda.run_timers(Instant(0, 20))

    assert one.called == [20]
