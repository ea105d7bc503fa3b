"""A topic's ledger as the broker uses it: when it is written, synced and replaced by a checkpoint.

1. Records noted in a turn are written before any reply of that turn leaves. If a write finds no
   disk space, checkpoints free some (see `health`). If it still fails, all records stay buffered
   for the next turn; the failure shows in `/ping`, and no FIN is refused.
2. Written records are synced after `--sync-timeout` at the latest. A caller that needs the sync
   sooner uses `wait_for_sync`; all such waiters share one sync. `wait_for_write` waits only for the
   write at the end of the turn.
3. Only one task runs at a time; when it ends, the next one that is needed begins.
4. A waiter is any object: `written` and `finish` return the waiters whose wait is over.

An ephemeral channel has a `NoLedger` instead of a ledger.
"""

from __future__ import annotations

from sparq.broker.options import NEVER
from sparq.log.disk import DiskError
from sparq.log.ledger import Checkpoint, Ledger, LedgerSync
from sparq.log.records import Indexes, RecordKind, TopicState
from sparq.log.reserve import Purpose
from sparq.options.units import SECOND
from sparq.protocol.instant import Instant


class NoLedger:
    """The ledger of ephemeral channels: it accepts every record and keeps none.

    It lets ephemeral and durable channels share one code path for delivering and finishing.
    """

    def note(
        self, kind: RecordKind, channel: str = "", *columns: Indexes, flag: bool = False
    ) -> None:
        """Do nothing: an ephemeral channel has no ledger."""


Waiter = object
Ended = list[tuple[Waiter, DiskError | None]]
"""Waiters whose wait is over: each with its error, or None if the write or sync succeeded."""

WRITE_AGAIN_NS = SECOND
"""Delay before a failed write is retried, if no record is noted meanwhile."""


class LedgerWriter:
    """Writes and syncs one topic's ledger.

    Attributes:
        due_ns: when (mono ns) the ledger must be synced, or written again; NEVER: neither.
        has_failed: whether a write, sync or checkpoint has failed, and not succeeded since.
    """

    def __init__(self, ledger: Ledger, sync_timeout_ns: int) -> None:
        self.ledger = ledger
        self.due_ns = NEVER
        self.has_failed = False
        self._sync_timeout_ns = sync_timeout_ns
        self._for_sync: list[tuple[int, Waiter]] = []
        self._for_write: list[tuple[int, Waiter]] = []
        # A start may find records that an earlier run has written but not synced.
        ledger.has_news = not self.is_synced()
        self._working = False

    def is_synced(self) -> bool:
        """Whether every record noted so far is synced to disk."""
        return self.ledger.synced_mark >= self.ledger.appended_mark

    def is_written(self) -> bool:
        """Whether every record noted so far is written, though maybe not synced."""
        return self.ledger.written_mark >= self.ledger.appended_mark

    def wait_for_write(self, waiter: Waiter) -> None:
        """Have `written` return this waiter once all records noted so far are written or failed."""
        self._for_write.append((self.ledger.appended_mark, waiter))
        self.ledger.has_news = True

    def wait_for_sync(self, waiter: Waiter) -> None:
        """Have the waiter returned once all records noted so far are synced or have failed."""
        self._for_sync.append((self.ledger.appended_mark, waiter))
        self.ledger.has_news = True

    def write(self) -> DiskError | None:
        """Write the buffered records; returns the error if that failed."""
        # Also if the write fails: it is repeated with the next record or at `due_ns`, instead of in
        # every turn.
        self.ledger.has_news = False
        try:
            self.ledger.flush()
        except DiskError as error:
            return error
        return None

    def written(self, error: DiskError | None, now: Instant) -> Ended:
        """Handle the result of a write; returns the waiters whose wait is over."""
        # A write proves nothing about a file whose sync has failed.
        self.has_failed = error is not None or (self.has_failed and self.ledger.is_poisoned)
        if error is not None:
            self.due_ns = now.mono_ns + WRITE_AGAIN_NS
        # An earlier time stays: the oldest unsynced record decides when to sync.
        elif now.mono_ns + self._sync_timeout_ns < self.due_ns and not self.is_synced():
            self.due_ns = now.mono_ns + self._sync_timeout_ns
        return self._ended(error) if self._for_write or self._for_sync else []

    @property
    def is_awaited(self) -> bool:
        """Whether a waiter waits for a sync."""
        return bool(self._for_sync)

    def needs_work(self) -> bool:
        """Whether a sync or a checkpoint must begin."""
        return bool(self._for_sync) or self.ledger.wants_checkpoint

    def on_time(self, now: Instant) -> bool:
        """Handle a sync or write retry that is due; returns whether to sync now."""
        if now.mono_ns < self.due_ns:
            return False
        self.due_ns = NEVER
        # A sync would miss records whose write has failed: they are written first.
        if self.is_written():
            return True
        self.ledger.has_news = True
        return False

    def sync(self) -> LedgerSync | None:
        """Return the task that syncs the written records.

        None: they are synced, another task is running, or the file cannot be trusted any more (see
        `needs_checkpoint`).
        """
        if self._working:
            return None
        task = self.ledger.sync_task()
        self._working = task is not None
        return task

    def needs_checkpoint(self, *, to_sync: bool) -> bool:
        """Whether the records so far must be replaced by a checkpoint of the resulting state.

        Args:
            to_sync: whether the written records must be synced. After a failed sync the file
                cannot be trusted, and a new one must replace it.
        """
        ledger = self.ledger
        if self._working:
            return False
        return ledger.wants_checkpoint or (to_sync and ledger.synced_mark < ledger.written_mark)

    def checkpoint(self, state: TopicState) -> Checkpoint | None:
        """Return the task that replaces the records by a checkpoint; None: a task is running.

        Raises:
            DiskError: it cannot begin; nothing has changed, and the old file is still appended to.
        """
        if self._working:
            return None
        task = self.ledger.checkpoint_task(state)
        self._working = task is not None
        return task

    def refused(self, error: DiskError, now: Instant) -> Ended:
        """Handle a checkpoint that could not begin; returns the waiters whose wait is over."""
        self.has_failed = True
        self.due_ns = min(self.due_ns, now.mono_ns + self._sync_timeout_ns)
        return self._ended(error)

    def shrink(self, state: TopicState) -> bool:
        """Replace the records by a checkpoint at once, using the space that the reserve holds.

        False: there is not enough space, the checkpoint failed, or one is running already.
        """
        try:
            # In the event loop and one at a time: the turn's replies wait for the space, and
            # several checkpoints at once took the space that each of them was to free.
            task = self.ledger.checkpoint_task(state, Purpose.CHECKPOINT)
        except DiskError:
            return False
        if task is None:
            return False
        task.run()
        self.ledger.finish(task)
        return task.error is None

    def finish(self, task: LedgerSync | Checkpoint) -> Ended:
        """Take over the results of a task; returns the waiters whose wait is over."""
        self._working = False
        self.ledger.finish(task)
        self.has_failed = task.error is not None or (self.has_failed and not self.is_written())
        ended = self._ended(task.error)
        # Records noted while the task ran need another one, which the end of the turn begins.
        if self._for_sync or not self.is_synced():
            self.ledger.has_news = True
        return ended

    def _ended(self, error: DiskError | None) -> Ended:
        """Remove the waiters whose mark is reached, or all of them on an error."""
        ended: Ended = []
        if self._for_write:
            self._for_write = _reached(self._for_write, self.ledger.written_mark, error, ended)
        if self._for_sync:
            self._for_sync = _reached(self._for_sync, self.ledger.synced_mark, error, ended)
        return ended


def _reached(
    waiters: list[tuple[int, Waiter]], mark: int, error: DiskError | None, ended: Ended
) -> list[tuple[int, Waiter]]:
    """Move waiters whose mark is reached, or all on an error, to `ended`; returns the others."""
    waiting: list[tuple[int, Waiter]] = []
    for awaited, waiter in waiters:
        if awaited <= mark:
            ended.append((waiter, None))
        # Reported, not kept waiting: a SUB or an HTTP request must hear of the failed disk. Records
        # stay buffered and are written again.
        elif error is not None:
            ended.append((waiter, error))
        else:
            waiting.append((awaited, waiter))
    return waiting
