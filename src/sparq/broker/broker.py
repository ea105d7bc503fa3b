"""All topics and sessions: executes commands, then once per turn starts writes and collects output.

This is the only broker interface that the I/O layer uses. The calls of a turn, in order:

1. `execute` for each command (`publish` for HTTP), `fail` for input that the parser refused, and
   `finish` for each completed task. They take effect in memory at once.
2. `end_turn`: begins commits, delivers messages to ready sessions and writes ledgers. It returns
   the disk work for the threads; when a task has run, call `finish` and then run another turn.
3. `take_sessions`: the sessions whose `take_output` has something to send.

`tick` is called when a timer is due; run a turn after it, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from sparq.broker import health
from sparq.broker.admin import Admin
from sparq.broker.bounds import limit_notes
from sparq.broker.catalog import Catalog, Checkpoints
from sparq.broker.commands import Commands, due_after
from sparq.broker.dead_letters import DeadLetterBatch, Only, apply_result
from sparq.broker.latency import Histogram
from sparq.broker.ledger_writer import LedgerWriter
from sparq.broker.options import NEVER, BrokerOptions
from sparq.broker.permissions import Permissions
from sparq.broker.policies import Policies, Policy
from sparq.broker.publishing import (
    Answered,
    Change,
    Publish,
    Ticket,
    Trouble,
    publish_of,
    refusal,
)
from sparq.broker.session import Buffer, V2Session
from sparq.broker.topic import Topic
from sparq.broker.topics import RunAll, Topics
from sparq.broker.trimming import AwaitedSync
from sparq.broker.turn import Inspected, Reply, TopicTask, Turn
from sparq.log.disk import Disk, DiskError
from sparq.log.journal import Journal
from sparq.log.reserve import FinReserve
from sparq.log.task import Task
from sparq.options.limits import IdentifyLimits
from sparq.options.units import SECOND
from sparq.protocol import layout
from sparq.protocol.commands import STATE_INIT
from sparq.protocol.dead_letters import dead_letter_topic
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.instant import Instant

TRIM_EVERY_NS = SECOND
"""How often each topic looks for segments that no channel needs any more."""
SHORT_TRIM_NS = SECOND // 10
"""The same interval while the disk has no space."""
UNMOVED_REPORT_NS = 60 * SECOND
"""Minimum time between two notes about refused dead letters."""


class Broker:
    """Every topic and session of one nsqd.

    Attributes:
        sessions: all connected sessions, by id.
        turn: the pending results of this turn; the I/O layer only reads it.
        drains: which publishes are refused so that producers use another nsqd.
        execute: executes a command: `Commands.execute`.
        create_topic ... act_on_messages: the methods of `Admin`.
    """

    def __init__(
        self,
        options: BrokerOptions,
        disk: Disk,
        data_path: str,
        now: Instant,
        *,
        server_facts: Mapping[str, object] | None = None,
        seed: int | None = None,
    ) -> None:
        """`server_facts` go to clients (see `protocol.identify`); `seed`: repeatable sampling."""
        self.options = options
        self.sessions: dict[int, V2Session] = {}
        self.turn = turn = Turn(seed)
        self._catalog = Catalog(disk, data_path, options.node_id)
        self._topics = Topics(self._catalog, turn, options)
        self.drains = self._topics.drains
        self._checkpoints = Checkpoints(self.journal, self.topics)
        self._commands = Commands(self._topics, turn, options, server_facts or {})
        self.execute = self._commands.execute
        self._next_session_id = self._unmoved_report_ns = 0
        self._trimmed_ns = now.mono_ns
        admin = Admin(self._topics, turn)
        self.create_topic = admin.create_topic
        self.delete_topic = admin.delete_topic
        self.empty_topic = admin.empty_topic
        self.pause_topic = admin.pause_topic
        self.create_channel = admin.create_channel
        self.delete_channel = admin.delete_channel
        self.empty_channel = admin.empty_channel
        self.pause_channel = admin.pause_channel
        self.seek_channel = admin.seek_channel
        self.seek = admin.seek
        self.act_on_messages = admin.act_on_messages
        self.claim, self.unclaim = admin.claim, admin.unclaim

    def load(self, now: Instant, run_all: RunAll | None = None) -> list[str]:
        """Open what is stored in the data path; returns notes for the operator.

        Args:
            now: the time.
            run_all: runs the tasks that read the topics' files; None: run them one after another.

        Raises:
            DiskError: the data path cannot be used.
            CatalogError: this version cannot open the data path.
        """
        return self._topics.load(now, run_all)

    @property
    def topics(self) -> dict[str, Topic]:
        """The topics by name."""
        return self._topics.by_name

    @property
    def journal(self) -> Journal:
        """Runs waiting commits together, so that they share a sync: see `Journal.run`."""
        return self._topics.journal

    @property
    def node_id(self) -> int:
        """The node id of the data path; it is part of each message id."""
        return self._catalog.node_id

    @property
    def limits(self) -> IdentifyLimits:
        """Limits on what clients may request and send."""
        return self.options.limits

    @property
    def changes(self) -> deque[Change]:
        """Created and deleted topics and channels, to be reported to nsqlookupd."""
        return self.turn.changes

    @property
    def notes(self) -> list[str]:
        """Notes for the operator; the caller that logs them clears the list."""
        return self.turn.health.notes

    @property
    def backlog_bytes(self) -> int:
        """Size of all sessions' publishes that are not on disk yet."""
        return self.turn.backlog_bytes

    @property
    def busy(self) -> bool:
        """Whether another turn should follow even if no event arrives."""
        return self.turn.is_busy

    # Connections

    def connect(self, remote_address: str, now: Instant) -> V2Session:
        """Create the session of a client that has sent the V2 magic."""
        self._next_session_id += 1
        session = V2Session(self._next_session_id, remote_address, now, self.options)
        self.sessions[session.id] = session
        return session

    def disconnect(self, session: V2Session, now: Instant) -> None:
        """Remove a session; its messages in flight wait for their timeouts, as in NSQ."""
        turn, commands = self.turn, self._commands
        del self.sessions[session.id]
        session.closing = True
        turn.sessions.pop(session, None)
        commands.ranges.release(session)
        subscription = commands.subscriptions.pop(session, None)
        if subscription is None:
            return
        topic, channel = subscription
        channel.unsubscribe(session, now, requeue=self.options.requeue_on_disconnect)
        if channel.is_retired:
            return  # its name may belong to a new channel, which must not be deleted below
        turn.wake(topic, channel)
        if channel.ephemeral and not channel.sessions:
            self._topics.delete_channel(topic, channel.name)
            self._topics.forget_if_unused(topic)

    def fail(self, session: V2Session, error: RemoteError) -> None:
        """Reply with the error of input that the parser refused, after the replies before it."""
        session.reply_error(error)
        self.turn.sessions[session] = None

    def authorize(self, session: V2Session, permissions: Permissions) -> None:
        """Apply the answer of an authd to the session's AUTH, and reply."""
        self._commands.authorize(session, permissions)
        self.turn.sessions[session] = None

    def names_subscribed(self, session: V2Session) -> tuple[str, str]:
        """The names of the topic and the channel that a session has subscribed to."""
        topic, channel = self._commands.subscriptions[session]
        return topic.name, channel.name

    def writable(self, session: V2Session) -> None:
        """The session accepts messages again, or its output has been taken."""
        subscription = self._commands.subscriptions.get(session)
        if subscription is not None:
            topic, channel = subscription
            channel.opened(session)
            self.turn.wake(topic, channel)
        self._commands.ranges.go_on(session)

    def take_output(self, session: V2Session) -> list[Buffer]:
        """Return what to send to a session now: replies in order, then messages."""
        has_reads = bool(self._commands.ranges.reads)
        if session.state == STATE_INIT and not has_reads:
            return session.take_output()  # no subscription, so no delivery depends on it
        was_blocked = session.is_blocked()
        output = session.take_output()
        if was_blocked and not session.is_blocked():
            self.writable(session)
        elif has_reads:
            self._commands.ranges.go_on(session)
        return output

    def publish(
        self,
        topic: str,
        bodies: BodySlices,
        now: Instant,
        ticket: Ticket,
        *,
        command: str = "PUB",
        defer_ms: int = 0,
        only: str = "",
    ) -> None:
        """Publish without a session; `take_published` returns the ticket once it is done.

        Either all bodies are stored or none. `only`: a channel name; other channels skip them.
        """
        due, size_bytes = due_after(defer_ms, now), bodies.size_bytes
        publish = Publish(topic, command, bodies, len(bodies), size_bytes, due, ticket=ticket)
        self._commands.publish(publish._replace(only=Only(only, [])) if only else publish, now)

    def inspect(self, topic: Topic, task: Task, ticket: Ticket) -> None:
        """Run a read-only task; `take_published` returns the ticket once it has run."""
        self.turn.submit(task, topic, Inspected(ticket))

    # The turn

    def end_turn(self, now: Instant) -> list[TopicTask]:
        """Commit, deliver, write ledgers and reply where possible; returns the new tasks."""
        turn = self.turn
        # Topics that this call touches, for example by a dead letter, are left to the next turn.
        topics, turn.topics = turn.topics, {}
        if turn.answers:
            answers, turn.answers = turn.answers, []
            self._answer(answers, now)
        for topic in topics:
            if served := topic.end_turn(turn.sampler, turn.waited, now):
                turn.sessions |= served
        for topic in topics:
            writer = topic.writer
            if writer is not None and writer.ledger.has_news:
                self._write_ledger(topic, writer, now)
                if writer.ledger.has_news:
                    turn.add_topic(topic)  # retry failed writes in the next turn
            self._take(topic, now)
            if topic.woken or topic.ephemeral or topic.is_deleted:
                self._go_on(topic)
        if turn.journals_ended > self._checkpoints.ended:
            self._checkpoints.begin(turn.journals_ended, turn, now)
        tasks, turn.tasks = turn.tasks, []
        return tasks

    def _go_on(self, topic: Topic) -> None:
        """Continue work that no event triggers; most topics have none."""
        if topic.needs_turn():
            self.turn.add_topic(topic)
        if topic.is_deleted:
            self._topics.go_on(topic)

    def _write_ledger(self, topic: Topic, writer: LedgerWriter, now: Instant) -> None:
        error = writer.write()
        is_full = error is not None and error.is_full
        if is_full and health.make_room(topic, self._topics.all(), now):
            error = None
        topic.ledger_written(error, now)

    def finish(self, topic_task: TopicTask, now: Instant) -> None:
        """Apply the results of a task that has run; the caller must run a turn afterwards."""
        topic = topic_task.topic
        if topic is not None:
            if topic.finish(topic_task.task, now):
                self.turn.add_topic(topic)
            self._take(topic, now)
        if topic_task.request is not None:
            topic_task.request.finish(self.turn, now)

    def _take(self, topic: Topic, now: Instant) -> None:
        """Take a topic's outcome: send the answers, collect notes, hand out tasks."""
        turn, outcome = self.turn, topic.outcome
        if outcome.answers:
            answers, outcome.answers = outcome.answers, []
            self._answer(answers, now)
        if outcome.tasks:
            tasks, outcome.tasks = outcome.tasks, []
            topic.under_way += len(tasks)
            for task in tasks:
                turn.tasks.append(TopicTask(task, topic))
        if outcome.replies:
            replies, outcome.replies = outcome.replies, []
            for reply, error in replies:
                if isinstance(reply, Reply):
                    turn.sessions[reply.fill(error)] = None
        if outcome.letters:
            self._move(topic, now)
        if turn.health.troubles:
            self._recover(topic)
        outcome.has_stored = outcome.has_noted = False
        if outcome.failures or outcome.notes:
            self._record(topic)
        if outcome.changes:
            turn.changes += outcome.changes
            outcome.changes = []
        turn.journals_ended = max(turn.journals_ended, outcome.journals_ended)
        if topic.due_ns < topic.scheduled_ns:
            turn.timers.schedule(topic, topic.due_ns)

    def _answer(self, answers: list[Answered], now: Instant) -> None:
        """Answer publishes that were stored or refused."""
        turn = self.turn
        for publishes, reason, fatal in answers:
            for publish in publishes:
                turn.backlog_bytes -= publish.size_bytes
                session, slot = publish.session, publish.slot
                if session is None or slot is None:
                    if publish.letters is not None:
                        self._moved(publish.letters, publish.topic, reason, now)
                    if publish.ticket is not None:
                        error = None if reason is None else refusal(publish.command, reason, fatal)
                        turn.published.append((publish.ticket, error))
                    continue
                session.uncommitted_bytes -= publish.size_bytes
                if reason is None:
                    slot.data = layout.OK * publish.oks
                    counts = session.pub_counts
                    counts[publish.topic] = counts.get(publish.topic, 0) + publish.messages
                else:
                    refused = layout.error(refusal(publish.command, reason, fatal).frame_text())
                    # A fatal error closes the connection: a run of PUBs gets no second one.
                    slot.data = refused * (1 if fatal else publish.oks)
                    session.closing |= fatal
                turn.sessions[session] = None

    def _recover(self, topic: Topic) -> None:
        """End the failures of what the disk has accepted again."""
        health, outcome = self.turn.health, topic.outcome
        if outcome.has_stored:
            health.recover(Trouble.PUBLISH, topic.name)
        if outcome.has_noted:
            health.recover(Trouble.LEDGER, topic.name)

    def _record(self, topic: Topic) -> None:
        """Record failures and notes for the operator."""
        health, outcome = self.turn.health, topic.outcome
        for failure in outcome.failures:
            health.fail(failure.trouble, topic.name, failure.note, failure.error)
        health.notes += outcome.notes
        outcome.failures, outcome.notes = [], []

    def _move(self, topic: Topic, now: Instant) -> None:
        """Publish dead letters; `_moved` handles the result of each publish."""
        found, topic.outcome.letters = topic.outcome.letters, []
        for letters in found:
            self._commands.publish(publish_of(letters, dead_letter_topic(topic.name)), now)

    def send_back(self, letters: DeadLetterBatch, to: str, now: Instant, ticket: Ticket) -> None:
        """Publish claimed dead letters to the topic that they came from.

        `take_published` returns the ticket once they are stored there and finished here.
        """
        self._commands.publish(publish_of(letters, to, ticket), now)

    def _moved(self, letters: DeadLetterBatch, to: str, reason: str | None, now: Instant) -> None:
        """Handle the result of publishing dead letters, or messages sent back from there."""
        channel = letters.channel
        apply_result(letters, now, is_kept=reason is None)
        if reason is not None and letters.only is None and now.mono_ns >= self._unmoved_report_ns:
            self._unmoved_report_ns = now.mono_ns + UNMOVED_REPORT_NS
            count = len(letters.indexes)
            self.notes.append(f"topic {to} refused {count} dead letters: {reason}")
        topic = self.topics.get(channel.stream.topic)
        if topic is not None and not channel.is_retired:
            self.turn.wake(topic, channel)

    def take_sessions(self) -> dict[V2Session, None]:
        """Return the sessions that may have output or must be closed, since the last call."""
        sessions, self.turn.sessions = self.turn.sessions, {}
        return sessions

    def take_published(self) -> list[tuple[Ticket, RemoteError | None]]:
        """Return the tickets of completed requests, each with its refusal or None."""
        published, self.turn.published = self.turn.published, []
        return published

    def tick(self, now: Instant) -> int | None:
        """Run what is due; returns the time (mono ns) of the next call, None: nothing waits."""
        turn = self.turn
        for topic in turn.timers.pop_due(now.mono_ns):
            topic.on_time(now)
            turn.add_topic(topic)
        if now.mono_ns >= self._checkpoints.due_ns:
            self._checkpoints.on_time(turn, now)
        if now.mono_ns >= self._next_trim_ns():
            self._trimmed_ns = now.mono_ns
            for topic in self.topics.values():
                if topic.trim(now):
                    turn.add_topic(topic)
                if topic.scope.is_limited:
                    turn.health.notes += limit_notes(topic, now)
            self._topics.maintain(now)
        next_ns = self.next_due_ns()
        if self.topics or self._topics.has_work:
            next_ns = min(next_ns, self._next_trim_ns())
        return None if next_ns == NEVER else next_ns

    def next_due_ns(self) -> int:
        """When (mono ns) `tick` next has something to do; NEVER: nothing is due.

        Commands may make this earlier than the time that `tick` returned.
        """
        return min(self.turn.timers.next_ns(), self._checkpoints.due_ns)

    def _next_trim_ns(self) -> int:
        every_ns = SHORT_TRIM_NS if self._topics.is_short else TRIM_EVERY_NS
        return self._trimmed_ns + every_ns

    @property
    def policies(self) -> Policies:
        """The settings in force for topics and channels, by name pattern."""
        return self._topics.policies

    def configure_policies(self, configured: Iterable[Policy]) -> None:
        """Apply the policies of the configuration file; run-time policies come after them."""
        self._topics.take_policies(self._topics.policies.with_configured(configured))

    def choose_policies(self, chosen: Iterable[Policy], ticket: Ticket) -> None:
        """Replace the policies that were set at run time.

        They take effect once they are written, and then survive a restart. `take_published`
        returns the ticket, with the reason if the write failed: then nothing has changed.
        """
        self._topics.choose_policies(self._topics.policies.with_chosen(chosen), ticket)

    def set_has_lookupd(self, has_lookupd: bool) -> None:
        """Set whether topics created from now on wait for `channels_known`."""
        self._topics.has_lookupd = has_lookupd

    def channels_known(self, topic_name: str, names: list[str], now: Instant) -> None:
        """Apply nsqlookupd's answer: the channels that a new topic has on other nsqds."""
        topic = self.topics.get(topic_name)
        if topic is not None:
            topic.channels_known(names)
            self.turn.add_topic(topic)

    # Health and shutdown

    def health(self) -> str:
        """ "OK", or "NOK - " and the last disk error; on a full disk also what to do."""
        return self.turn.health.text(self.fin_reserve())

    def fin_reserve(self) -> FinReserve | None:
        """Space that the reserve has for FINs on a full disk; None before `load`."""
        return self._topics.fin_reserve()

    def free_bytes(self) -> int:
        """Free bytes on the disk of the data path; 0: unknown, since the disk does not answer."""
        try:
            return self._catalog.disk.free_bytes(self._catalog.data_path)
        except DiskError:
            return 0

    def not_durable_reason(self, topic_name: str) -> str | None:
        """Why an administrative change to a topic is not complete yet; None: it is complete.

        A create, delete, empty, pause or seek is complete once it would survive a power cut and the
        disk space that it frees is free.
        """
        return self._topics.not_durable_reason(topic_name)

    @property
    def waited(self) -> Histogram:
        """How long messages waited from publish to first delivery."""
        return self.turn.waited

    def close(self) -> bool:
        """Prepare to stop: the tasks of the following turn sync everything.

        False: a commit is in flight, which may be one that does not sync. Run the tasks of the
        following turn and call again. Publishes that wait for a commit are refused: committing
        them could take minutes.
        """
        topics = self.topics.values()
        for topic in topics:
            topic.refuse_publishes()
            self.turn.add_topic(topic)
        if any(topic.stream.log.flight is not None for topic in topics):
            return False
        for topic in topics:
            topic.sync_file()
            if topic.writer is not None:
                # Wait for all records, not only written ones: a failed write must be retried.
                topic.writer.wait_for_sync(AwaitedSync([], is_change=False))
        return True

    def closed(self) -> None:
        """Finish the shutdown after the tasks of `close` have run."""
        self.journal.close(is_clean=self._checkpoints.is_clean())
