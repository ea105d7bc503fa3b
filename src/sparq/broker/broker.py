"""All topics, all sessions: commands become effects, once a turn effects become writes and output.

The shell's whole view of the broker. Its calls, in the order of a turn:

1. `execute` for each command (and `publish` for HTTP): applied in memory at once.
2. `end_turn`: commits begin, ready sessions are handed messages, ledgers are written.
3. `take_tasks`: disk work for the threads; each task's `done` is called back, then a turn follows.
4. `dirty_sessions`: whose `take_output` has something to send.

`tick` is called when something is due in time, and a turn follows it too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from sparq.broker import range_mode
from sparq.broker.admin import Admin
from sparq.broker.agenda import Agenda
from sparq.broker.catalog import Catalog
from sparq.broker.checkpoints import Checkpoints
from sparq.broker.conversation import Conversation
from sparq.broker.delivery import hand_out
from sparq.broker.histogram import Histogram
from sparq.broker.options import NEVER, SECOND_NS, BrokerOptions
from sparq.broker.permissions import Permissions
from sparq.broker.publishing import Done
from sparq.broker.sampling import Sampler
from sparq.broker.session import Session
from sparq.broker.topic import Topic
from sparq.broker.topics import RunAll, Topics
from sparq.log.disk import Disk
from sparq.log.journal import Journal
from sparq.log.reserve import Room
from sparq.log.task import Task
from sparq.protocol.commands import Command
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Bodies
from sparq.protocol.identify import Limits
from sparq.protocol.instant import Instant

TRIM_EVERY_NS = SECOND_NS
"""How often segments are looked at for whether somebody still needs them."""
SHORT_TRIM_NS = SECOND_NS // 10
"""How often on a disk that has no space."""


class Broker:
    """Every topic and session of one nsqd.

    Attributes:
        sessions: all that are connected.
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
        self._agenda = Agenda()
        self._catalog = Catalog(disk, data_path, options.node_id)
        self._topics = Topics(self._catalog, self._agenda, options)
        self._checkpoints = Checkpoints(self.journal, self.topics, self._agenda)
        self._conversation = Conversation(self._topics, self._agenda, options, server_facts or {})
        self._sampler = Sampler(seed)
        self._next_session_id = 0
        self._trimmed_ns = now.mono_ns
        admin = Admin(self._topics, self._agenda)
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
    def changes(self) -> deque[tuple[str, str, str | None]]:
        """("created" | "deleted", topic, channel or None), for whoever tells nsqlookupd."""
        return self._agenda.changes

    @property
    def notes(self) -> list[str]:
        """What an operator should read; whoever logs them clears the list."""
        return self._agenda.notes

    @property
    def backlog_bytes(self) -> int:
        """Publishes of all sessions that are not on disk yet."""
        return self._agenda.backlog_bytes

    @property
    def busy(self) -> bool:
        """Whether another turn should follow, though no event may be there to cause it."""
        return bool(self._agenda.hungry or self._agenda.tasks)

    # Connections

    def connect(self, remote_address: str, now: Instant) -> Session:
        """A client has said that it speaks V2."""
        self._next_session_id += 1
        session = Session(self._next_session_id, remote_address, now, self.options)
        self.sessions[session.id] = session
        return session

    def disconnect(self, session: Session, now: Instant) -> None:
        """The connection is gone; what it had in flight waits for its timeouts, as NSQ has it."""
        del self.sessions[session.id]
        session.closing = True
        self._agenda.dirty.pop(session, None)
        range_mode.release(session)
        channel = session.channel
        if channel is None:
            return
        channel.unsubscribe(session, requeue=self.options.requeue_on_disconnect)
        if channel.ephemeral and not channel.sessions and not channel.is_retired:
            self._topics.channel_left(channel)

    def execute(self, session: Session, command: Command, now: Instant) -> None:
        """Do what a command asks; its answer takes its place among the session's replies."""
        self._conversation.execute(session, command, now)

    def fail(self, session: Session, error: RemoteError) -> None:
        """The session's bytes are no command: it is told, behind what it is told before."""
        session.reply_error(error)
        self._agenda.dirty[session] = None

    def authorize(self, session: Session, permissions: Permissions) -> None:
        """An authd has answered to the session's AUTH; its reply takes its place."""
        self._conversation.authorize(session, permissions)
        self._agenda.dirty[session] = None

    def writable(self, session: Session) -> None:
        """The session takes messages again."""
        session.on_writable(session)

    def publish(
        self,
        topic_name: str,
        bodies: Bodies,
        now: Instant,
        done: Done,
        *,
        command: str = "PUB",
        defer_ms: int = 0,
    ) -> None:
        """Publish for somebody who is no session; `done` is called once, with the refusal or None.

        All bodies are stored, or none.
        """
        self._conversation.add_publish(
            topic_name,
            bodies,
            now,
            done,
            size_bytes=bodies.size_bytes,
            command=command,
            defer_ms=defer_ms,
        )

    # The turn

    def end_turn(self, now: Instant) -> None:
        """Start commits, hand out messages, write what must be known after a crash."""
        agenda = self._agenda
        if agenda.gathering:
            gathering, agenda.gathering = agenda.gathering, {}
            for topic in gathering:
                topic.publishing.begin(now)
        if agenda.hungry:
            hungry, agenda.hungry = agenda.hungry, {}
            for channel in hungry:
                for session in hand_out(channel, self._sampler, now):
                    agenda.dirty[session] = None
                if channel.ephemeral:
                    channel.bound(self.options.mem_queue_size)
        if agenda.ledgers:
            ledgers, agenda.ledgers = agenda.ledgers, {}
            for books in ledgers:
                if not books.flush(now):
                    agenda.schedule(books, now.mono_ns + SECOND_NS)
        if agenda.journals_ended > self._checkpoints.ended:
            self._checkpoints.begin(agenda.journals_ended, now)

    def take_tasks(self) -> list[Task]:
        """The disk work that has come up."""
        tasks, self._agenda.tasks = self._agenda.tasks, []
        return tasks

    def dirty_sessions(self) -> list[Session]:
        """The sessions that may have output, or are to be closed, since last asked."""
        dirty, self._agenda.dirty = self._agenda.dirty, {}
        return list(dirty)

    def tick(self, now: Instant) -> int | None:
        """See to what is due; returns when (mono ns) to call next, None: nothing is waiting."""
        self._agenda.run_timers(now)
        if now.mono_ns >= self._next_trim_ns():
            self._trimmed_ns = now.mono_ns
            for topic in self.topics.values():
                topic.trim(now)
            self._topics.look_after()
        next_ns = self._agenda.next_timer_ns()
        if self.topics or self._topics.has_work:
            next_ns = min(next_ns, self._next_trim_ns())
        return None if next_ns == NEVER else next_ns

    def next_due_ns(self) -> int:
        """When (mono ns) something is due that `tick` would see to; NEVER when nothing is.

        Commands may bring this forward after `tick` has said when it is needed.
        """
        return self._agenda.next_timer_ns()

    def _next_trim_ns(self) -> int:
        every_ns = SHORT_TRIM_NS if self._topics.is_short else TRIM_EVERY_NS
        return self._trimmed_ns + every_ns

    def set_has_lookupd(self, has_lookupd: bool) -> None:
        """Whether topics that are made from now on wait for `channels_known`."""
        self._topics.has_lookupd = has_lookupd

    def channels_known(self, topic_name: str, names: list[str], now: Instant) -> None:
        """nsqlookupd has answered which channels a new topic has elsewhere."""
        topic = self.topics.get(topic_name)
        if topic is not None:
            topic.channels_known(names)

    # Looking, and the end

    def health(self) -> str:
        """ "OK", or "NOK - " and what the disk last refused; on a full disk also what to do."""
        failure = self._agenda.failure
        if failure is None:
            return "OK"
        room = self.room()
        if room is None or not self._agenda.is_full:
            return f"NOK - {failure}"
        held, target = room.reserve_bytes >> 10, room.target_bytes >> 10
        return (
            f"NOK - {failure}; consumers can go on: {held:,} of {target:,} KiB are kept for FINs on"
            f" {room.ledgers:,} topics, room for {room.finishes:,} before the next checkpoint; to"
            " publish again, free the disk, or empty or delete channels or topics"
        )

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
        return self._agenda.waited

    def close(self, now: Instant) -> bool:
        """nsqd stops: write what is noted, and have everything synced by the tasks queued now.

        False: a commit is in flight, which may be one that does not sync. Let the tasks queued now
        run, and call again. Publishes that wait for a commit are refused: there may be minutes of
        them.
        """
        for topic in self.topics.values():
            topic.publishing.refuse_all()
        self.end_turn(now)
        if any(topic.stream.log.busy for topic in self.topics.values()):
            return False
        for topic in self.topics.values():
            topic.sync_all(now)
        self.end_turn(now)
        return True

    def closed(self) -> None:
        """The tasks of `close` have run."""
        self.journal.close(is_clean=self._checkpoints.is_clean())
