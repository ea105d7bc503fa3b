"""A topic: a log, the channels that read it, and the mark between what they see and what waits.

1. The mark P (`stream.end`) stands still while the topic is paused, has no channel, or waits for
   the channels that nsqlookupd knows (decision 8). Else it follows what the sync policy allows.
2. New channels start at P, so the first one gets what had gathered.
3. A segment goes when every channel has finished all of it (see `trimming`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from sparq.broker.agenda import Agenda
from sparq.broker.bookkeeping import Bookkeeper
from sparq.broker.channel import Channel
from sparq.broker.limits import LimitReached, check
from sparq.broker.memory import Durable, Forgetful, Memory
from sparq.broker.options import MILLISECOND_NS, NEVER, BrokerOptions
from sparq.broker.percentiles import OFF, Latency, Window, merged
from sparq.broker.publishing import Publishing
from sparq.broker.recovery import Indexes, restore, seen_end, state_of, were_due
from sparq.broker.settling import Settling
from sparq.broker.stream import Stream
from sparq.broker.trimming import Trimming
from sparq.log.ledger import Ledger
from sparq.log.log import Log
from sparq.log.records import TopicState
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_ephemeral

if TYPE_CHECKING:
    from sparq.log.disk import DiskError
    from sparq.log.log import Commit

GATHER_BYTES_MAX: Final = 8 << 20
GATHER_CACHE_PARTS: Final = 8
"""What a channel has read at a time for redeliveries, at most, and as a part of the cache."""

SYNC_RETRY_NS: Final = 10 * MILLISECOND_NS
"""How long after a sync that had to wait for a commit the next is tried."""


class Topic:
    """One topic.

    Attributes:
        books: writes the ledger; None for an ephemeral topic.
        waits_for_lookup: whether nsqlookupd's channels are still awaited.
        had_channel: an ephemeral topic goes with its last channel, once it has had one.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        ledger: Ledger | None,
        agenda: Agenda,
        options: BrokerOptions,
    ) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.agenda = agenda
        self.options = options
        self.stream = Stream(
            log,
            agenda,
            sees_unsynced=options.sync_every != 1,
            gather_bytes_max=min(GATHER_BYTES_MAX, options.cache_bytes // GATHER_CACHE_PARTS),
        )
        self.publishing = Publishing(self, agenda, options)
        self.trimming = Trimming(self)
        self.settling = Settling(self)
        self.books: Bookkeeper | None = None
        if ledger is not None:
            self.books = Bookkeeper(
                ledger, agenda, self.stream.errands, options.sync_timeout_ns, self.state
            )
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.waits_for_lookup = False
        self.had_channel = False
        self.is_closed = False
        self.message_count = 0
        self.message_bytes = 0
        self.scheduled_ns = NEVER
        self._lookup_deadline_ns = NEVER

    # Beginning

    def begin(self, now: Instant, *, wait_for_lookup: bool) -> None:
        """A new topic: nothing before its log's first index concerns it."""
        self._set_mark(self.stream.readable_end())
        if wait_for_lookup:
            self.waits_for_lookup = True
            self._lookup_deadline_ns = now.mono_ns + self.options.lookup_wait_ns
            self.agenda.schedule(self, self._lookup_deadline_ns)

    def recover(self, state: TopicState, now: Instant) -> None:
        """A topic as its log and ledger have it."""
        stream = self.stream
        self.paused = state.paused
        flows = bool(state.channels) and not state.paused
        mark = stream.readable_end()
        if not flows:
            mark = min(mark, stream.log.first_index if state.mark is None else state.mark)
        stream.end = max([mark, *map(seen_end, state.channels.values())])
        stream.ordinal = stream.log.ordinal_at(stream.end)
        past_due = self._recover_due(state, now)
        for name, channel_state in state.channels.items():
            channel = self._make_channel(name)
            restore(channel, channel_state, past_due, now)
            self.channels[name] = channel
            self.had_channel = True
        if self.books is not None and not self.books.is_synced():
            self.books.noted()

    def _recover_due(self, state: TopicState, now: Instant) -> Indexes:
        """Refill the due list; returns the deferred publishes that were due before now, ascending.

        One that some channel has seen has been due, even if the wall clock was set back since.
        """
        stream = self.stream
        found = stream.log.due_entries()
        if not found:
            return np.empty(0, np.int64)
        entries = np.array(found, np.int64)
        indexes, dues = entries[np.argsort(entries[:, 0])].T
        are_past = (dues <= now.wall_ns) | were_due(indexes, state)
        are_cancelled = np.isin(indexes, np.array(list(state.cancelled), np.int64))
        dues += now.mono_ns - now.wall_ns
        stream.due.fill(indexes, dues, are_past, stream.end, are_cancelled)
        if stream.due.pending:
            self.agenda.schedule(self, stream.due.next_due_ns())
        past: Indexes = indexes[are_past & ~are_cancelled]
        return past

    # The mark

    def flows(self) -> bool:
        """Whether what is published goes on to the channels."""
        return bool(self.channels) and not self.paused and not self.waits_for_lookup

    def committed(self, now: Instant) -> None:
        """The log has taken something, or synced it."""
        self.advance()
        log = self.stream.log
        if log.upkeep.wants_spare(log.active, log.options.max_bytes_per_file):
            assert log.active is not None
            self.trimming.submit(log.upkeep.prepare(log.active))
        if log.unsynced_count:
            self.agenda.schedule(self, now.mono_ns + self.options.sync_timeout_ns)

    def advance(self) -> None:
        """Let the channels see what they may."""
        stream = self.stream
        end = stream.readable_end()
        if end <= stream.end or not self.flows():
            return
        stream.end = end
        stream.ordinal = stream.log.ordinal_at(end)
        overdue = stream.due.hold_back([], end) if stream.due.overdue else []
        for channel in self.channels.values():
            if overdue:
                channel.join(overdue)
            channel.wake()

    def _stand(self) -> None:
        """The mark stands still from here on; a restart must know where."""
        self._set_mark(self.stream.end)

    def _set_mark(self, index: int) -> None:
        self.stream.end = index
        self.stream.ordinal = self.stream.log.ordinal_at(index)
        if self.books is not None:
            self.books.ledger.mark(index)
            self.books.noted()

    def depth(self) -> int:
        """Messages that no channel sees yet."""
        return self.stream.log.end_ordinal - self.stream.ordinal

    # Channels

    def create_channel(self, name: str) -> Channel:
        """The channel of this name; a new one starts at P.

        Raises:
            LimitReached: it would be a new one, and there may be no more.
        """
        channel = self.channels.get(name)
        if channel is None:
            check(len(self.channels), self.options.max_channels, "channels")
            channel = self.channels[name] = self._make_channel(name)
            self.had_channel = True
            if self.books is not None and not channel.ephemeral:
                self.books.ledger.created(name, channel.start)
                self.books.noted()
            self.agenda.changes.append(("created", self.name, name))
            self.advance()
        return channel

    def _make_channel(self, name: str) -> Channel:
        ephemeral = self.ephemeral or is_ephemeral(name)
        memory: Memory = Forgetful()
        if self.books is not None and not is_ephemeral(name):
            memory = Durable(self.books.ledger, name, self.books.noted)
        channel = Channel(name, self.stream, memory, self.agenda, ephemeral=ephemeral)
        if quantiles := self.options.e2e_percentiles:
            channel.latencies = Window(quantiles, self.options.e2e_window_ns)
        return channel

    def delete_channel(self, name: str) -> None:
        """Drop a channel and end its clients' connections."""
        channel = self.channels.pop(name)
        for session in channel.sessions.values():
            session.closing = True
            self.agenda.dirty[session] = None
        if channel.hold is not None:
            channel.hold.session.holds.discard(channel)
        self.agenda.hungry.pop(channel, None)
        channel.retire()
        if self.books is not None and not is_ephemeral(name):
            self.books.ledger.deleted(name)
            self.books.noted()
        if not self.channels:
            self._stand()
        self.agenda.changes.append(("deleted", self.name, name))

    def channels_known(self, names: list[str]) -> None:
        """nsqlookupd has answered: the channels that exist elsewhere exist here too."""
        if self.waits_for_lookup:
            for name in names:
                if not is_ephemeral(name):
                    self._create_known(name)
            self.waits_for_lookup = False
            self.advance()

    def _create_known(self, name: str) -> None:
        try:
            self.create_channel(name)
        except LimitReached as limit:
            self.agenda.notes.append(f"channel {self.name}:{name} is not made: {limit}")

    # Administration

    def pause(self, paused: bool) -> None:
        """Stop or resume the flow to the channels."""
        if paused == self.paused:
            return
        self.paused = paused
        if self.books is not None:
            self.books.ledger.paused(None, paused)
            self.books.noted()
        if paused:
            self._stand()
        self.advance()

    def empty(self) -> None:
        """Void what no channel sees yet."""
        stream = self.stream
        first, end = stream.end, stream.readable_end()
        if end <= first:
            return
        self._set_mark(end)
        # First: channels count what they skip, and must not count it a second time as deferred.
        stream.due.void(first, end)
        for channel in self.channels.values():
            channel.void(first, end)

    # Time

    def defer(self, due_mono_ns: int, index: int) -> None:
        """Keep a deferred publish out of the channels until it is due."""
        self.stream.due.add(due_mono_ns, index)
        self.agenda.schedule(self, due_mono_ns)

    def on_time(self, now: Instant) -> None:
        """Deferred publishes are due, the log wants a sync, or nsqlookupd has not answered."""
        if self.is_closed:  # deleted since: what was unsynced went with its files
            return
        stream = self.stream
        due = stream.due.hold_back(stream.due.pop_due(now.mono_ns), stream.end)
        if due:
            for channel in self.channels.values():
                channel.join(due)
        next_ns = stream.due.next_due_ns()
        if self.waits_for_lookup and now.mono_ns >= self._lookup_deadline_ns:
            self.channels_known([])
        if self.waits_for_lookup:
            next_ns = min(next_ns, self._lookup_deadline_ns)
        if stream.log.unsynced_count:
            next_ns = min(next_ns, self._sync(now))
        if next_ns != NEVER:
            self.agenda.schedule(self, next_ns)

    def _sync(self, now: Instant) -> int:
        """Sync the log if that is due; returns when to look again."""
        if self.stream.log.sync_due(now) and not self.sync_file():
            # Another commit is in flight, which may be one that does not sync.
            return now.mono_ns + SYNC_RETRY_NS
        return now.mono_ns + self.options.sync_timeout_ns

    def sync_file(self, then: Callable[[Instant], None] | None = None) -> bool:
        """Have what is written synced in the log's own file, then call back, if that is wanted.

        False: all of it is, or a commit is in flight; nobody is called back.
        """
        commit = self.stream.log.sync_task()
        if commit is None:
            return False

        def synced(now: Instant) -> None:
            self._synced(commit, now)
            if then is not None:
                then(now)

        self.stream.errands.submit(commit, synced)
        return True

    def _synced(self, commit: Commit, now: Instant) -> None:
        self.stream.log.finish(commit)
        self.agenda.notes += commit.notes
        if commit.error is not None:
            self.agenda.fail(f"syncing {self.name} failed: {commit.error}", commit.error)
        self.agenda.gathering[self] = None
        self.committed(now)

    # Ending

    def sync_all(self, now: Instant) -> None:
        """nsqd stops: have the log and the ledger synced."""
        self.sync_file()
        if self.books is not None:
            # Not only what is written: a write that failed a moment ago is to be tried again.
            self.books.when_synced(_nobody_waits)

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call back when no disk work of this topic is under way any more."""
        self.stream.errands.when_idle(call)

    def close(self) -> None:
        """Let go of the files."""
        self.is_closed = True
        self.agenda.cancel(self)
        self.agenda.cancel(self.stream)
        self.stream.log.close()
        if self.books is not None:
            self.books.close()

    # Trimming

    def trim(self, now: Instant) -> None:
        """Drop the files that nobody needs any more: see `Trimming.trim`."""
        self.trimming.trim(now)

    # For others

    def state(self, now: Instant) -> TopicState:
        """What the ledger has to know, for a checkpoint."""
        return TopicState(
            mark=self.stream.end,
            paused=self.paused,
            channels={
                name: state_of(channel, now)
                for name, channel in self.channels.items()
                if not is_ephemeral(name)
            },
            cancelled=set(self.stream.due.cancelled),
        )

    def latency(self, now: Instant) -> Latency:
        """How long messages took to be finished lately, over all channels."""
        quantiles = self.options.e2e_percentiles
        if not quantiles:
            return OFF
        windows = [c.latencies for c in self.channels.values() if c.latencies is not None]
        return merged(windows, quantiles, now.mono_ns)

    def ephemeral_room(self, now: Instant) -> int:
        """How many messages more an ephemeral topic takes now."""
        if self.stream.log.size_bytes >= self.options.ephemeral_bytes_max // 2:
            self.trim(now)
        if self.stream.log.size_bytes >= self.options.ephemeral_bytes_max:
            return 0
        if self.flows():
            return self.options.commit_count + self.options.mem_queue_size
        return max(0, self.options.mem_queue_size - self.depth())


def _nobody_waits(_error: DiskError | None) -> None:
    """What cannot be kept is a matter of health."""
