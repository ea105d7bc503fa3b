"""A topic's ledger as the broker uses it: written once a turn, synced in time, made smaller.

1. What is noted in a turn is written before any reply of that turn leaves. A write that finds no
   space waits for checkpoints that make some (see `health`). One that fails all the same keeps
   everything for the next turn and is a matter of health, never of a FIN.
2. What is written is synced after `sync_timeout` at the latest; who needs it sooner waits with
   `wait_for_sync`, and all who wait share one sync. `wait_for_write` waits for the turn's end only.
3. One work is under way at a time: its end begins the next that is needed.
4. Who waits is a record: `written` and `finish` return those that need not wait any more.

An ephemeral channel has a `Forgetful` instead of a ledger.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sparq.broker.options import NEVER, SECOND_NS
from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.ledger_file import Checkpoint, LedgerSync
from sparq.log.records import TopicState
from sparq.log.reserve import Purpose
from sparq.protocol.instant import Instant

Indexes = Sequence[int] | NDArray[np.int64]


class Forgetful:
    """The ledger of ephemeral channels: it takes every note, and keeps none.

    An ephemeral channel notes what a durable one does, but here, so that the code that delivers and
    finishes has one path. Its methods are those of `log.ledger.Ledger` that a channel calls.
    """

    def finished(self, channel: str, starts: Indexes, ends: Indexes) -> None:
        """Forgotten, as all that follow."""

    def requeued(self, channel: str, indexes: Indexes, dues: Indexes, attempts: Indexes) -> None:
        """Forgotten."""

    def voided(self, channel: str, starts: Indexes, ends: Indexes) -> None:
        """Forgotten."""

    def seek(self, channel: str, index: int) -> None:
        """Forgotten."""

    def cursor(self, channel: str, index: int) -> None:
        """Forgotten."""

    def kept(self, channel: str, index: int | None) -> None:
        """Forgotten."""

    def paused(self, channel: str, flag: bool) -> None:
        """Forgotten."""

    def apart(self, channel: str, indexes: Indexes) -> None:
        """Forgotten."""

    def redriven(self, channel: str, indexes: Indexes, times: Sequence[int]) -> None:
        """Forgotten."""


Waiter = object
Ended = list[tuple[Waiter, DiskError | None]]
"""Who has waited, and why it cannot be; None: it is written, or synced, as was asked for."""

WRITE_AGAIN_NS = SECOND_NS
"""How long after a failed write the next is tried, if nothing else is noted meanwhile."""


class Books:
    """Writes and syncs one ledger.

    Attributes:
        due_ns: when (mono ns) the ledger is to be synced, or written again; NEVER: nothing is.
        has_failed: whether the last write has failed.
    """

    def __init__(self, ledger: Ledger, sync_timeout_ns: int) -> None:
        self.ledger = ledger
        self.due_ns = NEVER
        self.has_failed = False
        self._sync_timeout_ns = sync_timeout_ns
        self._for_sync: list[tuple[int, Waiter]] = []
        self._for_write: list[tuple[int, Waiter]] = []
        ledger.has_news = not self.is_synced()
        self._working = False

    def is_synced(self) -> bool:
        """Whether all that was ever noted is on the disk for good."""
        return self.ledger.synced_mark >= self.ledger.appended_mark

    def is_written(self) -> bool:
        """Whether all that was ever noted has at least been written."""
        return self.ledger.written_mark >= self.ledger.appended_mark

    def wait_for_write(self, waiter: Waiter) -> None:
        """Have `written` return this when all that is noted now is written, or cannot be."""
        self._for_write.append((self.ledger.appended_mark, waiter))
        self.ledger.has_news = True

    def wait_for_sync(self, waiter: Waiter) -> None:
        """Have it returned when all that is noted now is synced, or cannot be."""
        self._for_sync.append((self.ledger.appended_mark, waiter))
        self.ledger.has_news = True

    def write(self) -> DiskError | None:
        """Write what was noted; returns why that failed."""
        self.ledger.has_news = False
        try:
            self.ledger.flush()
        except DiskError as error:
            return error
        return None

    def written(self, error: DiskError | None, now: Instant) -> Ended:
        """All is written that was noted, or cannot be; returns who has waited for that."""
        self.has_failed = error is not None
        if error is not None:
            self.due_ns = now.mono_ns + WRITE_AGAIN_NS
        elif now.mono_ns + self._sync_timeout_ns < self.due_ns and not self.is_synced():
            self.due_ns = now.mono_ns + self._sync_timeout_ns
        return self._ended(error) if self._for_write or self._for_sync else []

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a sync."""
        return bool(self._for_sync)

    def needs_work(self) -> bool:
        """Whether there is a sync or a checkpoint to be begun."""
        return bool(self._for_sync) or self.ledger.wants_checkpoint

    def on_time(self, now: Instant) -> bool:
        """The sync timeout has passed, or a write is to be tried again: whether to sync now."""
        if now.mono_ns < self.due_ns:
            return False
        self.due_ns = NEVER
        if self.is_written():
            return True
        self.ledger.has_news = True
        return False

    def sync(self) -> LedgerSync | None:
        """The work that syncs what is written; None: it is, or other work is under way, or the file
        is not to be trusted (`needs_checkpoint`)."""
        if self._working:
            return None
        work = self.ledger.sync_task()
        self._working = work is not None
        return work

    def needs_checkpoint(self, *, to_sync: bool) -> bool:
        """Whether the records so far are to be replaced by the state that they have led to.

        Args:
            to_sync: whether what is written is to be synced. After a sync has failed the file is
                not to be trusted: a new one is.
        """
        ledger = self.ledger
        if self._working:
            return False
        return ledger.wants_checkpoint or (to_sync and ledger.synced_mark < ledger.written_mark)

    def checkpoint(self, state: TopicState) -> Checkpoint | None:
        """The work that replaces the records by their state; None: work is under way.

        Raises:
            DiskError: nothing has changed: what there is goes on being appended to.
        """
        if self._working:
            return None
        work = self.ledger.checkpoint_task(state)
        self._working = work is not None
        return work

    def refused(self, error: DiskError, now: Instant) -> Ended:
        """A checkpoint could not be begun; returns who has waited for it."""
        self.has_failed = True
        self.due_ns = min(self.due_ns, now.mono_ns + self._sync_timeout_ns)
        return self._ended(error)

    def shrink(self, state: TopicState) -> bool:
        """Replace the records by their state at once, with the space that the reserve has aside.

        False: there is not enough of it, or a checkpoint is under way already.
        """
        try:
            work = self.ledger.checkpoint_task(state, Purpose.CHECKPOINT)
        except DiskError:
            return False
        if work is None:
            return False
        work.run()
        self.ledger.finish(work)
        return work.error is None

    def finish(self, work: LedgerSync | Checkpoint) -> Ended:
        """Take over a work that has run; returns who need not wait any more."""
        self._working = False
        self.ledger.finish(work)
        if work.error is not None:
            self.has_failed = True
        ended = self._ended(work.error)
        if self._for_sync or not self.is_synced():
            self.ledger.has_news = True
        return ended

    def _ended(self, error: DiskError | None) -> Ended:
        """Those whose mark is reached, all of them on an error; the others go on waiting."""
        ended: Ended = []
        if self._for_write:
            self._for_write = _reached(self._for_write, self.ledger.written_mark, error, ended)
        if self._for_sync:
            self._for_sync = _reached(self._for_sync, self.ledger.synced_mark, error, ended)
        return ended


def _reached(
    waiters: list[tuple[int, Waiter]], mark: int, error: DiskError | None, ended: Ended
) -> list[tuple[int, Waiter]]:
    """Move those whose mark is reached, all of them on an error; returns who still waits."""
    waiting: list[tuple[int, Waiter]] = []
    for awaited, waiter in waiters:
        if awaited <= mark:
            ended.append((waiter, None))
        elif error is not None:
            ended.append((waiter, error))
        else:
            waiting.append((awaited, waiter))
    return waiting
