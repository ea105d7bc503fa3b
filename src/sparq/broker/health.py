"""Disk health, and how a full disk is handled.

`Health` holds the state that `/ping` reports and the notes for the operator. Its rule: it follows
what publishes experience. A failure lasts until the same operation succeeds again, whatever else
works: a disk that takes ledger records may still refuse every sync.

While `/ping` reports a failure, load balancers send no publishers here. So recovery must not depend
on the next publish: while there is a failure, `DiskProbe` stores a file as a publish does, once a
second in the housekeeping thread. Two successful probes without a refused publish in between end
the failures of `PROBED`: a publisher that is still refused counts more than the probe, which knows
only one file. The other failures end with the retry of what failed, which needs no publisher.

On a full disk, checkpoints free space for ledgers:

1. `make_room` is called when a ledger cannot be written. The replies of the turn wait for it, since
   a FIN sent before an answered command is guaranteed to be kept. `shrink_largest` is called while
   publishes are refused: ledgers may occupy the space that publishes need.
2. Each checkpoint uses the space that the reserve holds, and gives back what its ledger occupied.
3. The checkpoint of the ledger that could not be written also contains the records that were to be
   written to it. That checkpoint is therefore tried last.
4. There is enough space when the reserve is full and the largest publish fits in addition.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Final

from sparq.broker.publishing import Trouble
from sparq.broker.topic import Topic
from sparq.log.disk import DiskError
from sparq.log.reserve import BLOCK_BYTES, FinReserve, Reserve
from sparq.log.task import Task
from sparq.protocol.instant import Instant

SIZE_MIN: Final = 2 * BLOCK_BYTES
"""Space that a checkpoint and the ledger begun after it need themselves."""
LARGE_BYTES: Final = 4 * BLOCK_BYTES
"""On a full disk, an idle ledger of at least this size is worth a checkpoint."""
TRIED_MAX: Final = 8
"""Number of ledgers to try: if the largest cannot shrink, smaller ones hardly can."""


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
    def failure(self) -> str | None:
        """Why operations fail, in the operating system's words; None: none fails."""
        error = self._worst()
        return None if error is None else error.reason

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


def make_room(needy: Topic, topics: Iterable[Topic], now: Instant) -> bool:
    """Write a topic's ledger on a full disk, by means of checkpoints; False: not possible."""
    large = [topic for topic in topics if topic is not needy and _ledger_bytes(topic) > SIZE_MIN]
    large.sort(key=_ledger_bytes, reverse=True)
    # This runs in the event loop, and each checkpoint writes to the disk.
    del large[TRIED_MAX:]
    largest = max(map(_ledger_bytes, large), default=0)
    # If it is the largest itself, its own checkpoint frees the most space.
    if _ledger_bytes(needy) > largest and needy.shrink_ledger(now):
        return True
    for topic in large:
        if topic.shrink_ledger(now) and needy.writer is not None and needy.writer.write() is None:
            return True
    return needy.shrink_ledger(now)


def shrink_largest(topics: Iterable[Topic], now: Instant) -> None:
    """Shrink the largest ledger by a checkpoint, if that at least halves it.

    Ledgers alone can fill a small disk. Once all messages are finished nothing is written to the
    ledgers any more, so no failing write would trigger `make_room`.
    """
    large = [
        topic
        for topic in topics
        if _ledger_bytes(topic) >= max(LARGE_BYTES, 2 * _state_bytes(topic))
    ]
    if large:
        max(large, key=_ledger_bytes).shrink_ledger(now)


def _ledger_bytes(topic: Topic) -> int:
    return 0 if topic.writer is None else topic.writer.ledger.account.ledger_bytes


def _state_bytes(topic: Topic) -> int:
    return 0 if topic.writer is None else topic.writer.ledger.account.state_bytes


class DiskProbe(Task):
    """Checks whether publishes would be stored: a task for the housekeeping thread."""

    def __init__(self, reserve: Reserve, enough_bytes: int, store: Callable[[int], None]) -> None:
        """Prepare the task.

        Args:
            reserve: the data path's reserve.
            enough_bytes: the size of the largest publish.
            store: stores a file of this many bytes durably, and deletes it; raises DiskError.
        """
        self.error: DiskError | None = None
        self._reserve = reserve
        self._enough_bytes = enough_bytes
        self._store = store
        self._under_way = self._is_failing = False
        self._store_bytes = 0
        self._has_room = False

    def begins(self, health: Health) -> bool:
        """Whether to check now: no check is running."""
        if self._under_way:
            return False
        self._is_failing = bool(health.troubles) or self._reserve.is_short
        self._store_bytes = 0
        if any(kind in PROBED for kind, _ in health.troubles):
            # After a lack of space, as much as the largest publish: only that shows a quota.
            self._store_bytes = self._enough_bytes if health.is_full else BLOCK_BYTES
        self._under_way = True
        return True

    def run(self) -> None:
        """Find the data path; after a failure, refill the reserve, and store a file in addition."""
        self.error, self._has_room = None, False
        self._reserve.check_place()
        if not self._is_failing:
            return
        try:
            self._has_room = self._reserve.check_space(self._enough_bytes)
            if self._has_room and self._store_bytes:
                self._store(self._store_bytes)
            self._reserve.is_refusing &= not self._has_room
        except DiskError as error:
            self.error = error

    def apply_result(self, topics: Iterable[Topic], health: Health, now: Instant) -> None:
        """Apply the result of a check; without enough space, shrink the largest ledger."""
        self._under_way = False
        if (moved := self._reserve.blocked) is not None:
            note = f"publishes are refused: {moved}"
            health.fail(Trouble.PLACE, "", note, moved)
        elif not self._is_failing:
            return
        else:
            health.recover(Trouble.PLACE)
        if self.error is None and self._has_room:
            health.probed()
        elif self.error is None or self.error.is_full:
            shrink_largest(topics, now)
