"""Which files of a topic's log nobody needs any more, and their way off the disk.

1. A file goes when it lies before P, every channel has finished all of it, and neither retention
   nor a range reader's last commits keep it; never before the ledger that says so is synced
   (decision 11). Where the disk is short, what a range reader has read goes at once.
2. It is enough that the ledger is synced up to the records which finished the file: consumers that
   go on finishing others, and so noting more, do not hold it back.
3. The file that is appended to goes, too, where the disk is short or a channel was emptied; else
   the next commit would have to make a new one.
4. When the disk has not even space for the ledger, finished files go all the same: nothing else
   gives space back, and what is deleted cannot come again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sparq.broker import retention
from sparq.log.log import SegmentInfo
from sparq.log.upkeep import UpkeepWork
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.topic import Topic
    from sparq.log.disk import DiskError


class Trimming:
    """The files of one topic.

    Attributes:
        under_way: deletions that are not done yet.
    """

    def __init__(self, topic: Topic) -> None:
        self.under_way = 0
        self._topic = topic
        self._is_waiting = False

    def trim(self, now: Instant) -> None:
        """Drop the files that nobody needs any more and nothing keeps."""
        self.keep_up()
        topic = self._topic
        log = topic.stream.log
        if not topic.ephemeral:
            self._limit_lag(retention.lag_floor(log.segments(), topic.options, now))
        finished = self.finished(now, ends_file=self._is_short)
        books = topic.books
        if not finished:
            return
        if books is None or books.is_synced():
            self.drop(finished)
        elif not self._is_waiting:
            self._is_waiting = True
            books.when_synced(partial(self._synced, finished))

    def finished(self, now: Instant, *, ends_file: bool) -> list[SegmentInfo]:
        """What nobody needs and nothing keeps; `ends_file`: the active file, too."""
        topic = self._topic
        segments = topic.stream.log.segments()
        unneeded = self.unneeded([found for found in segments if found.sealed or ends_file])
        if topic.ephemeral:
            return unneeded
        kept = [c.kept for c in topic.channels.values() if c.kept is not None]
        if kept and not self._is_short:
            first_kept = min(kept)
            unneeded = [found for found in unneeded if found.end_index <= first_kept]
        return retention.expired(unneeded, segments, topic.options, now)

    @property
    def _is_short(self) -> bool:
        reserve = self._topic.stream.log.place.reserve
        return reserve is not None and reserve.is_short

    def unneeded(self, segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
        """Those that lie before P and every cursor, without an unfinished message in them."""
        topic = self._topic
        ends = [topic.stream.end, *(channel.cursor for channel in topic.channels.values())]
        passed = [s for s in segments if s.end_index <= min(ends)]
        for channel in topic.channels.values():
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

    def _synced(self, finished: Sequence[SegmentInfo], error: DiskError | None) -> None:
        self._is_waiting = False
        if not self._topic.is_closed and (error is None or error.is_full):
            self.drop(finished)

    def drop(self, finished: Sequence[SegmentInfo]) -> None:
        """Delete these files, which the ledger says for good to be finished.

        Not those to which a channel has gone back since, or that have grown.
        """
        topic = self._topic
        ends = {found.path: found.end_index for found in finished}
        segments = topic.stream.log.segments()
        same = [found for found in segments if ends.get(found.path) == found.end_index]
        for segment in self.unneeded(same):
            if segment.sealed or topic.stream.log.end_file():
                self._drop(segment)
            else:
                # What is written is synced first, or by a commit in flight; then it is tried again.
                topic.sync_file()
        cursors = [channel.cursor for channel in topic.channels.values()]
        due, log = topic.stream.due, topic.stream.log
        due.compact(min(cursors, default=topic.stream.end), log.first_index)

    def _drop(self, segment: SegmentInfo) -> None:
        topic = self._topic
        drop = topic.stream.log.drop(segment)

        def dropped(_now: Instant) -> None:
            self.under_way -= 1
            if drop.error is not None:
                topic.agenda.notes.append(f"a finished segment stays on the disk: {drop.error}")

        self.under_way += 1
        topic.stream.errands.submit(drop, dropped)

    def _limit_lag(self, floor: int) -> None:
        topic = self._topic
        for channel in topic.channels.values():
            voided = channel.overrun(floor)
            if channel.kept is not None and channel.kept < floor:
                channel.keep(floor)
            if voided:
                topic.agenda.notes.append(
                    f"channel {topic.name}:{channel.name} is too far behind:"
                    f" its {voided} oldest unread messages are voided"
                )

    def keep_up(self) -> None:
        """Hand out what the log has done beside its commits."""
        log = self._topic.stream.log
        for work in log.upkeep.tasks(log.active, log.synced_end):
            self.submit(work)

    def submit(self, work: UpkeepWork) -> None:
        """Hand out one such work, and what follows it at once."""
        topic = self._topic
        log = topic.stream.log

        def done(_now: Instant) -> None:
            note = log.upkeep.finish(work)
            if note:
                topic.agenda.notes.append(f"topic {topic.name}: {note}")
            elif log.upkeep.goes_on(work, log.active):
                self.keep_up()

        topic.stream.errands.submit(work, done)
