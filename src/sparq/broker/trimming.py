"""Decides which files of a topic's log to delete, and which finished files to keep.

1. A file is deleted when it lies before P, every channel has finished all its messages, and neither
   retention nor a range reader's last commits keep it; never before the ledger records that prove
   this are synced. On a disk short of space, files that a range reader has read are deleted at
   once.
2. The ledger needs to be synced only up to the records that finished the file. Consumers that go
   on finishing messages, and so add records, do not delay the deletion.
3. The active file is deleted, too, if the disk is short of space or a channel was emptied;
   otherwise it stays, since the next commit would have to create a new one.
4. If the disk has no space even for the ledger, finished files are deleted anyway: nothing else
   frees space, and deleted messages cannot be delivered again.
5. Retention works on whole files, as deletion does; a file is as old as its newest message.
   Retention only keeps files: files that a channel needs stay anyway, and a file stays if either of
   the two options keeps it. At a low rate one file may hold the messages of weeks, so with
   `retention_time_ns` no file takes messages for longer than that (or a minute, if it is less).
6. After a start with a ledger that may have lost channels, no file is deleted for an hour, unless
   the disk is short of space or an administrator drops messages: a channel that comes back gets all
   messages of the log, also if another has finished them before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from sparq.broker.channel import Channel
from sparq.broker.ledger_writer import LedgerWriter
from sparq.broker.options import QueueSettings
from sparq.broker.stream import Stream
from sparq.broker.turn import Turn
from sparq.log.disk import DiskError
from sparq.log.records import RecordKind
from sparq.log.segment import SegmentInfo
from sparq.log.task import Task
from sparq.log.upkeep import Drop
from sparq.protocol.instant import Instant

FILE_AGE_MIN_NS: Final = 60_000_000_000
"""No file is ended for its age before this: a short retention would make a file of each batch."""
LOST_CHANNELS_NS: Final = 3600_000_000_000
"""How long files stay for channels that a damaged ledger has lost (rule 6)."""


class Trimming:
    """The files of one topic and the pending decisions about them.

    Attributes:
        settings: the topic's settings; the topic replaces them when policies change.
        drops: number of files that are being deleted.
    """

    def __init__(
        self,
        stream: Stream,
        channels: dict[str, Channel],
        writer: LedgerWriter | None,
        *,
        settings: QueueSettings,
        turn: Turn[Any],
        submit: Callable[[Task, Callable[[Instant], None]], None],
        sync_file: Callable[[], bool],
    ) -> None:
        """Prepare for one topic.

        Args:
            stream: the topic's log.
            channels: the topic's channels.
            writer: None for an ephemeral topic; retention does not apply to it.
            settings: the topic's settings.
            turn: takes notes for the operator.
            submit: hands out a task, and takes the function that is called when it has run.
            sync_file: begins a sync of the log's file.
        """
        self._stream = stream
        self._channels = channels
        self._writer = writer
        self.settings = settings
        self._turn = turn
        self._submit = submit
        self._sync_file = sync_file
        self.drops = 0
        self._noted_end = 0
        self._is_waiting = False
        self._begun_ns = 0

    def drop_freed(self, now: Instant) -> None:
        """Delete the files that an administrator's change has made unneeded, once it is synced."""
        finished = self.finished(now, ends_file=True)
        if self._writer is None:
            self._drop(finished)
        else:
            self._writer.wait_for_sync(partial(self._synced, self._with_indexes(finished)))

    def trim(self, now: Instant) -> None:
        """Delete unneeded files that no rule keeps, now or once the ledger is synced."""
        self._end_old_file(now)
        if self._awaits_channels(now):
            return
        finished = self._with_indexes(self.finished(now, ends_file=self.is_short))
        # Only once the FINs are synced: a power cut could otherwise undo those of messages whose
        # file is gone.
        if self._writer is None or self._writer.is_synced():
            self._drop(finished)
        # One waiter at a time: this runs every second, and the sync may take longer.
        elif finished and not self._is_waiting:
            self._is_waiting = True
            self._writer.wait_for_sync(partial(self._synced, finished))

    def _synced(self, finished: list[SegmentInfo], error: DiskError | None, _now: Instant) -> None:
        """Delete files after a sync of the ledger."""
        self._is_waiting = False
        # Rule 4: on a full disk no sync may succeed before a file is deleted.
        if error is None or error.is_full:
            self._drop(finished)

    def _awaits_channels(self, now: Instant) -> bool:
        """Whether channels that the ledger has lost may still come back (rule 6)."""
        if self._writer is None or not self._writer.ledger.lacks_records or self.is_short:
            return False
        self._begun_ns = self._begun_ns or now.mono_ns
        return now.mono_ns - self._begun_ns < LOST_CHANNELS_NS

    def _end_old_file(self, now: Instant) -> None:
        """End the active file once it has taken messages for the time of retention (rule 5)."""
        keep_ns, active = self.settings.retention_time_ns, self._stream.log.active
        if not keep_ns or active is None or self._writer is None:
            return
        first_ns = active.segment.first_time_ns
        if first_ns and now.wall_ns - first_ns >= max(keep_ns, FILE_AGE_MIN_NS):
            # Not while a commit is in flight or unsynced: the next call, a second later, does it.
            self._stream.log.end_file()

    @property
    def is_short(self) -> bool:
        """Whether the disk has no space for more messages."""
        reserve = self._stream.log.place.reserve
        return reserve is not None and reserve.is_short

    def finished(self, now: Instant, *, ends_file: bool) -> list[SegmentInfo]:
        """Return the files that can be deleted now; with `ends_file`, also the active one."""
        segments = self._stream.log.segments()
        unneeded = self.unneeded([found for found in segments if found.sealed or ends_file])
        if self._writer is None:
            return unneeded
        kept = [c.kept for c in self._channels.values() if c.kept is not None]
        if kept and not self.is_short:
            first_kept = min(kept)
            unneeded = [found for found in unneeded if found.end_index <= first_kept]
        return expired(unneeded, segments, self.settings, now)

    def unneeded(self, segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
        """Return the segments before P and every cursor that have no unfinished messages."""
        channels = self._channels.values()
        ends = [self._stream.end, *(channel.cursor for channel in channels)]
        passed = [s for s in segments if s.end_index <= min(ends)]
        for channel in channels:
            if not passed:
                break
            unfinished = channel.unfinished()
            passed = [
                s
                for s in passed
                if np.searchsorted(unfinished, s.first_index)
                == np.searchsorted(unfinished, s.end_index)
            ]
        return passed

    def _with_indexes(self, finished: list[SegmentInfo]) -> list[SegmentInfo]:
        """Those of the files that may be deleted once the ledger is synced.

        If no file would be left, the ledger must first record which indexes were used; until then
        the ceilings in the files do. Messages lost in a power cut may have been delivered, and
        nothing else in the ledger shows that: after the clock is set back their indexes would be
        used again.
        """
        stream, writer = self._stream, self._writer
        log, end = stream.log, stream.log.end_index
        if not finished or writer is None or len(finished) < len(log.segments()):
            return finished
        if log.flight is not None:
            return []  # the file that the commit begins may not exist yet
        if self._noted_end < end:
            self._noted_end = end
            log.pass_over()
            stream.end, stream.ordinal = end, log.ordinal_at(end)
            writer.ledger.note(RecordKind.MARK, "", [end])
        return finished

    def _drop(self, finished: Sequence[SegmentInfo]) -> None:
        """Delete files from the log that are finished according to the synced ledger.

        Files to which a channel has gone back since, or that have grown, stay.
        """
        if not finished:
            return
        log, due = self._stream.log, self._stream.due
        ends = {found.path: found.end_index for found in finished}
        # Meanwhile a seek may have moved a channel back, or a commit may have added to the file.
        same = [found for found in log.segments() if ends.get(found.path) == found.end_index]
        for segment in self.unneeded(same):
            if segment.sealed or log.end_file():
                self.drops += 1
                drop = log.drop(segment)
                self._submit(drop, partial(self._dropped, drop))
            else:
                # Unsynced messages must be synced first; a later call deletes the file.
                self._sync_file()
        cursors = [channel.cursor for channel in self._channels.values()]
        due.compact(min(cursors, default=self._stream.end), log.first_index)

    def _dropped(self, drop: Drop, _now: Instant) -> None:
        self.drops -= 1
        if drop.error is not None:
            self._turn.health.notes.append(f"a finished segment could not be deleted: {drop.error}")


def expired(
    unneeded: Sequence[SegmentInfo],
    segments: Sequence[SegmentInfo],
    settings: QueueSettings,
    now: Instant,
) -> list[SegmentInfo]:
    """Filter the unneeded files: return those that retention does not keep.

    Args:
        unneeded: files of `segments`, ascending.
        segments: all files of the log, ascending.
        settings: `retention_bytes` and `retention_time_ns`; 0: keep nothing for that reason.
        now: the current time; the wall clock counts, since publish times use it.
    """
    keep_bytes, keep_ns = settings.retention_bytes, settings.retention_time_ns
    if not keep_bytes and not keep_ns:
        return list(unneeded)
    paths = {found.path for found in unneeded}
    gone: list[SegmentInfo] = []
    newer_bytes = 0
    # From the end: retention keeps the newest finished messages.
    for segment in reversed(segments):
        is_old = now.wall_ns - segment.last_time_ns >= keep_ns
        if segment.path in paths and newer_bytes >= keep_bytes and is_old:
            gone.append(segment)
        newer_bytes += segment.size_bytes
    return gone[::-1]
