"""Which files of a topic's log nobody needs any more, and which are kept all the same.

1. A file goes when it lies before P, every channel has finished all of it, and neither retention
   nor a range reader's last commits keep it; never before the ledger that says so is synced. Where
   the disk is short, what a range reader has read goes at once.
2. It is enough that the ledger is synced up to the records which finished the file: consumers that
   go on finishing others, and so noting more, do not hold it back.
3. The file that is appended to goes, too, where the disk is short or a channel was emptied; else
   the next commit would have to make a new one.
4. When the disk has not even space for the ledger, finished files go all the same: nothing else
   gives space back, and what is deleted cannot come again.
5. Retention, and the limit of a channel's lag, work on whole files, as deleting does; a file is as
   old as its newest message. Retention only keeps: what a channel still needs stays anyway, and two
   options together keep what either of them would. A lag limit takes from a channel what its cursor
   has not reached, oldest first, so that a channel which nobody reads does not fill the disk. What
   is in flight, requeued or deferred stays: it pins its own file only. The file that is being
   written to is neither deleted nor taken from a channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from sparq.broker.books import Books
from sparq.broker.channel import Channel
from sparq.broker.options import Settings
from sparq.broker.stream import Stream
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.segment import SegmentInfo
from sparq.log.upkeep import Drop
from sparq.protocol.instant import Instant

NOT_ON_DISK: Final = "not on disk yet"

Works = list[Drop | Commit]


class Decided(NamedTuple):
    """Waits for the ledger: what an administrator has decided, or files that are finished.

    Attributes:
        finished: files that nobody needs, to be deleted once the ledger says so for good.
        is_asked: whether an administrator waits for it (see `Trimming.unsettled`).
    """

    finished: list[SegmentInfo]
    is_asked: bool


class Trimming:
    """The files of one topic, and what was decided of them.

    Attributes:
        settings: the topic's; whoever owns the topic replaces them.
    """

    def __init__(
        self,
        stream: Stream,
        channels: dict[str, Channel],
        books: Books | None,
        settings: Settings,
    ) -> None:
        """For a topic's stream and its channels; `books` is None for an ephemeral topic, to which
        the settings on retention and lag do not apply."""
        self._stream = stream
        self._channels = channels
        self._books = books
        self.settings = settings
        self._drops = 0
        self._noted_end = 0
        self._is_waiting = False
        self._undecided = 0
        self._refusal = NOT_ON_DISK

    def unsettled(self) -> str | None:
        """Why what an administrator has decided is not all done; None: it is.

        It is done when the ledger that says it is synced, and the files that it has freed are
        deleted. What cannot be written is tried again; meanwhile this says why.
        """
        if self._undecided:
            return self._refusal
        return NOT_ON_DISK if self._drops else None

    def settle(self, now: Instant, *, frees: bool) -> Works:
        """Have what is noted synced; `frees`: and what nobody needs any more deleted."""
        finished = self.finished(now, ends_file=True) if frees else []
        if self._books is None:
            return self._drop(finished)
        finished = self._with_indexes(finished)
        self._undecided += 1
        self._books.wait_for_sync(Decided(finished, is_asked=True))
        return []

    def trim(self, now: Instant) -> Works:
        """Delete what nobody needs and nothing keeps, now or once the ledger is synced."""
        finished = self._with_indexes(self.finished(now, ends_file=self.is_short))
        if finished and (self._books is None or self._books.is_synced()):
            return self._drop(finished)
        if finished and self._books is not None and not self._is_waiting:
            self._is_waiting = True
            self._books.wait_for_sync(Decided(finished, is_asked=False))
        return []

    def decided(self, decided: Decided, error: DiskError | None, *, is_closed: bool) -> Works:
        """The ledger says what was decided, or why not; `is_closed`: the topic has gone."""
        if decided.is_asked:
            self._undecided -= 1
            self._refusal = NOT_ON_DISK if error is None else error.reason
        else:
            self._is_waiting = False
        if is_closed:
            return []
        if decided.is_asked and error is not None and self._books is not None:
            self._undecided += 1
            self._books.wait_for_sync(Decided([], is_asked=True))
        return self._drop(decided.finished) if error is None or error.is_full else []

    def dropped(self, drop: Drop) -> list[str]:
        """A file is deleted, or not; returns what an operator should read."""
        self._drops -= 1
        if drop.error is None:
            return []
        return [f"a finished segment stays on the disk: {drop.error}"]

    @property
    def is_short(self) -> bool:
        """Whether the disk has no space for more messages."""
        reserve = self._stream.log.place.reserve
        return reserve is not None and reserve.is_short

    def finished(self, now: Instant, *, ends_file: bool) -> list[SegmentInfo]:
        """What nobody needs and nothing keeps; `ends_file`: the active file, too."""
        segments = self._stream.log.segments()
        unneeded = self.unneeded([found for found in segments if found.sealed or ends_file])
        if self._books is None:
            return unneeded
        kept = [c.kept for c in self._channels.values() if c.kept is not None]
        if kept and not self.is_short:
            first_kept = min(kept)
            unneeded = [found for found in unneeded if found.end_index <= first_kept]
        return expired(unneeded, segments, self.settings, now)

    def unneeded(self, segments: Sequence[SegmentInfo]) -> list[SegmentInfo]:
        """Those that lie before P and every cursor, without an unfinished message in them."""
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
        """What of it may go, once the ledger is synced.

        Where no file is to be left, the ledger has to say which indexes were given; until then the
        ceilings of the files do. What a power cut took may have been delivered, and nothing else
        in the ledger tells of it: a clock that is set back would have its index given again.
        """
        stream, books = self._stream, self._books
        log, end = stream.log, stream.log.end_index
        if not finished or books is None or len(finished) < len(log.segments()):
            return finished
        if log.flight is not None:
            return []  # the file that it begins may not be there yet
        if self._noted_end < end:
            self._noted_end = end
            log.pass_over()
            stream.end, stream.ordinal = end, log.ordinal_at(end)
            books.ledger.mark(end)
        return finished

    def _drop(self, finished: Sequence[SegmentInfo]) -> Works:
        """Take these files from the log, which the ledger says for good to be finished.

        Not those to which a channel has gone back since, or that have grown.
        """
        if not finished:
            return []
        log, due = self._stream.log, self._stream.due
        ends = {found.path: found.end_index for found in finished}
        same = [found for found in log.segments() if ends.get(found.path) == found.end_index]
        works: Works = []
        for segment in self.unneeded(same):
            if segment.sealed or log.end_file():
                self._drops += 1
                works.append(log.drop(segment))
            elif (commit := log.sync_task()) is not None:
                # What is written is synced first; then it is tried again.
                works.append(commit)
        cursors = [channel.cursor for channel in self._channels.values()]
        due.compact(min(cursors, default=self._stream.end), log.first_index)
        return works

    def has_room(self, wanted_bytes: int) -> bool:
        """Whether the topic may grow by so many bytes (see `limits`)."""
        most = self.settings.max_topic_bytes
        log = self._stream.log
        if most <= 0 or self._books is None or log.size_bytes + wanted_bytes <= most:
            return True
        free = sum(segment.size_bytes for segment in self.unneeded(log.segments()))
        return log.size_bytes - free + wanted_bytes <= most

    def limit_lag(self, topic: str, now: Instant) -> list[str]:
        """Void what channels have not read within the limits; returns notes for an operator."""
        notes: list[str] = []
        if self._books is None:
            return notes
        for channel in self._channels.values():
            if has_lag_limit(channel):
                self._limit_lag(channel, now)
            if channel.voided_count or channel.expired_count:
                notes += _loss_notes(topic, channel, now)
        return notes

    def _limit_lag(self, channel: Channel, now: Instant) -> None:
        segments, settings = self._stream.log.segments(), channel.settings
        most_bytes, most_ns = settings.max_channel_lag_bytes, settings.max_channel_lag_time_ns
        voided = channel.overrun(lag_floor(segments, most_bytes, most_ns, now))
        channel.voided_count += voided
        expired = channel.overrun(lag_floor(segments, 0, settings.message_ttl_ns, now))
        channel.expired_count += expired


def expired(
    unneeded: Sequence[SegmentInfo],
    segments: Sequence[SegmentInfo],
    settings: Settings,
    now: Instant,
) -> list[SegmentInfo]:
    """Of the files that no channel needs those that retention does not keep either.

    Args:
        unneeded: files of `segments`, ascending.
        segments: all files of the log, ascending.
        settings: `retention_bytes` and `retention_time_ns`; 0: keep nothing for that reason.
        now: the wall clock decides, since publish times are of the wall clock.
    """
    keep_bytes, keep_ns = settings.retention_bytes, settings.retention_time_ns
    if not keep_bytes and not keep_ns:
        return list(unneeded)
    newer = _newer_bytes(segments)
    return [
        segment
        for segment in unneeded
        if newer[segment.path] >= keep_bytes and now.wall_ns - segment.last_time_ns >= keep_ns
    ]


def _loss_notes(topic: str, channel: Channel, now: Instant) -> list[str]:
    """What an operator should read of messages that a channel has lost, once a minute."""
    voided, expired = channel.tell_lost(now)
    name, notes = f"channel {topic}:{channel.name}", []
    if voided:
        notes.append(f"{name} is too far behind: its {voided} oldest unread messages are voided")
    if expired:
        notes.append(f"{name}: {expired} messages were too old to be delivered")
    return notes


def has_lag_limit(channel: Channel) -> bool:
    """Whether a channel may fall behind only so far."""
    settings = channel.settings
    return bool(
        settings.max_channel_lag_bytes
        or settings.max_channel_lag_time_ns
        or settings.message_ttl_ns
    )


def lag_floor(segments: Sequence[SegmentInfo], most_bytes: int, most_ns: int, now: Instant) -> int:
    """The index before which no channel may have anything unread; 0: no limit is reached.

    Args:
        segments: all files of the log, ascending.
        most_bytes: what may be unread; 0: any number.
        most_ns: how old it may be; 0: any age.
        now: the wall clock decides.
    """
    floor = 0
    if not most_bytes and not most_ns:
        return floor
    newer = _newer_bytes(segments)
    for segment in segments:
        too_far = most_bytes and newer[segment.path] + segment.size_bytes > most_bytes
        too_old = most_ns and now.wall_ns - segment.last_time_ns > most_ns
        if segment.sealed and (too_far or too_old):
            floor = segment.end_index
    return floor


def _newer_bytes(segments: Sequence[SegmentInfo]) -> dict[str, int]:
    """What the files behind each file take in all."""
    newer: dict[str, int] = {}
    total = 0
    for segment in reversed(segments):
        newer[segment.path] = total
        total += segment.size_bytes
    return newer
