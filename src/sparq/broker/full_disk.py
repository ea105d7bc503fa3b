"""A disk that is full or failing: checkpoints that free space, and the probe that finds it usable.

While `/ping` reports a failure, load balancers send no publishers here. So recovery must not depend
on the next publish: while there is a failure, `DiskProbe` stores a file as a publish does, once a
second in the housekeeping thread. Two successful probes without a refused publish in between end
the failures of `health.PROBED`: a publisher that is still refused counts more than the probe, which
knows only one file. The other failures end with the retry of what failed, which needs no publisher.

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

from collections.abc import Callable, Iterable
from typing import Final

from sparq.broker.health import PROBED, Health, Trouble
from sparq.broker.ledger_writer import LedgerWriter
from sparq.log.reserve import BLOCK_BYTES, Reserve
from sparq.log.task import Task
from sparq.protocol.instant import Instant

SIZE_MIN: Final = 2 * BLOCK_BYTES
"""Space that a checkpoint and the ledger begun after it need themselves."""
LARGE_BYTES: Final = 4 * BLOCK_BYTES
"""On a full disk, an idle ledger of at least this size is worth a checkpoint."""
TRIED_MAX: Final = 8
"""Number of ledgers to try: if the largest cannot shrink, smaller ones hardly can."""


def make_room(needy: LedgerWriter, writers: Iterable[LedgerWriter], now: Instant) -> bool:
    """Write a ledger on a full disk, by means of checkpoints; False: not possible."""
    large = [one for one in writers if one is not needy and _ledger_bytes(one) > SIZE_MIN]
    large.sort(key=_ledger_bytes, reverse=True)
    # This runs in the event loop, and each checkpoint writes to the disk.
    del large[TRIED_MAX:]
    largest = max(map(_ledger_bytes, large), default=0)
    # If it is the largest itself, its own checkpoint frees the most space.
    if _ledger_bytes(needy) > largest and needy.shrink(now):
        return True
    for writer in large:
        if writer.shrink(now) and needy.write() is None:
            return True
    return needy.shrink(now)


def shrink_largest(writers: Iterable[LedgerWriter], now: Instant) -> None:
    """Shrink the largest ledger by a checkpoint, if that at least halves it.

    Ledgers alone can fill a small disk. Once all messages are finished nothing is written to the
    ledgers any more, so no failing write would trigger `make_room`.
    """
    large = [
        writer
        for writer in writers
        if _ledger_bytes(writer) >= max(LARGE_BYTES, 2 * writer.ledger.account.state_bytes)
    ]
    if large:
        max(large, key=_ledger_bytes).shrink(now)


def _ledger_bytes(writer: LedgerWriter) -> int:
    return writer.ledger.account.ledger_bytes


class DiskProbe(Task):
    """Checks whether publishes would be stored: a task for the housekeeping thread."""

    def __init__(self, reserve: Reserve, enough_bytes: int, store: Callable[[int], None]) -> None:
        """Prepare the task.

        Args:
            reserve: the data path's reserve.
            enough_bytes: the size of the largest publish.
            store: stores a file of this many bytes durably, and deletes it; raises DiskError.
        """
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

    def execute(self) -> None:
        """Find the data path; after a failure, refill the reserve, and store a file in addition."""
        self.error, self._has_room = None, False
        self._reserve.check_place()
        if self._is_failing:
            self._has_room = self._reserve.check_space(self._enough_bytes)
            if self._has_room and self._store_bytes:
                self._store(self._store_bytes)
            self._reserve.is_refusing &= not self._has_room

    def apply_result(
        self, writers: Callable[[], Iterable[LedgerWriter]], health: Health, now: Instant
    ) -> None:
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
            shrink_largest(writers(), now)
