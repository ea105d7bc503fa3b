"""All topics, all sessions: commands become effects, once a turn effects become writes and output.

The shell's whole view of the broker. Its calls, in the order of a turn:

1. `execute` for each command (and `publish` for HTTP), `finish` for each task that has run: applied
   in memory at once.
2. `end_turn`: commits begin, ready sessions are handed messages, ledgers are written. It returns
   the disk work for the threads; when a task has run, `finish` and a turn follow.
3. `take_sessions`: those whose `take_output` has something to send.

`tick` is called when something is due in time, and a turn follows it too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from sparq.broker import health
from sparq.broker.admin import Admin
from sparq.broker.books import Books
from sparq.broker.bounds import limit_notes
from sparq.broker.catalog import Catalog, Checkpoints
from sparq.broker.commands import Commands, due_after
from sparq.broker.latency import Histogram
from sparq.broker.letters import Letters, Only, settle
from sparq.broker.options import NEVER, SECOND_NS, BrokerOptions
from sparq.broker.permissions import Permissions
from sparq.broker.policies import Policies, Policy
from sparq.broker.publishing import Answered, Change, Outcome, Publish, Ticket, publish_of, refusal
from sparq.broker.session import Buffer, Session
from sparq.broker.topic import Topic
from sparq.broker.topics import RunAll, Topics
from sparq.broker.trimming import Decided
from sparq.broker.turn import Inspected, Reply, Task, Turn
from sparq.log.disk import Disk
from sparq.log.journal import Journal
from sparq.log.reserve import Room
from sparq.log.task import Work
from sparq.protocol import layout
from sparq.protocol.commands import STATE_INIT
from sparq.protocol.dead_letters import dead_letter_topic
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Bodies
from sparq.protocol.identify import Limits
from sparq.protocol.instant import Instant

TRIM_EVERY_NS = SECOND_NS
"""How often segments are looked at for whether somebody still needs them."""
SHORT_TRIM_NS = SECOND_NS // 10
"""How often on a disk that has no space."""
UNMOVED_TOLD_NS = 60 * SECOND_NS
"""How long after a line about dead letters that are refused the next may follow."""


class Broker:
    """Every topic and session of one nsqd.

    Attributes:
        sessions: all that are connected.
        turn: what this turn has come to so far; whoever drives the broker only looks at it.
        drains: which publishes are refused so that producers go elsewhere.
        execute: does what a command asks: see `Commands`, whose method this is.
        create_topic ... act_on_messages: see `Admin`, whose methods these are.
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
        """`server_facts` are told to clients (see `protocol.identify.negotiate`); `seed` makes the
        choice of a sampling client's messages repeatable."""
        self.options = options
        self.sessions: dict[int, Session] = {}
        self.turn = turn = Turn(seed)
        self._catalog = Catalog(disk, data_path, options.node_id)
        self._topics = Topics(self._catalog, turn, options)
        self.drains = self._topics.drains
        self._checkpoints = Checkpoints(self.journal, self.topics)
        self._commands = Commands(self._topics, turn, options, server_facts or {})
        self.execute = self._commands.execute
        self._next_session_id = self._unmoved_told_ns = 0
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
        """Open what the data path holds; returns what an operator should read about it.

        Args:
            now: the time.
            run_all: runs the works that read the topics' files; None: one after the other.

        Raises:
            DiskError: the data path itself cannot be used.
            CatalogError: it is not one that this version can open.
        """
        return self._topics.load(now, run_all)

    @property
    def topics(self) -> dict[str, Topic]:
        """The topics by name."""
        return self._topics.by_name

    @property
    def journal(self) -> Journal:
        """Runs the commits that wait together: see `Journal.run`."""
        return self._topics.journal

    @property
    def node_id(self) -> int:
        """The node id of the data path, which stands in its message ids."""
        return self._catalog.node_id

    @property
    def limits(self) -> Limits:
        """What clients may ask for and send."""
        return self.options.limits

    @property
    def changes(self) -> deque[Change]:
        """Topics and channels that have come or gone, for whoever tells nsqlookupd."""
        return self.turn.changes

    @property
    def notes(self) -> list[str]:
        """What an operator should read; whoever logs them clears the list."""
        return self.turn.health.notes

    @property
    def backlog_bytes(self) -> int:
        """Publishes of all sessions that are not on disk yet."""
        return self.turn.backlog_bytes

    @property
    def busy(self) -> bool:
        """Whether another turn should follow, though no event may be there to cause it."""
        return self.turn.is_busy

    # Connections

    def connect(self, remote_address: str, now: Instant) -> Session:
        """A client has said that it speaks V2."""
        self._next_session_id += 1
        session = Session(self._next_session_id, remote_address, now, self.options)
        self.sessions[session.id] = session
        return session

    def disconnect(self, session: Session, now: Instant) -> None:
        """The connection is gone; what it had in flight waits for its timeouts, as NSQ has it."""
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
            return
        turn.wake(topic, channel)
        if channel.ephemeral and not channel.sessions:
            self._topics.delete_channel(topic, channel.name)
            self._topics.forget_if_unused(topic)

    def fail(self, session: Session, error: RemoteError) -> None:
        """The session's bytes are no command: it is told, after what it is told before."""
        session.reply_error(error)
        self.turn.sessions[session] = None

    def authorize(self, session: Session, permissions: Permissions) -> None:
        """An authd has answered to the session's AUTH; its reply takes its place."""
        self._commands.authorize(session, permissions)
        self.turn.sessions[session] = None

    def names_subscribed(self, session: Session) -> tuple[str, str]:
        """The topic and the channel that a session has subscribed to."""
        topic, channel = self._commands.subscriptions[session]
        return topic.name, channel.name

    def writable(self, session: Session) -> None:
        """The session takes messages again, or its output was taken."""
        subscription = self._commands.subscriptions.get(session)
        if subscription is not None:
            topic, channel = subscription
            channel.opened(session)
            self.turn.wake(topic, channel)
        self._commands.ranges.go_on(session)

    def take_output(self, session: Session) -> list[Buffer]:
        """What a session is to be sent now: replies in their order, then messages."""
        has_reads = bool(self._commands.ranges.reads)
        if session.state == STATE_INIT and not has_reads:
            return session.take_output()  # it waits for no messages
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
        bodies: Bodies,
        now: Instant,
        ticket: Ticket,
        *,
        command: str = "PUB",
        defer_ms: int = 0,
        only: str = "",
    ) -> None:
        """Publish for somebody who is no session; `take_published` has the ticket once it is done.

        All bodies are stored, or none. `only`: a channel, the others do not get them.
        """
        due, size_bytes = due_after(defer_ms, now), bodies.size_bytes
        publish = Publish(topic, command, bodies, len(bodies), size_bytes, due, ticket=ticket)
        self._commands.publish(publish._replace(only=Only(only, [])) if only else publish, now)

    def inspect(self, topic: Topic, work: Work, ticket: Ticket) -> None:
        """Have work done that only looks; `take_published` has the ticket once it has run."""
        self.turn.submit(work, topic, Inspected(ticket))

    # The turn

    def end_turn(self, now: Instant) -> list[Task]:
        """See to what has become possible; returns the disk work that has come up."""
        turn = self.turn
        topics, turn.topics = turn.topics, {}
        if turn.answers:
            answers, turn.answers = turn.answers, []
            self._answer(answers, now)
        for topic in topics:
            if served := topic.end_turn(turn.sampler, turn.waited, now):
                turn.sessions |= served
        for topic in topics:
            books = topic.books
            if books is not None and books.ledger.has_news:
                self._write_ledger(topic, books, now)
                if books.ledger.has_news:
                    turn.touch(topic)  # what could not be written is tried with the next turn
            self._take(topic, now)
            if topic.woken or topic.ephemeral or topic.is_deleted:
                self._go_on(topic)
        if turn.journals_ended > self._checkpoints.ended:
            self._checkpoints.begin(turn.journals_ended, turn, now)
        tasks, turn.tasks = turn.tasks, []
        return tasks

    def _go_on(self, topic: Topic) -> None:
        """See to what waits for no event: most topics have nothing of the kind."""
        if topic.goes_on():
            self.turn.touch(topic)
        if topic.is_deleted:
            self._topics.go_on(topic)

    def _write_ledger(self, topic: Topic, books: Books, now: Instant) -> None:
        error = books.write()
        is_full = error is not None and error.is_full
        if is_full and health.make_room(topic, self._topics.all(), now):
            error = None
        topic.ledger_written(error, now)

    def finish(self, task: Task, now: Instant) -> None:
        """Take over what came of a task that has run; a turn is to follow."""
        topic = task.topic
        if topic is not None:
            if topic.finish(task.work, now):
                self.turn.touch(topic)
            self._take(topic, now)
        if task.request is not None:
            task.request.finish(self.turn, now)

    def _take(self, topic: Topic, now: Instant) -> None:
        """Take what a topic has come to: answer, note, hand out."""
        turn, outcome = self.turn, topic.outcome
        if outcome.answers:
            answers, outcome.answers = outcome.answers, []
            self._answer(answers, now)
        if outcome.works:
            works, outcome.works = outcome.works, []
            topic.under_way += len(works)
            for work in works:
                turn.tasks.append(Task(work, topic))
        if outcome.replies:
            replies, outcome.replies = outcome.replies, []
            for reply, error in replies:
                if isinstance(reply, Reply):
                    turn.sessions[reply.settle(error)] = None
        if outcome.letters:
            self._move(topic, now)
        if outcome.has_recovered:
            outcome.has_recovered = False
            turn.health.failure = None
        if outcome.failures or outcome.notes:
            self._tell(outcome)
        if outcome.changes:
            turn.changes += outcome.changes
            outcome.changes = []
        turn.journals_ended = max(turn.journals_ended, outcome.journals_ended)
        if topic.due_ns < topic.scheduled_ns:
            turn.timers.schedule(topic, topic.due_ns)

    def _answer(self, answers: list[Answered], now: Instant) -> None:
        """Answer publishes that are kept, or refused."""
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
                    slot.data = refused * (1 if fatal else publish.oks)
                    session.closing |= fatal
                turn.sessions[session] = None

    def _tell(self, outcome: Outcome) -> None:
        """Note what an operator should read."""
        health = self.turn.health
        for failure in outcome.failures:
            health.fail(failure.note, failure.error)
        health.notes += outcome.notes
        outcome.failures, outcome.notes = [], []

    def _move(self, topic: Topic, now: Instant) -> None:
        """Publish dead letters; `_moved` has what came of each."""
        found, topic.outcome.letters = topic.outcome.letters, []
        for letters in found:
            self._commands.publish(publish_of(letters, dead_letter_topic(topic.name)), now)

    def send_back(self, letters: Letters, to: str, now: Instant, ticket: Ticket) -> None:
        """Publish dead letters, which are claimed, to the topic that they came from.

        `take_published` has the ticket once they are kept there, and finished here.
        """
        self._commands.publish(publish_of(letters, to, ticket), now)

    def _moved(self, letters: Letters, to: str, reason: str | None, now: Instant) -> None:
        """Dead letters, or what they are of, are kept, or refused."""
        channel = letters.channel
        settle(letters, now, is_kept=reason is None)
        if reason is not None and letters.only is None and now.mono_ns >= self._unmoved_told_ns:
            self._unmoved_told_ns = now.mono_ns + UNMOVED_TOLD_NS
            count = len(letters.indexes)
            self.notes.append(f"dead letters that topic {to} does not take: {count}: {reason}")
        topic = self.topics.get(channel.stream.topic)
        if topic is not None and not channel.is_retired:
            self.turn.wake(topic, channel)

    def take_sessions(self) -> dict[Session, None]:
        """The sessions that may have output, or are to be closed, since last asked."""
        sessions, self.turn.sessions = self.turn.sessions, {}
        return sessions

    def take_published(self) -> list[tuple[Ticket, RemoteError | None]]:
        """The tickets of what is done, each with the refusal or None."""
        published, self.turn.published = self.turn.published, []
        return published

    def tick(self, now: Instant) -> int | None:
        """See to what is due; returns when (mono ns) to call next, None: nothing is waiting."""
        turn = self.turn
        for topic in turn.timers.pop_due(now.mono_ns):
            topic.on_time(now)
            turn.touch(topic)
        if now.mono_ns >= self._checkpoints.due_ns:
            self._checkpoints.on_time(turn, now)
        if now.mono_ns >= self._next_trim_ns():
            self._trimmed_ns = now.mono_ns
            for topic in self.topics.values():
                if topic.trim(now):
                    turn.touch(topic)
                if topic.scope.is_limited:
                    turn.health.notes += limit_notes(topic, now)
            self._topics.look_after()
        next_ns = self.next_due_ns()
        if self.topics or self._topics.has_work:
            next_ns = min(next_ns, self._next_trim_ns())
        return None if next_ns == NEVER else next_ns

    def next_due_ns(self) -> int:
        """When (mono ns) something is due that `tick` would see to; NEVER when nothing is.

        Commands may bring this forward after `tick` has said when it is needed.
        """
        return min(self.turn.timers.next_ns(), self._checkpoints.due_ns)

    def _next_trim_ns(self) -> int:
        every_ns = SHORT_TRIM_NS if self._topics.is_short else TRIM_EVERY_NS
        return self._trimmed_ns + every_ns

    @property
    def policies(self) -> Policies:
        """What holds for topics and channels by their names."""
        return self._topics.policies

    def configure_policies(self, configured: Iterable[Policy]) -> None:
        """Have the file's policies hold, before those that were set at run time."""
        self._topics.take_policies(self._topics.policies.with_configured(configured))

    def choose_policies(self, chosen: Iterable[Policy], ticket: Ticket) -> None:
        """Have these policies hold instead of those that were set at run time before.

        They do once they are written, and then outlive the process. `take_published` has the
        ticket, with the reason if they could not be written: then nothing has changed.
        """
        self._topics.choose_policies(self._topics.policies.with_chosen(chosen), ticket)

    def set_has_lookupd(self, has_lookupd: bool) -> None:
        """Whether topics that are made from now on wait for `channels_known`."""
        self._topics.has_lookupd = has_lookupd

    def channels_known(self, topic_name: str, names: list[str], now: Instant) -> None:
        """nsqlookupd has answered which channels a new topic has elsewhere."""
        topic = self.topics.get(topic_name)
        if topic is not None:
            topic.channels_known(names)
            self.turn.touch(topic)

    # Looking, and the end

    def health(self) -> str:
        """ "OK", or "NOK - " and what the disk last refused; on a full disk also what to do."""
        return self.turn.health.text(self.room())

    def room(self) -> Room | None:
        """How much room the reserve has for FINs on a full disk; None before `load`."""
        return self._topics.room()

    def unsettled(self, topic_name: str) -> str | None:
        """Why what was decided of a topic is not all done yet; None: it is, for good.

        Done is what create, delete, empty, pause and seek were called for: it outlives a crash,
        and the space that it frees is free.
        """
        return self._topics.unsettled(topic_name)

    @property
    def waited(self) -> Histogram:
        """How long messages waited from their publish to their first delivery."""
        return self.turn.waited

    def close(self) -> bool:
        """nsqd stops: have everything synced by the tasks of the turn that follows.

        False: a commit is in flight, which may be one that does not sync. Let the tasks of the turn
        that follows run, and call again. Publishes that wait for a commit are refused: there may be
        minutes of them.
        """
        topics = self.topics.values()
        for topic in topics:
            topic.refuse_publishes()
            self.turn.touch(topic)
        if any(topic.stream.log.flight is not None for topic in topics):
            return False
        for topic in topics:
            topic.sync_file()
            if topic.books is not None:
                # Not only what is written: a write that failed a moment ago is to be tried again.
                topic.books.wait_for_sync(Decided([], is_asked=False))
        return True

    def closed(self) -> None:
        """The tasks of `close` have run."""
        self.journal.close(is_clean=self._checkpoints.is_clean())
