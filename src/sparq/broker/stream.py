"""What the channels of one topic read from: its log up to the mark P, and its due list.

1. `end` is P (decision 8): channels see what lies before it. It never falls, and never passes what
   the sync policy lets consumers see (decision 10).
2. An extent of the log that is not in memory is read once, whoever needs it; all who do are woken
   when it has come. What one channel needs at one moment is read by one task: a task for each would
   cost more than the reading. A read that fails is tried again after a while: it must not keep the
   disk busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparq.broker.agenda import Agenda
from sparq.broker.deferred import DueList
from sparq.broker.errands import Errands
from sparq.broker.options import NEVER, SECOND_NS
from sparq.log.log import BlockRead, Log
from sparq.log.task import TaskKind
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.channel import Channel

READ_AGAIN_NS: Final = SECOND_NS
"""How long after a failed read the next is tried."""


class Reads:
    """Work: several extents are read, one after the other; each keeps its own error."""

    kind: Final = TaskKind.READ
    error: Final = None

    def __init__(self, reads: list[BlockRead]) -> None:
        self.reads = reads

    def run(self) -> None:
        """Read and verify them."""
        for read in self.reads:
            read.run()


class Stream:
    """A topic's log as its channels see it.

    Attributes:
        errands: the topic's disk work.
        end: the mark P, the first index that channels do not see.
        ordinal: messages in the log before P.
        gather_bytes_max: so much, and one extent, is asked for by one `gather` at most: it must
            still be in the cache when it is sent.
    """

    def __init__(
        self, log: Log, agenda: Agenda, *, sees_unsynced: bool, gather_bytes_max: int
    ) -> None:
        self.log = log
        self.errands = Errands(agenda)
        self.due = DueList()
        self.end = 0
        self.ordinal = 0
        self.scheduled_ns = NEVER
        self._agenda = agenda
        self._sees_unsynced = sees_unsynced
        self.gather_bytes_max = gather_bytes_max
        self._readers: dict[int, dict[Channel, None]] = {}
        self._asked: dict[int, int] = {}  # an index asked for, and its extent's first one
        self._gathering: dict[Channel, set[int]] = {}
        self._failed: dict[Channel, None] = {}

    def readable_end(self) -> int:
        """What consumers may see of the log at most."""
        return self.log.written_end if self._sees_unsynced else self.log.synced_end

    def is_failing(self, channel: Channel) -> bool:
        """Whether a read for this channel has failed: nothing is read for it for a while."""
        return channel in self._failed

    def is_gathering(self, channel: Channel) -> bool:
        """Whether what `gather` was asked for has not come yet."""
        return channel in self._gathering

    def gather(self, reads: list[BlockRead], channel: Channel) -> None:
        """Do what `want` does; `is_gathering` says so until all of them have come."""
        if channel not in self._failed:
            self._gathering[channel] = {_extent_of(read) for read in reads}
            self.want(reads, channel)

    def want_next(self, index: int, channel: Channel) -> None:
        """Do what `want` does for the extent of a stored index.

        A channel asks with every turn, until it has come: where to read is found out once.
        """
        if channel in self._failed:
            return
        extent = self._asked.get(index)
        if extent is None:
            read = self.log.load(index)
            self._asked[index] = _extent_of(read)
            self.want([read], channel)
        else:
            self._readers[extent][channel] = None

    def want(self, reads: list[BlockRead], channel: Channel) -> None:
        """Have extents read (as `log.load` gave them), and wake the channel when they have come."""
        if channel in self._failed:
            return
        begun = []
        for read in reads:
            readers = self._readers.setdefault(_extent_of(read), {})
            if not readers:
                begun.append(read)
            readers[channel] = None
        if begun:
            self.errands.submit(Reads(begun), lambda now: self._loaded(begun, now))

    def _loaded(self, reads: list[BlockRead], now: Instant) -> None:
        for read in reads:
            extent = _extent_of(read)
            readers = self._readers.pop(extent)
            self._asked = {asked: at for asked, at in self._asked.items() if at != extent}
            for channel in readers:
                self._gathered(channel, extent)
            self.log.store(read)
            self._agenda.notes += [f"{lost.messages} messages lost: {lost}" for lost in read.damage]
            self._agenda.hungry.update(readers)
            if read.error is not None:
                self._agenda.notes.append(f"reading a log failed: {read.error}")
                self._failed.update(readers)
                self._agenda.schedule(self, now.mono_ns + READ_AGAIN_NS)

    def _gathered(self, channel: Channel, extent: int) -> None:
        missing = self._gathering.get(channel)
        if missing is not None:
            missing.discard(extent)
            if not missing:
                del self._gathering[channel]

    def on_time(self, now: Instant) -> None:
        """Try again what could not be read."""
        self._agenda.hungry.update(self._failed)
        self._failed.clear()


def _extent_of(read: BlockRead) -> int:
    """The first index of the extent that is read."""
    assert read.place is not None
    return read.place.extent.first
