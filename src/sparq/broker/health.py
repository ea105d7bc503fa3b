"""Disk health, and how a full disk is handled.

`Health` holds the state that `/ping` reports and the notes for the operator. On a full disk,
checkpoints free space for ledgers, and `SpaceWatch` detects when there is space again:

1. `make_room` is called when a ledger cannot be written. The replies of the turn wait for it, since
   a FIN sent before an answered command is guaranteed to be kept. `shrink_largest` is called while
   publishes are refused: ledgers may occupy the space that publishes need.
2. Each checkpoint uses the space that the reserve holds, and gives back what its ledger occupied.
3. The checkpoint of the ledger that could not be written also contains the records that were to be
   written to it. That checkpoint is therefore tried last.
4. While `/ping` reports a full disk, load balancers send no publishers here. So recovery must not
   depend on the next publish: `SpaceWatch` checks, in the housekeeping thread. It checks only a
   disk that was full; after other failures only a successful write is proof. There is enough space
   when the reserve is full and the largest publish would fit in addition.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from sparq.broker.topic import Topic
from sparq.log.disk import DiskError
from sparq.log.reserve import BLOCK_BYTES, FinReserve, Reserve
from sparq.log.task import TaskKind
from sparq.protocol.instant import Instant

SIZE_MIN: Final = 2 * BLOCK_BYTES
"""Space that a checkpoint and the ledger begun after it need themselves."""
LARGE_BYTES: Final = 4 * BLOCK_BYTES
"""On a full disk, an idle ledger of at least this size is worth a checkpoint."""
TRIED_MAX: Final = 8
"""Number of ledgers to try: if the largest cannot shrink, smaller ones hardly can."""


class Health:
    """The health of one data path.

    Attributes:
        failure: why the disk last refused an operation; None after a success.
        notes: notes for the operator; the caller that logs them clears the list.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self.notes: list[str] = []
        self._number = 0

    def fail(self, note: str, error: DiskError) -> None:
        """Record a disk error; the health is bad until an operation succeeds."""
        # Noted once, not for each refused operation: a full disk refuses every publish.
        if self.failure != error.reason:
            self.notes.append(note)
        self.failure = error.reason
        self._number = error.number

    def recover(self) -> None:
        """Record that the disk works again."""
        self.failure = None

    @property
    def is_full(self) -> bool:
        """Whether the last disk error was a lack of space."""
        return self.failure is not None and self._number == errno.ENOSPC

    def text(self, room: FinReserve | None) -> str:
        """ "OK", or "NOK - " and the last disk error; on a full disk also what to do."""
        if self.failure is None:
            return "OK"
        if room is None or not self.is_full:
            return f"NOK - {self.failure}"
        held, target = room.reserve_bytes >> 10, room.target_bytes >> 10
        return (
            f"NOK - {self.failure}; consumers can continue: {held:,} of {target:,} KiB reserved for"
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


class SpaceWatch:
    """Checks the free space of one data path: a task for the housekeeping thread."""

    kind: Final = TaskKind.HOUSEKEEPING

    def __init__(self, reserve: Reserve, enough_bytes: int) -> None:
        """`enough_bytes`: the size of the largest publish."""
        self.error: DiskError | None = None
        self._reserve = reserve
        self._enough_bytes = enough_bytes
        self._under_way = False
        self._enough = False

    def begins(self, health: Health) -> bool:
        """Whether to check: no check is running, and the disk was full or the reserve is short."""
        if self._under_way or not (health.is_full or self._reserve.is_short):
            return False
        self._under_way = True
        return True

    def run(self) -> None:
        """Refill the reserve, and check the free space in addition to it."""
        self.error = None
        try:
            self._enough = self._reserve.check_space(self._enough_bytes)
        except DiskError as error:
            self.error = error
            self._enough = False

    def apply_result(self, topics: Iterable[Topic], health: Health, now: Instant) -> None:
        """Apply the result of a check; without enough space, shrink the largest ledger."""
        self._under_way = False
        if not self._enough and self.error is None:
            shrink_largest(topics, now)
        if self._enough and health.is_full:
            health.recover()
            health.notes.append("the disk has space again")
