"""A topic's disk work that is under way: handed out, counted, and waited for when the topic goes.

A topic's files must not be closed or renamed under a thread that uses them, so whoever removes it
waits until its last work is done.
"""

from __future__ import annotations

from collections.abc import Callable

from sparq.broker.agenda import Agenda
from sparq.log.task import Task, Work
from sparq.protocol.instant import Instant


class Errands:
    """The works of one topic."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._count = 0
        self._when_idle: Callable[[], None] | None = None

    def submit(self, work: Work, then: Callable[[Instant], None]) -> None:
        """Hand work out; `then` is called in the loop when it has run."""

        def done(now: Instant) -> None:
            self._count -= 1
            then(now)
            self._check()

        self._count += 1
        self._agenda.tasks.append(Task(work, done))

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call back once, as soon as nothing is under way."""
        self._when_idle = call
        self._check()

    def _check(self) -> None:
        if self._when_idle is not None and not self._count:
            call, self._when_idle = self._when_idle, None
            call()
