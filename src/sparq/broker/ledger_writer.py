"""A topic's ledger as the broker uses it: when it is written, synced and replaced by a checkpoint.

1. Records noted in a turn are written before any reply of that turn leaves. If a write finds no
   disk space, checkpoints free some (see `full_disk`). If it still fails, all records stay buffered
   for the next turn; the failure shows in `/ping`, and no FIN is refused.
2. Written records are synced after `--sync-timeout` at the latest. A caller that needs the sync
   sooner waits for it; all such waiters share one sync.
3. Only one task runs at a time; when it ends, the next one that is needed begins.

An ephemeral channel has a `NoLedger` instead of a ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sparq.broker.health import Health, Trouble
from sparq.broker.options import NEVER
from sparq.log.disk import DiskError
from sparq.log.ledger import Checkpoint, Ledger, LedgerSync
from sparq.log.records import Indexes, RecordKind, TopicState
from sparq.log.reserve import Purpose
from sparq.log.task import Task
from sparq.options.units import SECOND
from sparq.protocol.instant import Instant

Waiter = Callable[[DiskError | None, Instant], None]
"""Called when its wait is over: with the error, or None if the write or sync succeeded."""

WRITE_AGAIN_NS = SECOND
"""Delay before a failed write is retried, if no record is noted meanwhile."""


class NoLedger:
    """The ledger of ephemeral channels: it accepts the records of a channel and keeps none.

    It lets ephemeral and durable channels share one code path for delivering and finishing.
    """

    def note(
        self, kind: RecordKind, channel: str = "", *columns: Indexes, flag: bool = False
    ) -> None:
        """Do nothing: an ephemeral channel has no ledger."""


class LedgerWriter:
    """Writes and syncs one topic's ledger.

    Attributes:
        due_ns: when (mono ns) the ledger must be synced, or written again; NEVER: neither.
        has_failed: whether a write, sync or checkpoint has failed, and not succeeded since.
    """

    def __init__(
        self,
        ledger: Ledger,
        topic: str,
        *,
        sync_timeout_ns: int,
        health: Health,
        state: Callable[[Instant], TopicState],
        submit: Callable[[Task, Callable[[Instant], None]], None],
    ) -> None:
        """Prepare for a ledger.

        Args:
            ledger: the ledger.
            topic: the topic's name.
            sync_timeout_ns: see `--sync-timeout`.
            health: takes the ledger's failures.
            state: returns the topic's state, for a checkpoint.
            submit: hands out a task, and takes the function that is called when it has run.
        """
        self.ledger = ledger
        self.due_ns = NEVER
        self.has_failed = False
        self._topic, self._sync_timeout_ns, self._health = topic, sync_timeout_ns, health
        self._state, self._submit = state, submit
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
        """Call the waiter once all records noted so far are written or failed."""
        self._for_write.append((self.ledger.appended_mark, waiter))
        self.ledger.has_news = True

    def wait_for_sync(self, waiter: Waiter) -> None:
        """Call the waiter once all records noted so far are synced or have failed."""
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

    def written(self, error: DiskError | None, now: Instant) -> None:
        """Handle the result of a write: call the waiters whose wait is over, and begin a task."""
        # A write proves nothing about a file whose sync has failed.
        self.has_failed = error is not None or (self.has_failed and self.ledger.is_poisoned)
        if error is not None:
            self._note_failure(error)
            self.due_ns = now.mono_ns + WRITE_AGAIN_NS
        # An earlier time stays: the oldest unsynced record decides when to sync.
        elif now.mono_ns + self._sync_timeout_ns < self.due_ns and not self.is_synced():
            self.due_ns = now.mono_ns + self._sync_timeout_ns
        if self._for_write or self._for_sync:
            self._end_waits(error, now)
        if error is None:
            self._begin_task(now)

    def _note_failure(self, error: DiskError) -> None:
        self._health.fail(Trouble.LEDGER, self._topic, f"writing a ledger failed: {error}", error)

    def on_time(self, now: Instant) -> None:
        """Begin the sync that is due, or repeat the write."""
        if now.mono_ns < self.due_ns:
            return
        self.due_ns = NEVER
        # A sync would miss records whose write has failed: they are written first.
        if self.is_written():
            self._begin_task(now, to_sync=True)
        else:
            self.ledger.has_news = True

    def _begin_task(self, now: Instant, *, to_sync: bool = False) -> None:
        """Submit the sync or checkpoint that is needed, unless a task is running.

        Args:
            now: the current time.
            to_sync: whether the written records must be synced even if no waiter waits for that.
                After a failed sync the file cannot be trusted, and a checkpoint must replace it.
        """
        if self._health.troubles and not self.has_failed:
            self._health.recover(Trouble.LEDGER, self._topic)
        ledger = self.ledger
        to_sync |= bool(self._for_sync)
        if self._working or not (to_sync or ledger.wants_checkpoint):
            return
        task: LedgerSync | Checkpoint | None = ledger.sync_task() if to_sync else None
        is_unsynced = to_sync and ledger.synced_mark < ledger.written_mark
        if task is None and (ledger.wants_checkpoint or is_unsynced):
            try:
                task = ledger.checkpoint_task(self._state(now))
            except DiskError as error:  # the old file is still appended to
                self._note_failure(error)
                self.has_failed = True
                self.due_ns = min(self.due_ns, now.mono_ns + self._sync_timeout_ns)
                self._end_waits(error, now)
        if task is not None:
            self._working = True
            self._submit(task, partial(self.finish, task))

    def shrink(self, now: Instant) -> bool:
        """Replace the records by a checkpoint at once, using the space that the reserve holds.

        False: there is not enough space, the checkpoint failed, or one is running already.
        """
        try:
            # In the event loop and one at a time: the turn's replies wait for the space, and
            # several checkpoints at once took the space that each of them was to free.
            task = self.ledger.checkpoint_task(self._state(now), Purpose.CHECKPOINT)
        except DiskError:
            return False
        if task is None:
            return False
        task.run()
        self.ledger.finish(task)
        return task.error is None

    def finish(self, task: LedgerSync | Checkpoint, now: Instant) -> None:
        """Take over the results of a task, and call the waiters whose wait is over."""
        self._working = False
        self.ledger.finish(task)
        self.has_failed = task.error is not None or (self.has_failed and not self.is_written())
        if task.error is not None:
            self._note_failure(task.error)
        elif not self.has_failed:
            self._health.recover(Trouble.LEDGER, self._topic)
        self._end_waits(task.error, now)
        # Records noted while the task ran need another one, which the end of the turn begins.
        if self._for_sync or not self.is_synced():
            self.ledger.has_news = True

    def _end_waits(self, error: DiskError | None, now: Instant) -> None:
        """Call the waiters whose mark is reached, or all of them on an error."""
        written, self._for_write = self._for_write, []
        synced, self._for_sync = self._for_sync, []
        for waiters, mark, waiting in (
            (written, self.ledger.written_mark, self._for_write),
            (synced, self.ledger.synced_mark, self._for_sync),
        ):
            for awaited, waiter in waiters:
                if awaited <= mark:
                    waiter(None, now)
                # Reported, not kept waiting: a SUB or an HTTP request must hear of the failed disk.
                # Records stay buffered and are written again.
                elif error is not None:
                    waiter(error, now)
                else:
                    waiting.append((awaited, waiter))
