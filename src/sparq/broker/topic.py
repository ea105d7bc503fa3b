"""A topic: its log, the channels that read the log, and the mark P up to which they may read.

1. The mark P (`stream.end`) does not move while the topic is paused, has no channel, or waits for
   the channels that nsqlookupd knows. Otherwise it follows what the sync policy allows.
2. A new channel starts at P, so the first channel gets the messages stored before it existed.
3. A segment is deleted once every channel has finished all its messages (see `trimming`).
4. A topic calls its own components and never the layer above. What concerns others (tasks, answers,
   notes, changes) it adds to the `turn`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sparq.broker.channel import Channel
from sparq.broker.counts import TopicCounts
from sparq.broker.dead_letters import for_one
from sparq.broker.delivery import DeliveryContext, deliver
from sparq.broker.health import Trouble
from sparq.broker.latency import LatencyWindow
from sparq.broker.ledger_writer import LedgerWriter, NoLedger
from sparq.broker.options import NEVER, BrokerOptions, LimitReached, check_limit
from sparq.broker.policies import Scope
from sparq.broker.publishing import Publish, Publishing, answer
from sparq.broker.recovery import recover_due, recover_mark, restore, topic_state
from sparq.broker.stream import ExtentReads, Stream
from sparq.broker.trimming import Trimming
from sparq.broker.turn import TopicTask, Turn
from sparq.log.commit import Commit
from sparq.log.disk import DiskError
from sparq.log.ledger import Ledger
from sparq.log.log import Log
from sparq.log.records import RecordKind, TopicState
from sparq.log.task import Task
from sparq.log.upkeep import UpkeepTask
from sparq.options.units import MILLISECOND
from sparq.protocol.dead_letters import REDRIVE_CHANNEL
from sparq.protocol.frames import BodySlices
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_ephemeral

NOT_ON_DISK: Final = "not on disk yet"

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
        is_deleted: whether it is being deleted.
        woken: channels to look at when the turn ends: they may have messages to deliver.
        due_ns: a lower bound (mono ns) of the next time at which something is due.
        under_way: number of tasks that were handed out and have not finished.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        ledger: Ledger | None,
        *,
        options: BrokerOptions,
        scope: Scope,
        turn: Turn[Topic],
    ) -> None:
        self.name = name
        self.ephemeral = is_ephemeral(name)
        self.options = options
        self.scope, self.settings = scope, scope.topic
        self.turn = turn
        self.stream = Stream(log, options.cache_bytes, name)
        self.channels: dict[str, Channel] = {}
        self.counts = TopicCounts()
        self.publishing = Publishing(options, self.counts)
        self.writer: LedgerWriter | None = None
        if ledger is not None:
            self.writer = LedgerWriter(
                ledger,
                name,
                sync_timeout_ns=options.sync_timeout_ns,
                health=turn.health,
                state=self.state,
                submit=self.submit,
            )
        self.trimming = Trimming(
            self.stream,
            self.channels,
            self.writer,
            settings=scope.topic,
            turn=turn,
            submit=self.submit,
            sync_file=self.sync_file,
        )
        self.paused = self.waits_for_lookup = self.flows = False
        self.had_channel = self.has_new_letters = self.is_deleted = self.is_closed = False
        self.woken: dict[Channel, None] = {}
        self.due_ns = self._lookup_deadline_ns = NEVER
        self.under_way = self._unsettled = 0
        self._unsettled_reason = NOT_ON_DISK
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
        self.expect(stream.due.pending.next_due_ns())
        for name, channel_state in state.channels.items():
            channel = self._make_channel(name)
            restore(channel, channel_state, past_due, now)
            self.channels[name] = channel
            self.had_channel = True
            self.wake(channel)

    # The turn

    def wake(self, channel: Channel) -> None:
        """Have the end of the turn check whether the channel can deliver messages."""
        self.woken[channel] = None
        self.turn.topics[self] = None

    def expect(self, at_ns: int) -> None:
        """Have `on_time` run at this time (mono ns) at the latest."""
        if at_ns < self.due_ns:
            self.due_ns = at_ns
            self.turn.due_topics.add(self.name, at_ns)
            self.turn.due_ns = min(self.turn.due_ns, at_ns)

    def submit(self, task: Task, then: Callable[[Instant], None]) -> None:
        """Hand out a task at the end of the turn; `then` takes its results over."""
        self.under_way += 1
        self.turn.tasks.append(TopicTask(task, partial(self._task_finished, then)))

    def _task_finished(self, then: Callable[[Instant], None], now: Instant) -> None:
        self.under_way -= 1
        then(now)
        has_news = self.writer is not None and self.writer.ledger.has_news
        if has_news or self.woken or self.publishing.waiting or self.is_deleted:
            self.turn.topics[self] = None

    def end_turn(self, now: Instant) -> None:
        """Begin the next commit and deliver messages."""
        log, publishing = self.stream.log, self.publishing
        if publishing.waiting and log.flight is None:
            if self.ephemeral:
                self._commit_bounded(now)
            else:
                self._begin_commit(now)
        if self.woken:
            woken, self.woken = self.woken, {}
            for channel in woken:
                deliver(DeliveryContext(channel, self.turn, now))
                # After the delivery: what consumers take now need not be dropped.
                if channel.ephemeral:
                    channel.bound(self.options.mem_queue_size)
                if channel.due_ns < self.due_ns:
                    self.expect(channel.due_ns)
        if self.stream.reads:
            for reads in self.stream.reads:
                self.submit(reads, partial(self._take_reads, reads))
            self.stream.reads = []

    def needs_turn(self) -> bool:
        """Whether another turn should follow even if no event arrives."""
        # One commit in flight: with several, an OK could overtake an earlier one.
        return bool(self.woken or (self.publishing.waiting and self.stream.log.flight is None))

    def _begin_commit(self, now: Instant) -> None:
        batch = self.publishing.next_batch()
        bodies: list[BodySlices] = []
        dues: list[tuple[int, int]] = []
        position = 0
        for publish in batch:
            bodies.append(publish.bodies)
            if publish.due is not None:
                # Positions in the batch: a batch per DPUB would need a header for each.
                wall_ns, end = publish.due.wall_ns, position + publish.messages
                dues += [(at, wall_ns) for at in range(position, end)]
            position += publish.messages
        commit = self.stream.log.begin(bodies, now, dues or None)
        self.submit(commit, partial(self.take_commit, commit, batch))

    def _commit_bounded(self, now: Instant) -> None:
        """Commit one batch to memory: consumers take messages before the next, so fewer drop.

        Due times are not stored: deferred messages are lost when the process ends.
        """
        room, batch = self._ephemeral_room(now), self.publishing.next_batch()
        pieces: list[BodySlices] = []
        for publish in batch:
            bodies = publish.bodies
            # The publisher still gets its OK: NSQ drops what does not fit without an error, too.
            kept = BodySlices(bodies.buffer, bodies.starts[:room], bodies.sizes[:room])
            pieces.append(kept)
            room -= len(kept)
        commit = self.stream.log.begin(pieces, now)
        commit.run()
        self.take_commit(commit, batch, now)

    def _ephemeral_room(self, now: Instant) -> int:
        """How many more messages an ephemeral topic accepts now."""
        if self.stream.log.size_bytes >= self.options.ephemeral_bytes_max // 2:
            self.trim(now)
        if self.stream.log.size_bytes >= self.options.ephemeral_bytes_max:
            return 0
        if self.flows:
            return self.options.commit_count + self.options.mem_queue_size
        return max(0, self.options.mem_queue_size - self.depth())

    def take_commit(self, commit: Commit, batch: list[Publish], now: Instant) -> None:
        """Handle a finished commit: answer its publishes, and let channels see more."""
        log, turn, error = self.stream.log, self.turn, commit.error
        log.finish(commit)
        # Not with each refused publish: the first one's notes say what is wrong.
        if commit.notes and not (self._is_refusing and error):
            turn.health.notes += commit.notes
        self._is_refusing = error is not None
        turn.journals_ended = max(turn.journals_ended, commit.journals_ended)
        # Only now: limits on the topic's size count a message as pending until the log has it.
        for publish in batch:
            self.publishing.pending_bytes -= publish.size_bytes
            self.publishing.pending_messages -= publish.messages
        if error is not None:
            what = f"publishing to {self.name}" if batch else f"syncing {self.name}"
            turn.health.fail(Trouble.PUBLISH, self.name, f"{what} failed: {error}", error)
            answer(batch, turn, now, error.reason)
        elif batch:
            self._take_stored(commit, batch)
            answer(batch, turn, now)
        if self.flows:
            self.advance()
        active = log.active
        # The next file in advance, in a thread: beginning one took up to 46 ms.
        if active is not None and active.segment.size >= log.upkeep.spare_due_size:
            self._submit_upkeep(log.upkeep.prepare(active))
        if (
            log.unsynced.count
            and (sync_ns := now.mono_ns + self.options.sync_timeout_ns) < self.due_ns
        ):
            self.expect(sync_ns)

    def _take_stored(self, commit: Commit, batch: list[Publish]) -> None:
        """Count the stored messages, and apply what their publishes demand of them."""
        if self.turn.health.troubles:
            self.turn.health.recover(Trouble.PUBLISH, self.name)
        first = end = commit.end_index
        if commit.batch is not None:  # None: an ephemeral topic had no room
            first = commit.batch.block.first
            self.counts.message_count += commit.batch.block.count
        for publish in batch:
            self.counts.message_bytes += publish.size_bytes
            indexes = range(first, min(first + publish.messages, end))
            if publish.due is not None:
                for index in indexes:
                    self.stream.due.add(publish.due.mono_ns, index)
                self.expect(publish.due.mono_ns)
            # Before `advance`: the other channels must not see these messages.
            if publish.only is not None and self.flows:
                for_one(self.channels, publish.only, indexes)
            self.has_new_letters |= publish.is_letter and publish.only is None
            first += publish.messages
        if self.has_new_letters:
            self._keep_letters()

    def _take_reads(self, reads: ExtentReads, now: Instant) -> None:
        woken, notes = self.stream.loaded(reads, now)
        self._wake_named(woken)
        self.turn.health.notes += notes
        self.expect(self.stream.due_ns)

    def _wake_named(self, names: list[str]) -> None:
        for name in names:
            if name in self.channels:
                self.wake(self.channels[name])

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
        stream.end, stream.ordinal = end, stream.log.end_ordinal
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
            self.turn.changes.append(("created", self.name, name))
            self._open_or_close()
        return channel

    def _keep_letters(self) -> None:
        """Give dead letters a channel if the topic has none: they are redriven from there."""
        if self.has_new_letters and not self.channels and not self.waits_for_lookup:
            self.create_channel(REDRIVE_CHANNEL)

    def _make_channel(self, name: str) -> Channel:
        ephemeral = self.ephemeral or is_ephemeral(name)
        ledger = NoLedger() if ephemeral or self.writer is None else self.writer.ledger
        channel = Channel(name, self.stream, ledger, self.scope.settings(name), ephemeral=ephemeral)
        if quantiles := self.options.e2e_percentiles:
            channel.latencies = LatencyWindow(quantiles, self.options.e2e_window_ns)
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel; its consumers' connections close."""
        channel = self.channels.pop(name)
        for session in channel.sessions.values():
            session.closing = True
            self.turn.sessions[session] = None
        self.woken.pop(channel, None)
        channel.retire()
        if self.writer is not None and not is_ephemeral(name):
            self.writer.ledger.note(RecordKind.DELETED, name)
        if not self.channels:
            self._set_mark(self.stream.end)  # P stops here; a restart must find it
            self.flows = False
        self.turn.changes.append(("deleted", self.name, name))
        self.turn.topics[self] = None

    def channels_known(self, names: list[str]) -> None:
        """Create the channels that nsqlookupd has reported from other nsqds."""
        if self.waits_for_lookup:
            for name in names:
                try:
                    if not is_ephemeral(name):
                        self.create_channel(name)
                except LimitReached as limit:
                    note = f"channel {self.name}:{name} was not created: {limit}"
                    self.turn.health.notes.append(note)
            self.waits_for_lookup = False
            self._keep_letters()
            self._open_or_close()
            self.turn.topics[self] = None

    # Administration

    def make_durable(self, now: Instant, *, frees: bool = False) -> None:
        """Add the topic to the turn, and make an administrator's change durable.

        `frees`: delete the files that became unneeded, too.
        """
        self.turn.topics[self] = None
        if frees:
            self.trimming.drop_freed(now)
        if self.writer is not None:
            self._unsettled += 1
            self.writer.wait_for_sync(self._change_synced)

    def _change_synced(self, error: DiskError | None, _now: Instant) -> None:
        self._unsettled_reason = NOT_ON_DISK if error is None else error.reason
        if error is None or self.writer is None:
            self._unsettled -= 1
        else:
            # The ledger keeps its records and writes them again: the request waits until then.
            self.writer.wait_for_sync(self._change_synced)

    def not_durable_reason(self) -> str | None:
        """Why an administrator's change is not complete yet; None: it is complete.

        It is complete when its ledger records are synced and the files that it freed are deleted.
        A failed write is retried; meanwhile this returns the reason.
        """
        if self._unsettled:
            return self._unsettled_reason
        return NOT_ON_DISK if self.trimming.drops else None

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
        before, after = self.settings, scope.topic
        self.scope = scope
        self.settings = self.trimming.settings = after
        if (before.max_publish_rate, before.max_client_publish_rate) != (
            after.max_publish_rate,
            after.max_client_publish_rate,
        ):
            # Under new rates, later publishes could overtake held ones.
            self.publishing.release(NEVER)
        for channel in self.channels.values():
            channel.settings = scope.settings(channel.name)
        self.turn.topics[self] = None

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
        self.expect(min(stream.due.pending.next_due_ns(), self.publishing.release(now.mono_ns)))
        if stream.due_ns <= now.mono_ns:
            self._wake_named(stream.retry())
        self.expect(stream.due_ns)
        if self.waits_for_lookup and now.mono_ns >= self._lookup_deadline_ns:
            self.channels_known([])
        if self.waits_for_lookup:
            self.expect(self._lookup_deadline_ns)
        if stream.log.unsynced.count:
            # Another commit may be in flight, and it may be one that does not sync.
            is_late = stream.log.sync_due(now) and not self.sync_file()
            self.expect(now.mono_ns + (SYNC_RETRY_NS if is_late else self.options.sync_timeout_ns))
        if self.writer is not None:
            self.writer.on_time(now)
            self.expect(self.writer.due_ns)
        self.turn.topics[self] = None

    def sync_file(self) -> bool:
        """Submit a sync of the log's file; False: nothing is unsynced, or a commit is in flight."""
        if (commit := self.stream.log.sync_task()) is not None:
            self.submit(commit, partial(self.take_commit, commit, []))
        return commit is not None

    # Files

    def trim(self, now: Instant) -> None:
        """Delete files that no channel needs and no rule keeps, and maintain the others."""
        self._keep_up()
        self.trimming.trim(now)
        if self.stream.reads or (self.writer is not None and self.writer.ledger.has_news):
            self.turn.topics[self] = None

    def _keep_up(self) -> None:
        """Submit the log's maintenance tasks that are separate from commits."""
        log = self.stream.log
        for task in log.upkeep.tasks(log.active, log.synced_end):
            self._submit_upkeep(task)

    def _submit_upkeep(self, task: UpkeepTask) -> None:
        self.submit(task, partial(self._take_upkeep, task))

    def _take_upkeep(self, task: UpkeepTask, _now: Instant) -> None:
        log = self.stream.log
        if note := log.upkeep.finish(task):
            self.turn.health.notes.append(f"topic {self.name}: {note}")
        elif log.upkeep.continues(task, log.active):
            self._keep_up()

    def refuse_publishes(self, now: Instant) -> None:
        """Refuse all waiting publishes: the topic is deleted or nsqd stops."""
        answer(self.publishing.take_all(), self.turn, now, "exiting", fatal=True)

    def close(self) -> None:
        """Close the files."""
        self.is_closed, self.due_ns = True, NEVER
        self.stream.log.close()
        if self.writer is not None:
            self.writer.ledger.close()

    def state(self, now: Instant) -> TopicState:
        """Return the topic's state for a ledger checkpoint."""
        return topic_state(self.stream, self.channels, paused=self.paused, now=now)
