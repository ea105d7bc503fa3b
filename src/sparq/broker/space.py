"""Notices when a full disk has space again, though nobody publishes.

While `/ping` tells of a full disk, balancers send no publishers here, so the next publish must not
be what ends it. Looking is disk work, done by the housekeeping thread.

1. Only a disk that was full is looked at. For other failures a success is the only proof.
2. Space is enough when the reserve is whole and the largest publish would fit beside it.
3. While it is not, each look makes the largest ledger smaller, one at a time.
"""

from __future__ import annotations

from typing import Final

from sparq.broker import relief
from sparq.broker.agenda import Agenda
from sparq.log.disk import DiskError
from sparq.log.reserve import Reserve
from sparq.log.task import Task, TaskKind
from sparq.protocol.instant import Instant


class SpaceWatch:
    """Looks at one data path."""

    kind: Final = TaskKind.HOUSEKEEPING

    def __init__(self, reserve: Reserve, agenda: Agenda, enough_bytes: int) -> None:
        """`enough_bytes`: what the largest publish takes."""
        self.error: DiskError | None = None
        self._reserve = reserve
        self._agenda = agenda
        self._enough_bytes = enough_bytes
        self._under_way = False
        self._enough = False

    def look(self) -> None:
        """Have a look, if the disk was full when it last refused something."""
        if (self._agenda.is_full or self._reserve.is_short) and not self._under_way:
            self._under_way = True
            self._agenda.tasks.append(Task(self, self._looked))

    def run(self) -> None:
        """Fill the reserve up, and see what is free beside it."""
        self.error = None
        try:
            self._enough = self._reserve.look(self._enough_bytes)
        except DiskError as error:
            self.error = error
            self._enough = False

    def _looked(self, now: Instant) -> None:
        self._under_way = False
        if not self._enough and self.error is None:
            relief.shrink_largest(self._agenda.books, now)
        if self._enough and self._agenda.is_full:
            self._agenda.failure = None
            self._agenda.notes.append("the disk has space again")
