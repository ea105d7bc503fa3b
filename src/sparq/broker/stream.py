"""What the channels of one topic read from: its log up to the mark P, and its due list.

1. `end` is P (decision 8): channels see what lies before it. It never falls, and never passes what
   the sync policy lets consumers see (decision 10).
2. A block that is not in memory is asked for once, whoever needs it; all who do are woken when it
   has come. A read that fails is tried again after a while: it must not keep the disk busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparq.broker.agenda import Agenda
from sparq.broker.deferred import DueList
from sparq.broker.errands import Errands
from sparq.broker.options import NEVER, SECOND_NS
from sparq.log.log import BlockRead, Log
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.channel import Channel

READ_AGAIN_NS: Final = SECOND_NS
"""How long after a failed read the next is tried."""


class Stream:
    """A topic's log as its channels see it.

    Attributes:
        errands: the topic's disk work.
        end: the mark P, the first index that channels do not see.
        ordinal: messages in the log before P.
    """

    def __init__(self, log: Log, agenda: Agenda, *, sees_unsynced: bool) -> None:
        self.log = log
        self.errands = Errands(agenda)
        self.due = DueList()
        self.end = 0
        self.ordinal = 0
        self.scheduled_ns = NEVER
        self._agenda = agenda
        self._sees_unsynced = sees_unsynced
        self._readers: dict[int, dict[Channel, None]] = {}
        self._failed: dict[Channel, None] = {}

    def readable_end(self) -> int:
        """What consumers may see of the log at most."""
        return self.log.written_end if self._sees_unsynced else self.log.synced_end

    def want(self, index: int, channel: Channel) -> None:
        """Have the block of a stored index read, and wake the channel then."""
        if channel in self._failed:
            return
        readers = self._readers.get(index)
        if readers is not None:
            readers[channel] = None
            return
        self._readers[index] = {channel: None}
        read = self.log.load(index)
        self.errands.submit(read, lambda now: self._loaded(index, read, now))

    def _loaded(self, index: int, read: BlockRead, now: Instant) -> None:
        readers = self._readers.pop(index)
        self.log.store(read)
        self._agenda.notes += [f"{lost.messages} messages lost: {lost}" for lost in read.damage]
        if read.error is None:
            self._agenda.hungry.update(readers)
            return
        self._agenda.notes.append(f"reading a log failed: {read.error}")
        self._failed.update(readers)
        self._agenda.schedule(self, now.mono_ns + READ_AGAIN_NS)

    def on_time(self, now: Instant) -> None:
        """Try again what could not be read."""
        self._agenda.hungry.update(self._failed)
        self._failed.clear()
