"""Whether the disk takes what it is given, and what is done about one that is full.

`Health` is what `/ping` says, and what an operator should read. On a full disk checkpoints make
room for ledgers, and `SpaceWatch` notices when there is space again:

1. `make_room` is called when a ledger cannot be written: the replies of the turn wait for it, since
   a FIN before an answered command is promised to be kept. `shrink_largest` is called while
   publishes are refused: room for them may be what ledgers have taken.
2. Each checkpoint takes the space that the reserve has aside, and gives back what its ledger took.
3. The checkpoint of the ledger that could not be written holds what was to be written to it: so it
   is the last that is tried.
4. While `/ping` tells of a full disk, balancers send no publishers here, so the next publish must
   not be what ends it: `SpaceWatch` looks, in the housekeeping thread. Only a disk that was full is
   looked at; for other failures a success is the only proof. Space is enough when the reserve is
   whole and the largest publish would fit beside it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Final

from sparq.broker.topic import Topic
from sparq.log.disk import DiskError
from sparq.log.reserve import BLOCK_BYTES, Reserve, Room
from sparq.log.task import TaskKind
from sparq.protocol.instant import Instant

SIZE_MIN: Final = 2 * BLOCK_BYTES
"""A checkpoint and the ledger begun after it take this much themselves."""
LARGE_BYTES: Final = 4 * BLOCK_BYTES
"""An idle ledger of this size is worth a checkpoint on a full disk."""
TRIED_MAX: Final = 8
"""Where the largest ledgers cannot be made smaller, the others hardly can."""


class Health:
    """The health of one data path.

    Attributes:
        failure: why the disk last refused something, None after a success.
        notes: what an operator should read; whoever logs them clears the list.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self.notes: list[str] = []
        self._number = 0

    def fail(self, note: str, error: DiskError) -> None:
        """The disk refused something: the health is bad until it does not."""
        if self.failure != error.reason:
            self.notes.append(note)
        self.failure = error.reason
        self._number = error.number

    def recover(self) -> None:
        """The disk takes what it is given."""
        self.failure = None

    @property
    def is_full(self) -> bool:
        """Whether what the disk last refused, it refused for want of space."""
        return self.failure is not None and self._number == errno.ENOSPC

    def text(self, room: Room | None) -> str:
        """ "OK", or "NOK - " and what the disk last refused; on a full disk also what to do."""
        if self.failure is None:
            return "OK"
        if room is None or not self.is_full:
            return f"NOK - {self.failure}"
        held, target = room.reserve_bytes >> 10, room.target_bytes >> 10
        return (
            f"NOK - {self.failure}; consumers can go on: {held:,} of {target:,} KiB are kept for"
            f" FINs on {room.ledgers:,} topics, room for {room.finishes:,} before the next"
            " checkpoint; to publish again, free the disk, or empty or delete channels or topics"
        )


def make_room(needy: Topic, topics: Iterable[Topic], now: Instant) -> bool:
    """Have what is noted in a ledger written on a disk that has no space; False: it cannot be."""
    large = [topic for topic in topics if topic is not needy and _ledger_bytes(topic) > SIZE_MIN]
    large.sort(key=_ledger_bytes, reverse=True)
    del large[TRIED_MAX:]
    largest = max(map(_ledger_bytes, large), default=0)
    if _ledger_bytes(needy) > largest and needy.shrink_ledger(now):
        return True
    for topic in large:
        if topic.shrink_ledger(now) and needy.books is not None and needy.books.write() is None:
            return True
    return needy.shrink_ledger(now)


def shrink_largest(topics: Iterable[Topic], now: Instant) -> None:
    """Make the largest ledger smaller by a checkpoint, if that halves it.

    Ledgers alone can fill a small disk, and when all is finished nothing is written to them any
    more that would ask for room.
    """
    large = [
        topic
        for topic in topics
        if _ledger_bytes(topic) >= max(LARGE_BYTES, 2 * _state_bytes(topic))
    ]
    if large:
        max(large, key=_ledger_bytes).shrink_ledger(now)


def _ledger_bytes(topic: Topic) -> int:
    return 0 if topic.books is None else topic.books.ledger.account.ledger_bytes


def _state_bytes(topic: Topic) -> int:
    return 0 if topic.books is None else topic.books.ledger.account.state_bytes


class SpaceWatch:
    """Looks at one data path: a work for the housekeeping thread."""

    kind: Final = TaskKind.HOUSEKEEPING

    def __init__(self, reserve: Reserve, enough_bytes: int) -> None:
        """`enough_bytes`: what the largest publish takes."""
        self.error: DiskError | None = None
        self._reserve = reserve
        self._enough_bytes = enough_bytes
        self._under_way = False
        self._enough = False

    def begins(self, health: Health) -> bool:
        """Whether to have a look: the disk was full when it last refused something."""
        if self._under_way or not (health.is_full or self._reserve.is_short):
            return False
        self._under_way = True
        return True

    def run(self) -> None:
        """Fill the reserve up, and see what is free beside it."""
        self.error = None
        try:
            self._enough = self._reserve.look(self._enough_bytes)
        except DiskError as error:
            self.error = error
            self._enough = False

    def looked(self, topics: Iterable[Topic], health: Health, now: Instant) -> None:
        """It has looked: while there is not enough, the largest ledger is made smaller."""
        self._under_way = False
        if not self._enough and self.error is None:
            shrink_largest(topics, now)
        if self._enough and health.is_full:
            health.recover()
            health.notes.append("the disk has space again")
