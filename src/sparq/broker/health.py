"""Disk health, and notes for the operator.

`/ping` reports it. It follows what publishes experience: a failure lasts until the same operation
succeeds again, whatever else works. A disk that takes ledger records may still refuse every sync.
`full_disk.DiskProbe` ends the failures of operations that only a client repeats.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final

from sparq.log.disk import DiskError
from sparq.log.reserve import FinReserve


class Trouble(Enum):
    """What the disk refuses."""

    PUBLISH = "publishing to a topic, or syncing its messages"
    LEDGER = "writing or syncing a topic's ledger"
    CREATE = "creating a topic"
    SAVE = "saving policies or drains"
    REMOVAL = "deleting a topic's files"
    OPENING = "opening a topic at the start"
    PLACE = "finding the data path"
    CLOCK = "assigning message ids: the clock is out of their range"


PROBED: Final = frozenset({Trouble.PUBLISH, Trouble.CREATE, Trouble.SAVE})
"""Failures of operations that only a client repeats: the probe repeats them in its place."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class ErrorNote(str):
    """A note about a failure: logged as an error, the others as warnings."""

    __slots__ = ()


class Health:
    """The health of one data path.

    Attributes:
        troubles: the error of each failed operation that has not succeeded since, by kind and name
            (of the topic; "" where it does not matter).
        notes: notes for the operator; the caller that logs them clears the list.
    """

    def __init__(self) -> None:
        self.troubles: dict[tuple[Trouble, str], DiskError] = {}
        self.notes: list[str] = []
        self._is_quiet = False

    def fail(self, trouble: Trouble, name: str, note: str, error: DiskError) -> None:
        """Record a disk error; the health is bad until the same operation succeeds."""
        # Noted once, not for each refused operation: a full disk refuses every publish.
        if all(known.reason != error.reason for known in self.troubles.values()):
            self.notes.append(ErrorNote(note))
        self.troubles[trouble, name] = error
        self._is_quiet = False

    def recover(self, trouble: Trouble, name: str = "") -> None:
        """Record that an operation has succeeded."""
        self.troubles.pop((trouble, name), None)

    def forget(self, topic: str) -> None:
        """Remove the failures of a topic that is deleted."""
        for trouble in Trouble:
            if trouble is not Trouble.REMOVAL:
                self.recover(trouble, topic)

    def probed(self) -> None:
        """Record that the disk has stored a file: the second time in a row, publishes recover."""
        if not self._is_quiet:
            self._is_quiet = True
            return
        was_full, was_troubled = self.is_full, bool(self.troubles)
        self.troubles = {key: error for key, error in self.troubles.items() if key[0] not in PROBED}
        if was_troubled and not self.troubles:
            self.notes.append(f"the disk {'has space' if was_full else 'works'} again")

    @property
    def is_full(self) -> bool:
        """Whether an operation failed for lack of space."""
        return any(error.number in FULL for error in self.troubles.values())

    def _worst(self) -> DiskError | None:
        """The first error, one that is not for lack of space before others: that needs repair."""
        errors = self.troubles.values()
        return next((e for e in errors if e.number not in FULL), next(iter(errors), None))

    def text(self, room: FinReserve | None) -> str:
        """ "OK", or "NOK - " and the disk error; on a full disk also what to do."""
        error = self._worst()
        if error is None:
            return "OK"
        if room is None or error.number not in FULL:
            unopened = next((name for kind, name in self.troubles if kind is Trouble.OPENING), "")
            is_opening = self.troubles.get((Trouble.OPENING, unopened)) is error
            where = f"topic {unopened} cannot be opened: " if is_opening else ""
            return f"NOK - {where}{error.reason}"
        held, target = room.reserve_bytes >> 10, room.target_bytes >> 10
        return (
            f"NOK - {error.reason}; consumers can continue: {held:,} of {target:,} KiB reserved for"
            f" FINs on {room.ledgers:,} topics, enough for {room.finishes:,} before the next"
            " checkpoint; to publish again, free disk space, or empty or delete channels or topics"
        )
