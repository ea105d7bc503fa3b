"""A topic: its log, the channels that read the log, and the mark P up to which they may read.

1. The mark P (`stream.end`) does not move while the topic is paused, has no channel, or waits for
   the channels that nsqlookupd knows. Otherwise it follows what the sync policy allows.
2. A new channel starts at P, so the first channel gets the messages stored before it existed.
3. A segment is deleted once every channel has finished all its messages (see `trimming`).
4. A topic calls its own components and never the layer above. The results of its commands and
   tasks are collected in `woken` and `outcome` until the end of the turn: then `end_turn` delivers
   messages and the broker takes the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from sparq.broker.channel import Channel
from sparq.broker.counts import TopicCounts
from sparq.broker.dead_letters import for_one
from sparq.broker.delivery import DeliveryContext, Sampler, deliver
from sparq.broker.latency import Histogram, LatencyWindow
from sparq.broker.ledger_writer import Ended, LedgerWriter, NoLedger
from sparq.broker.options import NEVER, BrokerOptions, LimitReached, QueueSettings, check_limit
from sparq.broker.policies import Scope
from sparq.broker.publishing import Answered, Outcome, Publishing, Trouble
from sparq.broker.recovery import recover_due, recover_mark, restore, topic_state
from sparq.broker.session import V2Session
from sparq.broker.stream import ExtentReads, Stream
from sparq.broker.trimming import AwaitedSync, Trimming
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.index_file import IndexWrite
from sparq.log.ledger import Checkpoint, Ledger, LedgerSync
from sparq.log.log import Log
from sparq.log.records import RecordKind, TopicState
from sparq.log.task import Task
from sparq.log.upkeep import Drop, LeftoverRemoval, Prepare, UpkeepTask
from sparq.options.units import MILLISECOND
from sparq.protocol.dead_letters import REDRIVE_CHANNEL
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_ephemeral

SYNC_RETRY_NS: Final = 10 * MILLISECOND
"""Delay before a sync is retried that could not begin because a commit was in flight."""


class Topic:
    """One topic.

    Attributes:
        writer: writes the ledger; None for an ephemeral topic.
        scope: the settings of its channels and, as `settings`, its own.
        counts: what it has counted since nsqd started.
        waits_for_lookup: whether nsqlookupd's answer about channels is still pending.
        flows: whether channels may see newly published messages.
        had_channel: an ephemeral topic that has had a channel is deleted with its last one.
        has_new_letters: whether nsqd has published dead letters here, which need a channel.
        is_deleted: whether it is being deleted; `is_closed`: whether its files are closed.
        woken: channels to look at when the turn ends: they may have messages to deliver.
        due_ns: a lower bound (mono ns) of the next time at which something is due.
        under_way: number of tasks that were handed out and have not finished.
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
        self.counts = TopicCounts()
        self.publishing = Publishing(options, self.counts)
        self.writer = None if ledger is None else LedgerWriter(ledger, options.sync_timeout_ns)
        self.trimming = Trimming(self.stream, self.channels, self.writer, scope.topic)
        self.paused = self.waits_for_lookup = self.flows = False
        self.had_channel = self.has_new_letters = self.is_deleted = self.is_closed = False
        self.woken: dict[Channel, None] = {}
        self.outcome = Outcome()
        self.due_ns = self.scheduled_ns = self._lookup_deadline_ns = NEVER
        self.under_way = 0
        self._is_refusing = False

    def begin(self, now: Instant, *, wait_for_lookup: bool) -> None:
        """Start a new topic: nothing before its log's first index belongs to it."""
        self._set_mark(self.stream.log.written_end)
        if wait_for_lookup:
            self.waits_for_lookup = True
            self._lookup_deadline_ns = now.mono_ns + self.options.lookup_wait_ns
            self.expect(self._lookup_deadline_ns)

    def recover(self, state: TopicState, now: Instant) -> None:
        """Restore the state that was found in its log and ledger."""
        stream = self.stream
        self.paused = state.paused
        self.flows = bool(state.channels) and not state.paused
        recover_mark(stream, state, flows=self.flows)
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
        """Have `end_turn` check the channel; the caller adds the topic to the turn."""
        self.woken[channel] = None

    def expect(self, at_ns: int) -> None:
        """Have `on_time` run at this time (mono ns) at the latest."""
        self.due_ns = min(self.due_ns, at_ns)

    def end_turn(self, sampler: Sampler, waited: Histogram, now: Instant) -> dict[V2Session, None]:
        """Begin the next commit and deliver messages; returns the sessions that got some."""
        log, publishing = self.stream.log, self.publishing
        if publishing.waiting and log.flight is None:
            if self.ephemeral:
                self._commit_bounded(now)
            else:
                self.outcome.tasks.append(publishing.begin(log, now))
        served: dict[V2Session, None] = {}
        letters = self.outcome.letters
        if self.woken:
            woken, self.woken = self.woken, {}
            for channel in woken:
                served |= deliver(DeliveryContext(channel, sampler, waited, now, letters))
                # After the delivery: what consumers take now need not be dropped.
                if channel.ephemeral:
                    channel.bound(self.options.mem_queue_size)
                self.due_ns = min(self.due_ns, channel.due_ns)
        if self.stream.reads:
            self.outcome.tasks += self.stream.reads
            self.stream.reads = []
        return served

    def needs_turn(self) -> bool:
        """Whether another turn should follow even if no event arrives."""
        # One commit in flight: with several, an OK could overtake an earlier one.
        return bool(self.woken or (self.publishing.waiting and self.stream.log.flight is None))

    def _commit_bounded(self, now: Instant) -> None:
        """Commit one batch to memory: consumers take messages before the next, so fewer drop."""
        commit = self.publishing.begin_bounded(self.stream.log, now, self._ephemeral_room(now))
        commit.run()
        self._take_commit(commit, now)

    def finish(self, task: Task, now: Instant) -> bool:
        """Take over the results of a task that has run; reads for a request have none here.

        Returns:
            Whether the topic must take part in the next end of turn.
        """
        self.under_way -= 1
        if take := self._TAKEN.get(type(task)):
            take(self, task, now)
        waits = self.woken or self.publishing.waiting or self.is_deleted
        return bool(waits) or (self.writer is not None and self.writer.ledger.has_news)

    def _take_commit(self, commit: Commit, now: Instant) -> None:
        """Handle a finished commit: answer its publishes, and let channels see more."""
        log = self.stream.log
        log.finish(commit)
        # Not with each refused publish: the first one's notes say what is wrong.
        if commit.notes and not (self._is_refusing and commit.error):
            self.outcome.notes += commit.notes
        self._is_refusing = commit.error is not None
        self.outcome.journals_ended = max(self.outcome.journals_ended, commit.journals_ended)
        if commit is self.publishing.commit:
            self._answer(commit)
        elif commit.error is not None:
            self.outcome.fail(
                Trouble.PUBLISH, f"syncing {self.name} failed: {commit.error}", commit.error
            )
        if self.flows:
            self.advance()
        active = log.active
        # The next file in advance, in a thread: beginning one took up to 46 ms.
        if active is not None and active.segment.size >= log.upkeep.spare_due_size:
            self.outcome.tasks.append(log.upkeep.prepare(active))
        if log.unsynced.count:
            self.due_ns = min(self.due_ns, now.mono_ns + self.options.sync_timeout_ns)

    def _answer(self, commit: Commit) -> None:
        """Record whether the publishes of a commit were stored or refused."""
        batch, reason = self.publishing.take(), None
        if commit.error is None:
            self.outcome.has_stored = True
            first = end = commit.end_index
            if commit.batch is not None:  # None: an ephemeral topic had no room
                first = commit.batch.block.first
                self.counts.message_count += commit.batch.block.count
            for publish in batch:
                self.counts.message_bytes += publish.size_bytes
                indexes = range(first, min(first + publish.messages, end))
                if publish.due is not None:
                    self._defer(indexes, publish.due)
                # Before `advance`: the other channels must not see these messages.
                if publish.only is not None and self.flows:
                    for_one(self.channels, publish.only, indexes)
                self.has_new_letters |= publish.letters is not None and publish.only is None
                first += publish.messages
            if self.has_new_letters:
                self._keep_letters()
        else:
            reason = commit.error.reason
            self.outcome.fail(
                Trouble.PUBLISH, f"publishing to {self.name} failed: {commit.error}", commit.error
            )
        self.outcome.answers.append(Answered(batch, reason))

    def _defer(self, indexes: range, due: Instant) -> None:
        """Defer these messages until they are due."""
        for index in indexes:
            self.stream.due.add(due.mono_ns, index)
        self.expect(due.mono_ns)

    def _take_reads(self, reads: ExtentReads, now: Instant) -> None:
        woken, notes = self.stream.loaded(reads, now)
        self._wake_named(woken)
        self.outcome.notes += notes
        self.expect(self.stream.due_ns)

    def _wake_named(self, names: list[str]) -> None:
        self.woken |= {self.channels[name]: None for name in names if name in self.channels}

    def _open_or_close(self) -> None:
        """Recompute whether messages flow to the channels, and let them flow if so."""
        self.flows = bool(self.channels) and not self.paused and not self.waits_for_lookup
        self.advance()

    def advance(self) -> None:
        """Move P as far as the sync policy allows, if messages flow."""
        stream = self.stream
        end = stream.log.written_end
        if end <= stream.end or not self.flows:
            return
        stream.end = end
        stream.ordinal = stream.log.ordinal_at(end)
        # Deferred publishes that became due while P stood before them.
        overdue = stream.due.hold_back([], end) if stream.due.overdue else []
        for channel in self.channels.values():
            if overdue:
                channel.join(overdue)
            self.woken[channel] = None

    def _set_mark(self, index: int) -> None:
        self.stream.end, self.stream.ordinal = index, self.stream.log.ordinal_at(index)
        if self.writer is not None:
            self.writer.ledger.note(RecordKind.MARK, "", [index])

    def depth(self) -> int:
        """Messages that no channel sees yet."""
        return self.stream.log.end_ordinal - self.stream.ordinal

    # Channels

    def create_channel(self, name: str) -> Channel:
        """Return the channel of this name; a new channel starts at P.

        After damage to the ledger it may be one that the ledger has lost. It starts at the log's
        first message then: its messages come twice rather than not at all.

        Raises:
            LimitReached: the channel does not exist and the topic has its maximum of channels.
        """
        channel = self.channels.get(name)
        if channel is None:
            check_limit(len(self.channels), self.settings.max_channels, "channels")
            channel = self.channels[name] = self._make_channel(name)
            self.had_channel = True
            if self.writer is not None and not channel.ephemeral:
                self.writer.ledger.note(RecordKind.CREATED, name, [channel.start])
                if self.writer.ledger.lacks_records:
                    channel.seek(self.stream.log.first_index)
            self.outcome.changes.append(("created", self.name, name))
            self._open_or_close()
        return channel

    def _keep_letters(self) -> None:
        """Give dead letters a channel if the topic has none: they are redriven from there."""
        if self.has_new_letters and not self.channels and not self.waits_for_lookup:
            self.create_channel(REDRIVE_CHANNEL)

    def _make_channel(self, name: str) -> Channel:
        ephemeral = self.ephemeral or is_ephemeral(name)
        ledger = NoLedger() if ephemeral or self.writer is None else self.writer.ledger
        channel = Channel(name, self.stream, ledger, self.scope.channel(name), ephemeral=ephemeral)
        if quantiles := self.options.e2e_percentiles:
            channel.latencies = LatencyWindow(quantiles, self.options.e2e_window_ns)
        return channel

    def delete_channel(self, name: str) -> list[V2Session]:
        """Delete a channel; returns the sessions of its consumers, which must be closed."""
        channel = self.channels.pop(name)
        consumers = list(channel.sessions.values())
        for session in consumers:
            session.closing = True
        self.woken.pop(channel, None)
        channel.retire()
        if self.writer is not None and not is_ephemeral(name):
            self.writer.ledger.note(RecordKind.DELETED, name)
        if not self.channels:
            self._set_mark(self.stream.end)  # P stops here; a restart must find it
            self.flows = False
        self.outcome.changes.append(("deleted", self.name, name))
        return consumers

    def channels_known(self, names: list[str]) -> None:
        """Create the channels that nsqlookupd has reported from other nsqds."""
        if self.waits_for_lookup:
            for name in names:
                try:
                    if not is_ephemeral(name):
                        self.create_channel(name)
                except LimitReached as limit:
                    self.outcome.notes.append(
                        f"channel {self.name}:{name} was not created: {limit}"
                    )
            self.waits_for_lookup = False
            self._keep_letters()
            self._open_or_close()

    # Administration

    def pause(self, paused: bool) -> None:
        """Stop or resume the flow of messages to the channels."""
        if paused == self.paused:
            return
        self.paused = paused
        if self.writer is not None:
            self.writer.ledger.note(RecordKind.PAUSED, flag=paused)
        if paused:
            self._set_mark(self.stream.end)  # P stops here; a restart must find it
        self._open_or_close()

    def take_scope(self, scope: Scope) -> None:
        """Apply changed policies."""
        self.scope = scope
        before, self.settings = self.settings, scope.topic
        self.trimming.settings = scope.topic
        if _rates(before) != _rates(scope.topic):
            # Under new rates, later publishes could overtake held ones.
            self.publishing.release(NEVER)
        for channel in self.channels.values():
            channel.settings = scope.channel(channel.name)

    def empty(self) -> None:
        """Void the messages that no channel sees yet."""
        self.drop_unseen(self.stream.log.written_end)

    def drop_unseen(self, end: int) -> int:
        """Void messages before an index that no channel sees yet; returns how many."""
        stream = self.stream
        first, end = stream.end, min(end, stream.log.written_end)
        if end <= first:
            return 0
        count = stream.log.ordinal_at(end) - stream.ordinal
        self._set_mark(end)
        # Before the channels: they count skipped messages and must not count these as deferred too.
        stream.due.void(first, end)
        for channel in self.channels.values():
            channel.void(first, end)
        return count

    # Time

    def on_time(self, now: Instant) -> None:
        """Handle what is due: deferred publishes, timeouts, syncs, reads, the wait for lookup."""
        self.due_ns = NEVER
        if self.is_closed:  # deleted since: unsynced data was deleted with its files
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
        if (writer := self.writer) is not None:
            if writer.on_time(now):
                self._work_on_ledger(writer, now, to_sync=True)
            self.expect(writer.due_ns)

    def _sync_log(self, now: Instant) -> int:
        """Sync the log if a sync is due; returns when (mono ns) to check again."""
        if self.stream.log.sync_due(now) and not self.sync_file():
            # Another commit is in flight, which may be one that does not sync.
            return now.mono_ns + SYNC_RETRY_NS
        return now.mono_ns + self.options.sync_timeout_ns

    def sync_file(self) -> bool:
        """Submit a sync of the log's file; False: nothing is unsynced, or a commit is in flight."""
        if (commit := self.stream.log.sync_task()) is not None:
            self.outcome.tasks.append(commit)
        return commit is not None

    # The ledger

    def ledger_written(self, error: DiskError | None, now: Instant) -> None:
        """Handle the result of the turn's ledger write, and answer the waiters it completes."""
        writer = self.writer
        if writer is None:
            return
        if error is not None:
            self.outcome.fail(Trouble.LEDGER, f"writing a ledger failed: {error}", error)
        was_failing = writer.has_failed
        if ended := writer.written(error, now):
            self._end_waits(ended, now)
        self.outcome.has_noted |= was_failing and not writer.has_failed
        if error is None and writer.needs_work():
            self._work_on_ledger(writer, now, to_sync=writer.is_awaited)
        self.due_ns = min(self.due_ns, writer.due_ns)

    def _work_on_ledger(self, writer: LedgerWriter, now: Instant, *, to_sync: bool) -> None:
        """Submit the sync or checkpoint that the ledger needs, unless one is running."""
        task: LedgerSync | Checkpoint | None = writer.sync() if to_sync else None
        if task is None and writer.needs_checkpoint(to_sync=to_sync):
            try:
                task = writer.checkpoint(self.state(now))
            except DiskError as error:
                self.outcome.fail(Trouble.LEDGER, f"writing a ledger failed: {error}", error)
                self._end_waits(writer.refused(error, now), now)
        if task is not None:
            self.outcome.tasks.append(task)

    def _take_ledger_task(self, task: LedgerSync | Checkpoint, now: Instant) -> None:
        if task.error is not None:
            self.outcome.fail(Trouble.LEDGER, f"writing a ledger failed: {task.error}", task.error)
        if (writer := self.writer) is not None:
            was_failing = writer.has_failed
            self._end_waits(writer.finish(task), now)
            self.outcome.has_noted |= was_failing and not writer.has_failed

    def shrink_ledger(self, now: Instant) -> bool:
        """Replace the ledger's records by their state at once; False: it was not possible."""
        return self.writer is not None and self.writer.shrink(self.state(now))

    def _end_waits(self, ended: Ended, now: Instant) -> None:
        for waiter, error in ended:
            if isinstance(waiter, AwaitedSync):
                self.outcome.tasks += self.trimming.decided(waiter, error, is_closed=self.is_closed)
            else:
                self.outcome.replies.append((waiter, error))

    # Deleting finished files

    def make_durable(self, now: Instant, *, frees: bool) -> None:
        """Have an administrator's change made durable; `frees`: delete freed files, too."""
        self.outcome.tasks += self.trimming.make_durable(now, frees=frees)

    def trim(self, now: Instant) -> bool:
        """Delete files that no channel needs and no rule keeps; False: nothing to do."""
        outcome, writer = self.outcome, self.writer
        self._keep_up()
        outcome.notes += self.trimming.limit_lag(self.name, now)
        outcome.tasks += self.trimming.trim(now)
        has_news = writer is not None and writer.ledger.has_news
        return bool(outcome.tasks or outcome.notes or self.stream.reads or has_news)

    def _take_drop(self, drop: Drop, _now: Instant) -> None:
        self.outcome.notes += self.trimming.dropped(drop)

    def _keep_up(self) -> None:
        """Submit the log's maintenance tasks that are separate from commits."""
        log = self.stream.log
        self.outcome.tasks += log.upkeep.tasks(log.active, log.synced_end)

    def _take_upkeep(self, task: UpkeepTask, _now: Instant) -> None:
        log = self.stream.log
        if note := log.upkeep.finish(task):
            self.outcome.notes.append(f"topic {self.name}: {note}")
        elif log.upkeep.continues(task, log.active):
            self._keep_up()

    def refuse_publishes(self) -> None:
        """Refuse all waiting publishes: the topic is deleted or nsqd stops."""
        if waiting := self.publishing.take_waiting():
            self.outcome.answers.append(Answered(waiting, "exiting", fatal=True))

    def close(self) -> None:
        """Close the files."""
        self.is_closed, self.due_ns = True, NEVER
        self.stream.log.close()
        if self.writer is not None:
            self.writer.ledger.close()

    def state(self, now: Instant) -> TopicState:
        """Return the topic's state for a ledger checkpoint."""
        return topic_state(self.stream, self.channels, paused=self.paused, now=now)

    def _ephemeral_room(self, now: Instant) -> int:
        """How many more messages an ephemeral topic accepts now."""
        if self.stream.log.size_bytes >= self.options.ephemeral_bytes_max // 2:
            self.trim(now)
        if self.stream.log.size_bytes >= self.options.ephemeral_bytes_max:
            return 0
        if self.flows:
            return self.options.commit_count + self.options.mem_queue_size
        return max(0, self.options.mem_queue_size - self.depth())

    _TAKEN: ClassVar[dict[type, Callable[[Topic, Any, Instant], None]]] = {
        Commit: _take_commit,
        ExtentReads: _take_reads,
        LedgerSync: _take_ledger_task,
        Checkpoint: _take_ledger_task,
        Drop: _take_drop,
        Prepare: _take_upkeep,
        IndexWrite: _take_upkeep,
        LeftoverRemoval: _take_upkeep,
    }


def _rates(settings: QueueSettings) -> tuple[int, int]:
    return settings.max_publish_rate, settings.max_client_publish_rate
