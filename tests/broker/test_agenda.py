"""Timers, failures, and the errands of a topic."""

from __future__ import annotations

import errno

from sparq.broker.agenda import Agenda
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
