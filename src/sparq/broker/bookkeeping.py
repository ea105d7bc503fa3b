"""A topic's ledger as the broker uses it: written once a turn, synced in time, made smaller.

1. What is noted in a turn is written before any reply of that turn leaves (decision 11). A write
   that finds no space waits for checkpoints that make some (see `relief`). One that fails all the
   same keeps everything for the next turn and is a matter of health, never of a FIN.
2. What is written is synced after `sync_timeout` at the latest; whoever needs it sooner waits with
   `when_synced`, and all who wait share one sync (`when_written` waits for the turn's end only).
3. One work is under way at a time: its end begins the next that is needed.
"""

from __future__ import annotations

from collections.abc import Callable

from sparq.broker import relief
from sparq.broker.agenda import Agenda
from sparq.broker.errands import Errands
from sparq.broker.options import NEVER
from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.ledger_work import Checkpoint, LedgerSync
from sparq.log.records import TopicState
from sparq.log.reserve import Purpose
from sparq.protocol.instant import Instant

Waiter = Callable[[DiskError | None], None]
Snapshot = Callable[[Instant], TopicState]


class Bookkeeper:
    """Writes and syncs one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        agenda: Agenda,
        errands: Errands,
        sync_timeout_ns: int,
        snapshot: Snapshot,
    ) -> None:
        self.ledger = ledger
        self.scheduled_ns = NEVER
        self._agenda = agenda
        self._errands = errands
        self._sync_timeout_ns = sync_timeout_ns
        self._snapshot = snapshot
        self._waiters: list[tuple[int, Waiter]] = []
        self._write_waiters: list[tuple[int, Waiter]] = []
        self._failed = False
        self._working = False
        self._closed = False
        agenda.books[self] = None

    def noted(self) -> None:
        """The ledger has something to write."""
        self._agenda.ledgers[self] = None

    def close(self) -> None:
        """The topic goes, with what was not written yet; timers that still run find nothing."""
        self._closed = True
        self._agenda.cancel(self)
        self._agenda.ledgers.pop(self, None)
        self._agenda.books.pop(self, None)
        self.ledger.close()

    def is_synced(self) -> bool:
        """Whether all that was ever noted is on the disk for good."""
        return self.ledger.synced_mark >= self.ledger.appended_mark

    def is_written(self) -> bool:
        """Whether all that was ever noted has at least been written."""
        return self.ledger.written_mark >= self.ledger.appended_mark

    def when_written(self, waiter: Waiter) -> None:
        """Call back when all that is noted now is written, or cannot be."""
        self._write_waiters.append((self.ledger.appended_mark, waiter))
        self.noted()

    def when_synced(self, waiter: Waiter) -> None:
        """Call back when all that is noted now is synced, or cannot be."""
        self._waiters.append((self.ledger.appended_mark, waiter))
        self.noted()

    def flush(self, now: Instant) -> bool:
        """Write what was noted; False when it must be tried again."""
        try:
            self.ledger.flush()
        except DiskError as error:
            if not (error.is_full and relief.make_room(self, self._agenda.books, now)):
                self._fail(error)
                self._call(error)
                return False
        if self._failed:
            self._failed = False
            self._agenda.failure = None
        if self._waiters or self._write_waiters:
            self._call(None)
        if self._waiters:
            self.sync(now)
        elif not self.is_synced():
            self._agenda.schedule(self, now.mono_ns + self._sync_timeout_ns)
        if self.ledger.wants_checkpoint:
            self.checkpoint(now)
        return True

    def on_time(self, now: Instant) -> None:
        """The sync timeout has passed, or a write is to be tried again."""
        if self._closed:
            return
        if self.is_written():
            self.sync(now)
        else:
            self.noted()

    def sync(self, now: Instant) -> None:
        """Begin to sync what is written, unless that is under way."""
        if self._working:
            return
        work = self.ledger.sync_task()
        if work is None and self.ledger.synced_mark < self.ledger.written_mark:
            # A sync has failed before, and the file is not to be trusted: a new one is.
            self.checkpoint(now)
        else:
            self._hand_out(work)

    def checkpoint(self, now: Instant) -> None:
        """Begin to replace the records so far by the state they have led to."""
        if self._working:
            return
        try:
            work = self.ledger.checkpoint_task(self._snapshot(now))
        except DiskError as error:
            # Nothing has changed: what there is goes on being appended to, and may be synced.
            self._fail(error)
            self._call(error)
            self._agenda.schedule(self, now.mono_ns + self._sync_timeout_ns)
        else:
            self._hand_out(work)

    def shrink(self, now: Instant) -> bool:
        """Replace the records by their state at once, with the space that the reserve has aside.

        False: there is not enough of it, or a checkpoint is under way already.
        """
        try:
            work = self.ledger.checkpoint_task(self._snapshot(now), Purpose.CHECKPOINT)
        except DiskError:
            return False
        if work is None:
            return False
        work.run()
        self.ledger.finish(work)
        return work.error is None

    def _hand_out(self, work: LedgerSync | Checkpoint | None) -> None:
        if work is not None:
            self._working = True
            self._errands.submit(work, lambda now: self._worked(work, now))

    def _worked(self, work: LedgerSync | Checkpoint, now: Instant) -> None:
        self._working = False
        self.ledger.finish(work)
        if work.error is not None:
            self._fail(work.error)
        self._call(work.error)
        if self._waiters or not self.is_synced():
            self.noted()

    def _fail(self, error: DiskError) -> None:
        self._failed = True
        self._agenda.fail(f"writing a ledger failed: {error}", error)

    def _call(self, error: DiskError | None) -> None:
        """Answer who has waited for what is done now, or everyone when it cannot be."""
        written, synced = self.ledger.written_mark, self.ledger.synced_mark
        # Who is called may begin to wait anew.
        for_write, self._write_waiters = self._write_waiters, []
        for_sync, self._waiters = self._waiters, []
        self._write_waiters = _answer(for_write, written, error) + self._write_waiters
        self._waiters = _answer(for_sync, synced, error) + self._waiters


def _answer(
    waiters: list[tuple[int, Waiter]], reached: int, error: DiskError | None
) -> list[tuple[int, Waiter]]:
    """Call those whose mark is reached, all of them on an error; returns who still waits."""
    waiting: list[tuple[int, Waiter]] = []
    for mark, waiter in waiters:
        if mark <= reached:
            waiter(None)
        elif error is not None:
            waiter(error)
        else:
            waiting.append((mark, waiter))
    return waiting
