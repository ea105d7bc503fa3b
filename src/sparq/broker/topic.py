"""A topic: a log, the channels that read it, and the mark between what they see and what waits.

1. The mark P (`stream.end`) stands still while the topic is paused, has no channel, or waits for
   the channels that nsqlookupd knows. Else it follows what the sync policy allows.
2. New channels start at P, so the first one gets what had gathered.
3. A segment goes when every channel has finished all of it (see `trimming`).
4. A topic calls what it consists of, and nobody above it. What its commands and works make
   possible stands in `woken` and `outcome` until the turn's end: `end_turn` hands out messages, and
   the broker takes the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from sparq.broker.books import Books, Ended, Forgetful
from sparq.broker.channel import Channel
from sparq.broker.delivery import Handout, Sampler, hand_out
from sparq.broker.latency import Histogram, Window
from sparq.broker.letters import for_one
from sparq.broker.options import MILLISECOND_NS, NEVER, BrokerOptions, LimitReached, check_limit
from sparq.broker.policies import Scope
from sparq.broker.publishing import Answered, Outcome, Publishing
from sparq.broker.recovery import recover_due, restore, seen_end, topic_state
from sparq.broker.session import Session
from sparq.broker.stream import Reads, Stream
from sparq.broker.trimming import Decided, Trimming
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.index_file import IndexWrite
from sparq.log.ledger import Ledger
from sparq.log.ledger_file import Checkpoint, LedgerSync
from sparq.log.log import Log
from sparq.log.records import TopicState
from sparq.log.task import Work
from sparq.log.upkeep import Drop, Prepare, Sweep, UpkeepWork
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_ephemeral

SYNC_RETRY_NS: Final = 10 * MILLISECOND_NS
"""How long after a sync that had to wait for a commit the next is tried."""


class Topic:
    """One topic.

    Attributes:
        books: writes the ledger; None for an ephemeral topic.
        scope: what holds for its channels and, `settings`, for itself.
        waits_for_lookup: whether nsqlookupd's channels are still awaited.
        flows: whether what is published goes on to the channels.
        had_channel: an ephemeral topic goes with its last channel, once it has had one.
        is_deleted: whether it is on its way out; `is_closed`: its files are closed.
        woken: channels that may have something for someone.
        outcome: what it has come to since the broker last took that.
        due_ns: when (mono ns) something is due here at the earliest; it may be too early.
        under_way: works that were handed out and are not finished.
    """

    def __init__(
        self, name: str, log: Log, ledger: Ledger | None, options: BrokerOptions, scope: Scope
    ) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.options = options
        self.scope, self.settings = scope, scope.topic
        self.stream = Stream(log, options.cache_bytes, name)
        self.channels: dict[str, Channel] = {}
        self.publishing = Publishing(options)
        self.books = None if ledger is None else Books(ledger, options.sync_timeout_ns)
        self.trimming = Trimming(self.stream, self.channels, self.books, scope.topic)
        self.paused = self.waits_for_lookup = self.flows = False
        self.had_channel = self.is_deleted = self.is_closed = False
        self.message_count = self.message_bytes = 0
        self.woken: dict[Channel, None] = {}
        self.outcome = Outcome()
        self.due_ns = self.scheduled_ns = self._lookup_deadline_ns = NEVER
        self.under_way = 0

    def begin(self, now: Instant, *, wait_for_lookup: bool) -> None:
        """A new topic: nothing before its log's first index concerns it."""
        self._set_mark(self.stream.log.written_end)
        if wait_for_lookup:
            self.waits_for_lookup = True
            self._lookup_deadline_ns = now.mono_ns + self.options.lookup_wait_ns
            self.expect(self._lookup_deadline_ns)

    def recover(self, state: TopicState, now: Instant) -> None:
        """A topic as its log and ledger have it."""
        stream = self.stream
        self.paused = state.paused
        self.flows = bool(state.channels) and not state.paused
        mark = stream.log.written_end
        if not self.flows:
            mark = min(mark, stream.log.first_index if state.mark is None else state.mark)
        stream.end = max([mark, *map(seen_end, state.channels.values())])
        stream.ordinal = stream.log.ordinal_at(stream.end)
        past_due = recover_due(stream, state, now)
        self.expect(stream.due.next_due_ns())
        for name, channel_state in state.channels.items():
            channel = self._make_channel(name)
            restore(channel, channel_state, past_due, now)
            self.channels[name] = channel
            self.had_channel = True
            self.wake(channel)

    # The turn

    def wake(self, channel: Channel) -> None:
        """Have the turn's end look whether the channel has something for someone."""
        self.woken[channel] = None

    def expect(self, at_ns: int) -> None:
        """Something is due at this time (mono ns)."""
        self.due_ns = min(self.due_ns, at_ns)

    def end_turn(self, sampler: Sampler, waited: Histogram, now: Instant) -> dict[Session, None]:
        """Begin the next commit, and hand out what channels have; returns who got something."""
        log, publishing = self.stream.log, self.publishing
        if publishing.waiting and log.flight is None:
            if self.ephemeral:
                self._commit_bounded(now)
            else:
                self.outcome.works.append(publishing.begin(log, now))
        served: dict[Session, None] = {}
        if self.woken:
            woken, self.woken = self.woken, {}
            for channel in woken:
                served |= hand_out(Handout(channel, sampler, waited, now, self.outcome.letters))
                if channel.ephemeral:
                    channel.bound(self.options.mem_queue_size)
                self.due_ns = min(self.due_ns, channel.due_ns)
        if self.stream.reads:
            self.outcome.works += self.stream.reads
            self.stream.reads = []
        return served

    def goes_on(self) -> bool:
        """Whether another turn should follow, though no event may be there to cause it."""
        return bool(self.woken or (self.publishing.waiting and self.stream.log.flight is None))

    def _commit_bounded(self, now: Instant) -> None:
        """Commit one batch to memory: consumers take some before the next; so less is dropped."""
        commit = self.publishing.begin_bounded(self.stream.log, now, self._ephemeral_room(now))
        commit.run()
        self._take_commit(commit, now)

    def finish(self, work: Work, now: Instant) -> bool:
        """Take over the results of a work that has run; reads for others have none here.

        Returns:
            Whether the turn's end has something to do here.
        """
        self.under_way -= 1
        if take := self._TAKEN.get(type(work)):
            take(self, work, now)
        waits = self.woken or self.publishing.waiting or self.is_deleted
        return bool(waits) or (self.books is not None and self.books.ledger.has_news)

    def _take_commit(self, commit: Commit, now: Instant) -> None:
        """The log has taken something, or synced it: the channels may see more."""
        log = self.stream.log
        log.finish(commit)
        if commit.notes:
            self.outcome.notes += commit.notes
        self.outcome.journals_ended = max(self.outcome.journals_ended, commit.journals_ended)
        if commit is self.publishing.commit:
            self._answer(commit)
        elif commit.error is not None:
            self.outcome.fail(f"syncing {self.name} failed: {commit.error}", commit.error)
        if self.flows:
            self.advance()
        active = log.active
        if active is not None and active.segment.size >= log.upkeep.spare_due_size:
            self.outcome.works.append(log.upkeep.prepare(active))
        if log.unsynced.count:
            self.due_ns = min(self.due_ns, now.mono_ns + self.options.sync_timeout_ns)

    def _answer(self, commit: Commit) -> None:
        """The publishes of a commit are stored, or refused."""
        batch, reason = self.publishing.take(), None
        if commit.error is None:
            self.outcome.has_recovered = True
            first = end = commit.end_index
            if commit.batch is not None:  # None: an ephemeral topic had no room
                first = commit.batch.block.first
                self.message_count += commit.batch.block.count
            for publish in batch:
                self.message_bytes += publish.size_bytes
                indexes = range(first, min(first + publish.messages, end))
                if publish.due is not None:
                    self._defer(indexes, publish.due)
                if publish.only is not None and self.flows:
                    for_one(self.channels, publish.only, indexes)
                first += publish.messages
        else:
            reason = commit.error.reason
            self.outcome.fail(f"publishing to {self.name} failed: {commit.error}", commit.error)
        self.outcome.answers.append(Answered(batch, reason))

    def _defer(self, indexes: range, due: Instant) -> None:
        """Hold these messages back until they are due."""
        for index in indexes:
            self.stream.due.add(due.mono_ns, index)
        self.expect(due.mono_ns)

    def _take_reads(self, reads: Reads, now: Instant) -> None:
        woken, notes = self.stream.loaded(reads, now)
        self._wake_named(woken)
        self.outcome.notes += notes
        self.expect(self.stream.due_ns)

    def _wake_named(self, names: list[str]) -> None:
        self.woken |= {self.channels[name]: None for name in names if name in self.channels}

    def _open_or_close(self) -> None:
        """Find out whether what is published goes on to the channels, and have it do so."""
        self.flows = bool(self.channels) and not self.paused and not self.waits_for_lookup
        self.advance()

    def advance(self) -> None:
        """Let the channels see what they may."""
        stream = self.stream
        end = stream.log.written_end
        if end <= stream.end or not self.flows:
            return
        stream.end = end
        stream.ordinal = stream.log.ordinal_at(end)
        overdue = stream.due.hold_back([], end) if stream.due.overdue else []
        for channel in self.channels.values():
            if overdue:
                channel.join(overdue)
            self.woken[channel] = None

    def _set_mark(self, index: int) -> None:
        self.stream.end, self.stream.ordinal = index, self.stream.log.ordinal_at(index)
        if self.books is not None:
            self.books.ledger.mark(index)

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
            check_limit(len(self.channels), self.settings.max_channels, "channels")
            channel = self.channels[name] = self._make_channel(name)
            self.had_channel = True
            if self.books is not None and not channel.ephemeral:
                self.books.ledger.created(name, channel.start)
            self.outcome.changes.append(("created", self.name, name))
            self._open_or_close()
        return channel

    def _make_channel(self, name: str) -> Channel:
        ephemeral = self.ephemeral or is_ephemeral(name)
        ledger = Forgetful() if ephemeral or self.books is None else self.books.ledger
        channel = Channel(name, self.stream, ledger, self.scope.channel(name), ephemeral=ephemeral)
        if quantiles := self.options.e2e_percentiles:
            channel.latencies = Window(quantiles, self.options.e2e_window_ns)
        return channel

    def delete_channel(self, name: str) -> list[Session]:
        """Drop a channel; returns the sessions of its consumers, which are to end."""
        channel = self.channels.pop(name)
        consumers = list(channel.sessions.values())
        for session in consumers:
            session.closing = True
        self.woken.pop(channel, None)
        channel.retire()
        if self.books is not None and not is_ephemeral(name):
            self.books.ledger.deleted(name)
        if not self.channels:
            self._set_mark(self.stream.end)  # where it stands still: a restart must know
            self.flows = False
        self.outcome.changes.append(("deleted", self.name, name))
        return consumers

    def channels_known(self, names: list[str]) -> None:
        """nsqlookupd has answered: the channels that exist elsewhere exist here too."""
        if self.waits_for_lookup:
            for name in names:
                try:
                    if not is_ephemeral(name):
                        self.create_channel(name)
                except LimitReached as limit:
                    self.outcome.notes.append(f"channel {self.name}:{name} is not made: {limit}")
            self.waits_for_lookup = False
            self._open_or_close()

    # Administration

    def pause(self, paused: bool) -> None:
        """Stop or resume the flow to the channels."""
        if paused == self.paused:
            return
        self.paused = paused
        if self.books is not None:
            self.books.ledger.paused(None, paused)
        if paused:
            self._set_mark(self.stream.end)  # where it stands still: a restart must know
        self._open_or_close()

    def take_scope(self, scope: Scope) -> None:
        """Other policies are in force."""
        self.scope = scope
        self.settings = self.trimming.settings = scope.topic
        self.publishing.release(NEVER)  # by other rates later ones might pass those that are held
        for channel in self.channels.values():
            channel.settings = scope.channel(channel.name)

    def empty(self) -> None:
        """Void what no channel sees yet."""
        self.drop_unseen(self.stream.log.written_end)

    def drop_unseen(self, end: int) -> int:
        """Void what no channel sees yet before an index; returns how many messages those were."""
        stream = self.stream
        first, end = stream.end, min(end, stream.log.written_end)
        if end <= first:
            return 0
        count = stream.log.ordinal_at(end) - stream.ordinal
        self._set_mark(end)
        # First: channels count what they skip, and must not count it a second time as deferred.
        stream.due.void(first, end)
        for channel in self.channels.values():
            channel.void(first, end)
        return count

    # Time

    def on_time(self, now: Instant) -> None:
        """See to what is due: deferred publishes, timeouts, syncs, reads, nsqlookupd's answer."""
        self.due_ns = NEVER
        if self.is_closed:  # deleted since: what was unsynced went with its files
            return
        stream = self.stream
        due = stream.due.hold_back(stream.due.pop_due(now.mono_ns), stream.end)
        for channel in self.channels.values():
            if due:
                channel.join(due)
                self.wake(channel)
            if channel.due_ns <= now.mono_ns:
                channel.on_time(now)
                self.wake(channel)
            self.expect(channel.due_ns)
        self.expect(min(stream.due.next_due_ns(), self.publishing.release(now.mono_ns)))
        if stream.due_ns <= now.mono_ns:
            self._wake_named(stream.retry())
        self.expect(stream.due_ns)
        if self.waits_for_lookup and now.mono_ns >= self._lookup_deadline_ns:
            self.channels_known([])
        if self.waits_for_lookup:
            self.expect(self._lookup_deadline_ns)
        if stream.log.unsynced.count:
            self.expect(self._sync_log(now))
        if (books := self.books) is not None:
            if books.on_time(now):
                self._work_on_ledger(books, now, to_sync=True)
            self.expect(books.due_ns)

    def _sync_log(self, now: Instant) -> int:
        """Sync the log if that is due; returns when to look again."""
        if self.stream.log.sync_due(now) and not self.sync_file():
            # Another commit is in flight, which may be one that does not sync.
            return now.mono_ns + SYNC_RETRY_NS
        return now.mono_ns + self.options.sync_timeout_ns

    def sync_file(self) -> bool:
        """Have what is written synced in the log's own file.

        False: all of it is, or a commit is in flight.
        """
        if (commit := self.stream.log.sync_task()) is not None:
            self.outcome.works.append(commit)
        return commit is not None

    # The ledger

    def ledger_written(self, error: DiskError | None, now: Instant) -> None:
        """What the turn has noted is in the ledger, or why not; answers who waits for that."""
        books = self.books
        if books is None:
            return
        if error is not None:
            self.outcome.fail(f"writing a ledger failed: {error}", error)
        elif books.has_failed:
            self.outcome.has_recovered = True
        if ended := books.written(error, now):
            self._end_waits(ended, now)
        if error is None and books.needs_work():
            self._work_on_ledger(books, now, to_sync=books.is_awaited)
        self.due_ns = min(self.due_ns, books.due_ns)

    def _work_on_ledger(self, books: Books, now: Instant, *, to_sync: bool) -> None:
        """Hand out the sync or the checkpoint that the ledger needs, unless one is under way."""
        work: LedgerSync | Checkpoint | None = books.sync() if to_sync else None
        if work is None and books.needs_checkpoint(to_sync=to_sync):
            try:
                work = books.checkpoint(self.state(now))
            except DiskError as error:
                self.outcome.fail(f"writing a ledger failed: {error}", error)
                self._end_waits(books.refused(error, now), now)
        if work is not None:
            self.outcome.works.append(work)

    def _take_ledger_work(self, work: LedgerSync | Checkpoint, now: Instant) -> None:
        if work.error is not None:
            self.outcome.fail(f"writing a ledger failed: {work.error}", work.error)
        if self.books is not None:
            self._end_waits(self.books.finish(work), now)

    def shrink_ledger(self, now: Instant) -> bool:
        """Replace the ledger's records by their state at once; False: that cannot be."""
        return self.books is not None and self.books.shrink(self.state(now))

    def _end_waits(self, ended: Ended, now: Instant) -> None:
        for waiter, error in ended:
            if isinstance(waiter, Decided):
                self.outcome.works += self.trimming.decided(waiter, error, is_closed=self.is_closed)
            else:
                self.outcome.replies.append((waiter, error))

    # Files that nobody needs

    def settle(self, now: Instant, *, frees: bool) -> None:
        """Have what an administrator has decided done for good; `frees`: and files deleted."""
        self.outcome.works += self.trimming.settle(now, frees=frees)

    def trim(self, now: Instant) -> bool:
        """Drop the files that nobody needs any more and nothing keeps; False: nothing to do."""
        outcome, books = self.outcome, self.books
        self._keep_up()
        outcome.notes += self.trimming.limit_lag(self.name, now)
        outcome.works += self.trimming.trim(now)
        return bool(outcome.works or outcome.notes or (books is not None and books.ledger.has_news))

    def _take_drop(self, drop: Drop, _now: Instant) -> None:
        self.outcome.notes += self.trimming.dropped(drop)

    def _keep_up(self) -> None:
        """Hand out what the log has to do beside its commits."""
        log = self.stream.log
        self.outcome.works += log.upkeep.tasks(log.active, log.synced_end)

    def _take_upkeep(self, work: UpkeepWork, _now: Instant) -> None:
        log = self.stream.log
        if note := log.upkeep.finish(work):
            self.outcome.notes.append(f"topic {self.name}: {note}")
        elif log.upkeep.goes_on(work, log.active):
            self._keep_up()

    def refuse_publishes(self) -> None:
        """The topic goes: nothing that waits will be stored."""
        if waiting := self.publishing.take_waiting():
            self.outcome.answers.append(Answered(waiting, "exiting", fatal=True))

    def close(self) -> None:
        """Let go of the files."""
        self.is_closed, self.due_ns = True, NEVER
        self.stream.log.close()
        if self.books is not None:
            self.books.ledger.close()

    def state(self, now: Instant) -> TopicState:
        """What the ledger has to know, for a checkpoint."""
        return topic_state(self.stream, self.channels, paused=self.paused, now=now)

    def _ephemeral_room(self, now: Instant) -> int:
        """How many messages more an ephemeral topic takes now."""
        if self.stream.log.size_bytes >= self.options.ephemeral_bytes_max // 2:
            self.trim(now)
        if self.stream.log.size_bytes >= self.options.ephemeral_bytes_max:
            return 0
        if self.flows:
            return self.options.commit_count + self.options.mem_queue_size
        return max(0, self.options.mem_queue_size - self.depth())

    _TAKEN: ClassVar[dict[type, Callable[[Topic, Any, Instant], None]]] = {
        Commit: _take_commit,
        Reads: _take_reads,
        LedgerSync: _take_ledger_work,
        Checkpoint: _take_ledger_work,
        Drop: _take_drop,
        Prepare: _take_upkeep,
        IndexWrite: _take_upkeep,
        Sweep: _take_upkeep,
    }
