"""All topics and sessions: executes commands, then once per turn starts writes and collects output.

This is the only broker interface that the I/O layer uses. The calls of a turn, in order:

1. `execute` for each command (`publish` and the administrators' actions for HTTP), `fail` for input
   that the parser refused, and `TopicTask.finish` for each task that has run. They take effect in
   memory at once.
2. `end_turn`: begins commits, delivers messages to ready sessions and writes ledgers. It returns
   the disk work for the threads.
3. `take_sessions`: the sessions whose `take_output` has something to send.

`tick` is called when a timer is due; run a turn after it, too.

A refusal is a `RemoteError`; it is raised where the problem is found and turned into a reply in one
place, `Broker.execute`. Publishes, and commands that must be synced before they are answered, take
a reply slot; all others are answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sparq.broker import full_disk, message_actions, seeking
from sparq.broker.bounds import admit, limit_lag, loss_notes
from sparq.broker.catalog import Catalog, Checkpoints
from sparq.broker.channel import Channel, SeekTarget
from sparq.broker.dead_letters import DeadLetterBatch, Only, apply_result, unclaim
from sparq.broker.message_actions import Indexes
from sparq.broker.options import NEVER, BrokerOptions, Refusal
from sparq.broker.permissions import Permissions
from sparq.broker.policies import Policies, Policy
from sparq.broker.publishing import Publish, answer
from sparq.broker.range_mode import Ranges, commit
from sparq.broker.seeking import Seek
from sparq.broker.session import Buffer, Proximity, V2Session
from sparq.broker.topic import Topic
from sparq.broker.topics import RunAll, Topics
from sparq.broker.turn import Ticket, TopicTask, Turn
from sparq.log.disk import Disk, DiskError
from sparq.log.reserve import FinReserve
from sparq.log.task import Task
from sparq.options.units import MILLISECOND, SECOND
from sparq.protocol import commands, layout
from sparq.protocol.dead_letters import dead_letter_topic
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import BodySlices
from sparq.protocol.identify import negotiate
from sparq.protocol.instant import Instant

TRIM_EVERY_NS = SECOND
"""How often each topic looks for segments that no channel needs any more."""
SHORT_TRIM_NS = SECOND // 10
"""The same interval while the disk has no space."""
UNMOVED_REPORT_NS = 60 * SECOND
"""Minimum time between two notes about refused dead letters."""
HEARTBEATS_OFF: Final = "cannot SUB with heartbeats disabled"


class Broker:
    """Every topic and session of one nsqd.

    Attributes:
        sessions: all connected sessions, by id.
        turn: the pending results of this turn; the I/O layer only reads it.
        topics: the topics by name.
        journal: runs waiting commits together, so that they share a sync: see `Journal.run`.
        limits: limits on what clients may request and send.
        changes: created and deleted topics and channels, to be reported to nsqlookupd.
        notes: notes for the operator; the caller that logs them clears the list.
        drains: which publishes are refused so that producers use another nsqd.
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
        self.limits = options.limits
        self.sessions: dict[int, V2Session] = {}
        self.turn: Turn[Topic] = Turn(seed)
        self.changes, self.notes = self.turn.changes, self.turn.health.notes
        self._catalog = Catalog(disk, data_path, options.node_id)
        self._topics = Topics(self._catalog, self.turn, options)
        self.topics, self.journal = self._topics.by_name, self._topics.journal
        self.drains = self._topics.drains
        self._checkpoints = Checkpoints(self.journal, self.topics, self.turn)
        self._subscriptions: dict[V2Session, tuple[Topic, Channel]] = {}
        self._ranges = Ranges(self.turn)
        self._server_facts = {"auth_required": options.auth_required, **(server_facts or {})}
        self._next_session_id = self._unmoved_report_ns = self._last_epoch = 0
        self._trimmed_ns = now.mono_ns
        self._handlers: dict[type, Callable[[V2Session, Any, Instant], None]] = {
            commands.PublishRun: partial(self._publish_command, name="PUB"),
            commands.Finish: self._finish,
            commands.Ready: self._ready,
            commands.MultiPublish: partial(self._publish_command, name="MPUB"),
            commands.DeferredPublish: partial(self._publish_command, name="DPUB"),
            commands.TopicNeeded: self._topic_needed,
            commands.Requeue: self._requeue,
            commands.Touch: self._touch,
            commands.Identify: self._identify,
            commands.Authenticate: self._authenticate,
            commands.Subscribe: self._subscribe,
            commands.Close: self._close_command,
            commands.Nop: lambda *_: None,
            commands.Attach: self._attach,
            commands.ReadEnds: self._read_ends,
            commands.Read: self._read,
            commands.CommitRange: self._commit_range,
        }

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
    def node_id(self) -> int:
        """The node id of the data path; it is part of each message id."""
        return self._catalog.node_id

    # Connections

    def connect(self, remote_address: str, now: Instant) -> V2Session:
        """Create the session of a client that has sent the V2 magic."""
        self._next_session_id += 1
        session = V2Session(self._next_session_id, remote_address, now, self.options)
        self.sessions[session.id] = session
        return session

    def disconnect(self, session: V2Session, now: Instant) -> None:
        """Remove a session; its messages in flight wait for their timeouts, as in NSQ."""
        del self.sessions[session.id]
        session.closing = True
        self.turn.sessions.pop(session, None)
        self._ranges.release(session)
        topic, channel = self._subscriptions.pop(session, (None, None))
        if topic is None or channel is None:
            return
        channel.unsubscribe(session, now, requeue=self.options.requeue_on_disconnect)
        if channel.is_retired:
            return  # its name may belong to a new channel, which must not be deleted below
        topic.wake(channel)
        if channel.ephemeral and not channel.sessions:
            topic.delete_channel(channel.name)
            self._topics.forget_if_unused(topic, now)

    def fail(self, session: V2Session, error: RemoteError) -> None:
        """Reply with the error of input that the parser refused, after the replies before it."""
        session.reply_error(error)
        self.turn.sessions[session] = None

    def names_subscribed(self, session: V2Session) -> tuple[str, str]:
        """The names of the topic and the channel that a session has subscribed to."""
        topic, channel = self._subscriptions[session]
        return topic.name, channel.name

    def writable(self, session: V2Session) -> None:
        """The session accepts messages again, or its output has been taken."""
        if session in self._subscriptions:
            topic, channel = self._subscriptions[session]
            channel.opened(session)
            topic.wake(channel)
        self._ranges.read_next(session)

    def take_output(self, session: V2Session) -> list[Buffer]:
        """Return what to send to a session now: replies in order, then messages."""
        has_reads = bool(self._ranges.reads)
        if session.state == commands.STATE_INIT and not has_reads:
            return session.take_output()  # no subscription, so no delivery depends on it
        was_blocked = session.is_blocked()
        output = session.take_output()
        if was_blocked and not session.is_blocked():
            self.writable(session)
        elif has_reads:
            self._ranges.read_next(session)
        return output

    # Commands of V2 clients

    def execute(self, session: V2Session, command: commands.Command, now: Instant) -> None:
        """Execute a command; replies keep the order of the session's commands."""
        if session.closing:
            return
        try:
            self._handlers[type(command)](session, command, now)
        except RemoteError as error:
            session.reply_error(error)
        self.turn.sessions[session] = None

    def _identify(self, session: V2Session, command: commands.Identify, _now: Instant) -> None:
        granted = negotiate(command.body, self.limits, self._server_facts)
        session.identify(granted)
        session.reply(layout.response(granted.reply_data()))

    def authorize(self, session: V2Session, permissions: Permissions) -> None:
        """Apply the answer of an authd to the session's AUTH, and reply."""
        self.turn.sessions[session] = None
        if not permissions.count:
            session.reply_error(RemoteError("E_UNAUTHORIZED", "AUTH no authorizations found"))
            return
        session.permissions = permissions
        session.authed = True
        session.auth_identity = permissions.identity
        session.auth_identity_url = permissions.identity_url
        session.reply(layout.response(permissions.reply_data()))

    def _authenticate(
        self, session: V2Session, _command: commands.Authenticate, _now: Instant
    ) -> None:
        """Refuse an AUTH that needs no request to an authd."""
        if session.permissions is not None:
            raise RemoteError("E_INVALID", "AUTH already set")
        raise RemoteError("E_AUTH_DISABLED", "AUTH disabled")

    def _check_permission(
        self,
        session: V2Session,
        command: str,
        topic: str,
        channel: str = "",
        *,
        reads: bool = False,
    ) -> None:
        """Check a permission. An empty channel means publish; `reads` means reading ranges."""
        if not self.options.auth_required:
            return
        if session.permissions is None:
            raise RemoteError("E_AUTH_FIRST", f"AUTH required before {command}")
        if not session.permissions.allows(topic, None if reads else channel):
            text = f'AUTH failed for {command} on "{topic}" "{channel}"'
            raise RemoteError("E_UNAUTHORIZED", text)

    def _publish_command(
        self,
        session: V2Session,
        command: commands.PublishRun | commands.MultiPublish | commands.DeferredPublish,
        now: Instant,
        *,
        name: str,
    ) -> None:
        topic, bodies = command.topic, command.bodies
        # An MPUB's permission was checked before its body was read: see `_topic_needed`.
        if self.options.auth_required and name != "MPUB":
            self._check_permission(session, name, topic)
        count = len(bodies.sizes)
        size_bytes = int(bodies.sizes[0]) if count == 1 else bodies.size_bytes
        session.uncommitted_bytes += size_bytes
        due: Instant | None = None
        if isinstance(command, commands.DeferredPublish):
            due = due_after(command.defer_ms, now)
        oks = count if name == "PUB" else 1
        slot = session.slot()
        self._accept(Publish(topic, name, bodies, count, size_bytes, due, session, slot, oks), now)

    def _accept(self, publish: Publish, now: Instant) -> None:
        """Queue messages for their topic's next commit, or refuse them with an answer."""
        turn = self.turn
        turn.backlog_bytes += publish.size_bytes
        # Looked up here, so that a publish to an existing topic costs no further call.
        topic = self.topics.get(publish.topic)
        ready_ns = 0
        try:
            if self.drains.is_on and not publish.is_letter:
                self.drains.check(publish.topic, publish.messages)
            if topic is None:
                topic = self._topics.get_or_create(publish.topic, now)
            if topic.scope.is_limited:
                ready_ns = admit(topic, publish, now)
        except Refusal as refused:
            answer([publish], turn, now, str(refused), fatal=refused.fatal)
        else:
            topic.publishing.add(publish, ready_ns)
            if ready_ns:
                topic.expect(ready_ns)
            turn.topics[topic] = None

    def _topic_needed(
        self, session: V2Session, command: commands.TopicNeeded, now: Instant
    ) -> None:
        self._check_permission(session, "MPUB", command.topic)
        if command.topic not in self.topics and not self.drains.refusal(command.topic):
            try:
                self._topics.get_or_create(command.topic, now)
            except Refusal:
                return  # the MPUB that follows is answered with this error

    def _subscribe(self, session: V2Session, command: commands.Subscribe, now: Instant) -> None:
        if session.heartbeat_interval_ms <= 0:
            raise RemoteError("E_INVALID", HEARTBEATS_OFF)
        self._check_permission(session, "SUB", command.topic, command.channel)
        topic, channel, is_new = self._open_channel(command.topic, command.channel, "SUB", now)
        name = f"{topic.name}:{channel.name}"
        if channel.range_reader is not None:
            raise RemoteError(
                "E_SUB_FAILED", f"SUB failed channel {name} is held by a range reader"
            )
        most = channel.settings.max_channel_consumers
        if 0 < most <= len(channel.sessions):
            raise RemoteError(
                "E_SUB_FAILED", f"SUB failed consumers for {name} exceeds limit of {most}"
            )
        options = self.options
        if options.topology_aware:
            session.nearness = Proximity.OTHER
            if session.topology_zone == options.topology_zone:
                session.nearness = Proximity.ZONE
            elif session.topology_region == options.topology_region:
                session.nearness = Proximity.REGION
        channel.subscribe(session)
        self._subscriptions[session] = topic, channel
        topic.wake(channel)
        session.state = commands.STATE_SUBSCRIBED
        self._reply_when_kept(session, topic, layout.OK, "SUB", is_new=is_new)
        # After its slot is taken: no message of this turn may overtake the OK.
        session.hold_messages()

    def _open_channel(
        self, topic_name: str, name: str, command: str, now: Instant
    ) -> tuple[Topic, Channel, bool]:
        """Return a topic and its channel, created if necessary, and whether the channel is new."""
        code = f"E_{command}_FAILED"
        try:
            topic = self._topics.get_or_create(topic_name, now)
            is_new = name not in topic.channels
            channel = topic.create_channel(name)
        except Refusal as refused:
            raise RemoteError(code, f"{command} failed {refused}") from refused
        self.turn.topics[topic] = None
        return topic, channel, is_new

    def _reply_when_kept(
        self, session: V2Session, topic: Topic, reply: bytes, command: str, *, is_new: bool
    ) -> None:
        """Reply now, or once the ledger is written; for a new channel, once it is synced."""
        writer = topic.writer
        if writer is None or (not is_new and writer.is_written()):
            session.reply(reply)
            return
        slot = session.slot()

        def fill_slot(error: DiskError | None, _now: Instant) -> None:
            slot.data = reply
            if error is not None:
                text = f"{command} failed {error.reason}"
                refused = RemoteError(f"E_{command}_FAILED", text)
                slot.data = layout.error(refused.frame_text())
                session.closing |= refused.fatal
            self.turn.sessions[session] = None

        if is_new:
            # A channel that a power cut removed would miss what is published after its SUB.
            writer.wait_for_sync(fill_slot)
        else:
            writer.wait_for_write(fill_slot)
        self.turn.topics[topic] = None

    def _ready(self, session: V2Session, command: commands.Ready, _now: Instant) -> None:
        if session.state == commands.STATE_SUBSCRIBED:
            topic, channel = self._subscriptions[session]
            session.ready_count = command.count
            channel.opened(session)
            topic.wake(channel)

    def _finish(self, session: V2Session, command: commands.Finish, now: Instant) -> None:
        # The parser accepts FIN, REQ and TOUCH only after a SUB.
        topic, channel = self._subscriptions[session]
        channel.finish(session, command, now)
        topic.wake(channel)

    def _requeue(self, session: V2Session, command: commands.Requeue, now: Instant) -> None:
        topic, channel = self._subscriptions[session]
        channel.requeue(session, command, now)
        topic.wake(channel)

    def _touch(self, session: V2Session, command: commands.Touch, now: Instant) -> None:
        cap_ns = self.limits.max_msg_timeout_ms * MILLISECOND
        self._subscriptions[session][1].touch(session, command, now, cap_ns)

    def _close_command(self, session: V2Session, _command: commands.Close, _now: Instant) -> None:
        # No further messages; those in flight can still be finished, as in NSQ.
        session.ready_count = 0
        session.state = commands.STATE_CLOSING
        session.reply(layout.CLOSE_WAIT)

    # Range reading

    def _attach(self, session: V2Session, command: commands.Attach, now: Instant) -> None:
        self._check_permission(session, "ATTACH", command.topic, command.channel)
        topic, channel, created = self._open_channel(command.topic, command.channel, "ATTACH", now)
        # From the clock, since epochs must ascend over restarts and are not stored; by 1 while the
        # clock is set back.
        epoch = self._last_epoch = max(now.wall_ns, self._last_epoch + 1)
        reply = self._ranges.attach(topic, channel, session, epoch, created=created)
        topic.wake(channel)
        self._reply_when_kept(session, topic, layout.response(reply), "ATTACH", is_new=True)

    def _readable_topic(self, session: V2Session, name: str, command: str) -> Topic:
        """The topic of an ENDS or READ, which the client must be allowed to read."""
        self._check_permission(session, command, name, reads=True)
        topic = self.topics.get(name)
        if topic is None:
            raise RemoteError("E_RANGE_FAILED", f"{command} failed topic {name} not found")
        return topic

    def _read_ends(self, session: V2Session, command: commands.ReadEnds, _now: Instant) -> None:
        topic = self._readable_topic(session, command.topic, "ENDS")
        self._ranges.ends(session, topic, command)

    def _read(self, session: V2Session, command: commands.Read, _now: Instant) -> None:
        topic = self._readable_topic(session, command.topic, "READ")
        self._ranges.read(session, topic, command)

    def _commit_range(
        self, session: V2Session, command: commands.CommitRange, now: Instant
    ) -> None:
        self._check_permission(session, "COMMIT", command.topic, command.channel)
        topic = self.topics.get(command.topic)
        channel = topic.channels.get(command.channel) if topic is not None else None
        if topic is None or channel is None:
            missing = f"channel {command.topic}:{command.channel} not found"
            raise RemoteError("E_COMMIT_FAILED", f"COMMIT failed {missing}")
        commit(topic, channel, command)
        topic.wake(channel)
        channel.committed_mono_ns = now.mono_ns
        # Written, not synced: if a power cut undoes it, the cursor is further back, and the log
        # still has the messages, since their files are deleted only after a sync.
        self._reply_when_kept(session, topic, layout.OK, "COMMIT", is_new=False)

    # Requests over HTTP. `take_published` returns their tickets once they are done.

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
        """Publish without a session; either all bodies are stored or none.

        `only`: a channel name; other channels skip the messages.
        """
        publish = Publish(
            topic,
            command,
            bodies,
            len(bodies),
            bodies.size_bytes,
            due_after(defer_ms, now),
            answered=partial(self._report, ticket),
            only=Only(only, []) if only else None,
        )
        self._accept(publish, now)

    def _report(self, ticket: Ticket, refused: RemoteError | None, _now: Instant) -> None:
        self.turn.published.append((ticket, refused))

    def inspect(self, topic: Topic, task: Task, ticket: Ticket) -> None:
        """Run a read-only task on a topic, which keeps any error itself."""
        topic.submit(task, partial(self._report, ticket, None))

    def send_back(self, letters: DeadLetterBatch, to: str, now: Instant, ticket: Ticket) -> None:
        """Publish claimed dead letters to the topic that they came from, and finish them here."""
        self._publish_letters(letters, to, now, ticket)

    def _publish_letters(
        self, letters: DeadLetterBatch, to: str, now: Instant, ticket: Ticket | None = None
    ) -> None:
        bodies = BodySlices.of(letters.bodies)
        publish = Publish(
            to,
            "PUB",
            bodies,
            len(bodies),
            bodies.size_bytes,
            answered=partial(self._letters_moved, letters, to, ticket),
            is_letter=True,
            only=letters.only,
        )
        self._accept(publish, now)

    def _letters_moved(
        self,
        letters: DeadLetterBatch,
        to: str,
        ticket: Ticket | None,
        refused: RemoteError | None,
        now: Instant,
    ) -> None:
        """Handle the result of publishing dead letters, or messages sent back from there."""
        if ticket is not None:
            self.turn.published.append((ticket, refused))
        channel = letters.channel
        apply_result(letters, now, is_kept=refused is None)
        is_report_due = letters.only is None and now.mono_ns >= self._unmoved_report_ns
        if refused is not None and is_report_due:
            self._unmoved_report_ns = now.mono_ns + UNMOVED_REPORT_NS
            reason = refused.text.removeprefix("PUB failed ")
            count = len(letters.indexes)
            self.notes.append(f"topic {to} refused {count} dead letters: {reason}")
        self._wake_if_there(channel)

    def _wake_if_there(self, channel: Channel) -> None:
        """Wake a channel that may have been deleted while its letters were being published."""
        topic = self.topics.get(channel.stream.topic)
        if topic is not None and not channel.is_retired:
            topic.wake(channel)

    # Administrators' actions. An action is complete (durable, and the disk space that it frees is
    # free) once `not_durable_reason` returns None: run turns and the tasks they return until then.

    def create_topic(self, name: str, now: Instant) -> None:
        """Create the topic unless it exists."""
        try:
            topic = self._topics.get_or_create(name, now)
        except Refusal as refused:
            raise RemoteError(refused.code, str(refused)) from refused
        topic.make_durable(now)

    def delete_topic(self, name: str, now: Instant) -> None:
        """Delete the topic with its channels and messages; its consumers' connections close."""
        self._existing_topic(name)
        self._topics.delete(name, now)

    def empty_topic(self, name: str, now: Instant) -> None:
        """Drop the messages that no channel sees yet."""
        topic = self._existing_topic(name)
        topic.drop_unseen(topic.stream.log.written_end)
        topic.make_durable(now, frees=True)

    def pause_topic(self, name: str, paused: bool, now: Instant) -> None:
        """Stop or resume the flow from the topic to its channels."""
        topic = self._existing_topic(name)
        topic.pause(paused)
        topic.make_durable(now)

    def create_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Create the channel unless it exists; the topic must exist."""
        topic = self._existing_topic(topic_name)
        try:
            topic.create_channel(name)
        except Refusal as refused:
            raise RemoteError(refused.code, str(refused)) from refused
        topic.make_durable(now)

    def delete_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Delete the channel; its consumers' connections close."""
        topic, channel = self._existing_channel(topic_name, name)
        topic.delete_channel(channel.name)
        topic.make_durable(now, frees=True)
        self._topics.forget_if_unused(topic, now)

    def empty_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Drop all messages that wait, are in flight or are deferred."""
        topic, channel = self._existing_channel(topic_name, name)
        channel.seek(topic.stream.end)
        topic.wake(channel)
        topic.make_durable(now, frees=True)

    def pause_channel(self, topic_name: str, name: str, paused: bool, now: Instant) -> None:
        """Stop or resume deliveries to the channel's consumers."""
        topic, channel = self._existing_channel(topic_name, name)
        channel.pause(paused)
        if not paused:
            topic.wake(channel)
        topic.make_durable(now)

    def seek(
        self,
        topic_name: str,
        name: str,
        target: SeekTarget,
        now: Instant,
        *,
        dry_run: bool = False,
        may_skip: bool = True,
    ) -> Seek:
        """Move the channel to another place of the log: replay, or skip ahead.

        Messages in flight or deferred are dropped from the channel. Finding a time may need a disk
        read: then the channel moves when the task that is queued now has run. The result has the
        new position once the tasks of this turn and the next have run. A dry run reports the
        position without moving. Without `may_skip`, the channel stays if it would skip unfinished
        messages: the result is then refused.
        """
        topic, channel = self._existing_channel(topic_name, name)
        if channel.range_reader is not None:
            raise RemoteError("INVALID_REQUEST", "a range reader holds the channel")
        seek = Seek(moves=not dry_run, may_skip=may_skip)
        seeking.begin(topic, channel, target, seek)
        topic.make_durable(now)
        return seek

    def act_on_messages(
        self, action: str, topic_name: str, name: str | None, indexes: Indexes, now: Instant
    ) -> message_actions.Refused:
        """Requeue, finish or cancel single messages.

        Args:
            action: a key of `message_actions.ACTIONS`.
            topic_name: the topic.
            name: the channel; None: all channels, which only `cancel` supports.
            indexes: the messages, ascending.
            now: the current time.
        """
        if name is None:
            topic = self._existing_topic(topic_name)
            refused = message_actions.cancel_everywhere(topic, indexes)
            channels = list(topic.channels.values())
        else:
            topic, channel = self._existing_channel(topic_name, name)
            refused = message_actions.ACTIONS[action](channel, indexes)
            channels = [channel]
        for channel in channels:
            topic.wake(channel)
        topic.make_durable(now)
        return refused

    def claim(
        self, topic_name: str, name: str, indexes: Indexes, now: Instant
    ) -> message_actions.Refused:
        """Reserve waiting messages of a channel for `send_back`, or until `unclaim`.

        Args:
            topic_name: the topic.
            name: the channel.
            indexes: the messages, ascending, at most `message_actions.IDS_MAX`.
            now: the current time.
        """
        _, channel = self._existing_channel(topic_name, name)
        return message_actions.claim(channel, indexes, now)

    def unclaim(self, channel: Channel, indexes: Indexes) -> None:
        """Make messages that are still claimed wait again."""
        unclaim(channel, indexes)
        self._wake_if_there(channel)

    def not_durable_reason(self, topic_name: str) -> str | None:
        """Why an administrator's action on a topic is not complete yet; None: it is complete."""
        topic = self.topics.get(topic_name)
        if topic is None:
            return self._topics.leaving_reason(topic_name)
        return topic.not_durable_reason()

    def _existing_topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise RemoteError("TOPIC_NOT_FOUND")
        return topic

    def _existing_channel(self, topic_name: str, name: str) -> tuple[Topic, Channel]:
        topic = self.topics.get(topic_name)
        channel = None if topic is None else topic.channels.get(name)
        if topic is None or channel is None:
            raise RemoteError("TOPIC_NOT_FOUND" if topic is None else "CHANNEL_NOT_FOUND")
        return topic, channel

    @property
    def policies(self) -> Policies:
        """The settings in force for topics and channels, by name pattern."""
        return self._topics.policies

    def configure_policies(self, configured: Iterable[Policy]) -> None:
        """Apply the policies of the configuration file; run-time policies come after them."""
        wanted = replace(self._topics.policies, configured=tuple(configured))
        self._topics.put_into_force(wanted)

    def choose_policies(self, chosen: Iterable[Policy], ticket: Ticket) -> None:
        """Replace the policies that were set at run time.

        They take effect once they are written, and then survive a restart. If the write fails,
        nothing changes, and the ticket gets the reason.
        """
        self._topics.choose_policies(chosen, ticket)

    def set_has_lookupd(self, has_lookupd: bool) -> None:
        """Set whether topics created from now on wait for `channels_known`."""
        self._topics.has_lookupd = has_lookupd

    def channels_known(self, topic_name: str, names: list[str]) -> None:
        """Apply nsqlookupd's answer: the channels that a new topic has on other nsqds."""
        topic = self.topics.get(topic_name)
        if topic is not None:
            topic.channels_known(names)

    # The turn

    def end_turn(self, now: Instant) -> list[TopicTask]:
        """Commit, deliver, write ledgers and reply where possible; returns the new tasks."""
        turn = self.turn
        # Topics that this call touches, for example by a dead letter, are left to the next turn.
        topics, turn.topics = turn.topics, {}
        for topic in topics:
            topic.end_turn(now)
        for topic in topics:
            writer = topic.writer
            if writer is not None and writer.ledger.has_news:
                error = writer.write()
                if error is not None and error.is_full:
                    has_room = full_disk.make_room(writer, self._topics.writers(), now)
                    error = None if has_room else error
                writer.written(error, now)
                if writer.due_ns < topic.due_ns:
                    topic.expect(writer.due_ns)
                if writer.ledger.has_news:
                    turn.topics[topic] = None  # retry failed writes in the next turn
            if (topic.woken or topic.publishing.waiting) and topic.needs_turn():
                turn.topics[topic] = None
            if topic.is_deleted:
                self._topics.remove_if_idle(topic)
        if turn.letters:
            self._move_letters(now)
        if turn.journals_ended > self._checkpoints.ended:
            self._checkpoints.begin(turn.journals_ended, now)
        tasks, turn.tasks = turn.tasks, []
        return tasks

    def _move_letters(self, now: Instant) -> None:
        """Publish the dead letters of this turn."""
        letters, self.turn.letters = self.turn.letters, []
        for batch in letters:
            self._publish_letters(batch, dead_letter_topic(batch.channel.stream.topic), now)

    def take_sessions(self) -> dict[V2Session, None]:
        """Return the sessions that may have output or must be closed, since the last call."""
        sessions, self.turn.sessions = self.turn.sessions, {}
        return sessions

    def take_published(self) -> list[tuple[Ticket, RemoteError | None]]:
        """Return the tickets of completed requests, each with its refusal or None."""
        published, self.turn.published = self.turn.published, []
        return published

    def tick(self, now: Instant) -> int | None:
        """Run what is due; returns the time (mono ns) of the next call, None: nothing waits.

        Commands may make something due earlier than that: see `Turn.due_ns`.
        """
        for name, _ in self.turn.due_topics.pop_due(now.mono_ns):
            if name in self.topics:  # not if it is being deleted
                self.topics[name].on_time(now)
        if now.mono_ns >= self._checkpoints.due_ns:
            self._checkpoints.on_time(now)
        if now.mono_ns >= self._next_trim_ns():
            self._trimmed_ns = now.mono_ns
            for topic in self.topics.values():
                if topic.writer is not None:
                    limit_lag(topic, now)
                topic.trim(now)
                self.notes += loss_notes(topic, now)
            self._topics.maintain(now)
        self.turn.due_ns = self.turn.due_topics.next_due_ns()
        next_ns = min(self.turn.due_ns, self._checkpoints.due_ns)
        if self.topics or self._topics.has_work:
            next_ns = min(next_ns, self._next_trim_ns())
        return None if next_ns == NEVER else next_ns

    def _next_trim_ns(self) -> int:
        every_ns = SHORT_TRIM_NS if self._topics.is_short else TRIM_EVERY_NS
        return self._trimmed_ns + every_ns

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

    def close(self, now: Instant) -> bool:
        """Prepare to stop: the tasks of the following turn sync everything.

        False: a commit is in flight, which may be one that does not sync. Run the tasks of the
        following turn and call again. Publishes that wait for a commit are refused: committing
        them could take minutes.
        """
        topics = self.topics.values()
        for topic in topics:
            topic.refuse_publishes(now)
            self.turn.topics[topic] = None
        if any(topic.stream.log.flight is not None for topic in topics):
            return False
        for topic in topics:
            topic.sync_file()
            if topic.writer is not None:
                # Wait for all records, not only written ones: a failed write must be retried.
                topic.writer.wait_for_sync(lambda *_: None)
        return True

    def closed(self) -> None:
        """Finish the shutdown after the tasks of `close` have run."""
        self.journal.close(is_clean=self._checkpoints.is_clean())


def due_after(defer_ms: int, now: Instant) -> Instant | None:
    """When a message deferred by `defer_ms` is due; None: it is not deferred."""
    if not defer_ms:
        return None
    delay_ns = defer_ms * MILLISECOND
    return Instant(now.wall_ns + delay_ns, now.mono_ns + delay_ns)
