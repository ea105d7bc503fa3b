"""What each command of a connection does.

One table: the command's class and who answers it. A refusal is a `RemoteError`, raised by whoever
finds it and made into a reply at one place, `Conversation.execute`. Publishes and whatever must be
synced before it is answered take a reply slot; all else is answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sparq.broker import range_mode
from sparq.broker.agenda import Agenda
from sparq.broker.limits import LimitReached, check_room
from sparq.broker.options import MILLISECOND_NS, BrokerOptions
from sparq.broker.publishing import Publish, refusal
from sparq.broker.session import Session
from sparq.broker.topics import Leaving, Topics
from sparq.broker.topology import nearness
from sparq.log.disk import DiskError
from sparq.protocol import commands, frames
from sparq.protocol.errors import RemoteError
from sparq.protocol.frames import Bodies
from sparq.protocol.identify import negotiate
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.broker.permissions import Permissions
    from sparq.broker.publishing import Done
    from sparq.broker.topic import Topic

HEARTBEATS_OFF: Final = "cannot SUB with heartbeats disabled"


class PublishReply:
    """Fills the slot of one publish command: an OK for each message of a PUB run."""

    __slots__ = ("_agenda", "_count", "_oks", "_session", "_size_bytes", "_slot", "_topic")

    def __init__(
        self, agenda: Agenda, session: Session, topic: str, *, count: int, oks: int, size_bytes: int
    ) -> None:
        self._agenda = agenda
        self._session = session
        self._topic = topic
        self._count = count
        self._oks = oks
        self._size_bytes = size_bytes
        self._slot = session.slot()
        session.uncommitted_bytes += size_bytes

    def __call__(self, error: RemoteError | None) -> None:
        """The messages are kept, or refused."""
        session = self._session
        session.uncommitted_bytes -= self._size_bytes
        if error is None:
            self._slot.data = frames.OK * self._oks
            counts = session.pub_counts
            counts[self._topic] = counts.get(self._topic, 0) + self._count
        else:
            self._slot.data = frames.error(error.frame_text()) * (1 if error.fatal else self._oks)
            session.closing |= error.fatal
        self._agenda.dirty[session] = None


class Conversation:
    """Executes commands against the topics."""

    def __init__(
        self,
        topics: Topics,
        agenda: Agenda,
        options: BrokerOptions,
        server_facts: Mapping[str, object],
    ) -> None:
        self._topics = topics
        self._agenda = agenda
        self._options = options
        self._server_facts = {"auth_required": options.auth_required, **server_facts}
        self._last_epoch = 0
        self._answers: dict[type, Callable[[Session, Any, Instant], None]] = {
            commands.Publish: self._publish,
            commands.Finish: self._finish,
            commands.Ready: self._ready,
            commands.MultiPublish: self._multi_publish,
            commands.DeferredPublish: self._deferred_publish,
            commands.TopicNeeded: self._topic_needed,
            commands.Requeue: self._requeue,
            commands.Touch: self._touch,
            commands.Identify: self._identify,
            commands.Authenticate: self._authenticate,
            commands.Subscribe: self._subscribe,
            commands.Close: self._close,
            commands.Nop: self._nop,
            commands.Attach: self._attach,
            commands.Ends: self._ends,
            commands.Read: self._read,
            commands.CommitRange: self._commit_range,
        }

    def execute(self, session: Session, command: commands.Command, now: Instant) -> None:
        """Do what a command asks; its answer takes its place among the session's replies."""
        if session.closing:
            return
        try:
            self._answers[type(command)](session, command, now)
        except RemoteError as error:
            session.reply_error(error)
        self._agenda.dirty[session] = None

    # Permissions

    def authorize(self, session: Session, permissions: Permissions) -> None:
        """An authd has answered to AUTH."""
        if not permissions.count:
            session.reply_error(RemoteError("E_UNAUTHORIZED", "AUTH no authorizations found"))
            return
        session.permissions = permissions
        session.authed = True
        session.auth_identity = permissions.identity
        session.auth_identity_url = permissions.identity_url
        session.reply(frames.response(permissions.reply_data()))

    def _authenticate(
        self, session: Session, _command: commands.Authenticate, _now: Instant
    ) -> None:
        """AUTH that no authd is to be asked about."""
        if session.permissions is not None:
            raise RemoteError("E_INVALID", "AUTH already set")
        raise RemoteError("E_AUTH_DISABLED", "AUTH disabled")

    def _check(
        self, session: Session, command: str, topic: str, channel: str = "", *, reads: bool = False
    ) -> None:
        """Refuse what the client may not do; without a channel, to publish or to read ranges."""
        if not self._options.auth_required:
            return
        if session.permissions is None:
            raise RemoteError("E_AUTH_FIRST", f"AUTH required before {command}")
        if not session.permissions.allows(topic, None if reads else channel):
            text = f'AUTH failed for {command} on "{topic}" "{channel}"'
            raise RemoteError("E_UNAUTHORIZED", text)

    # Publishing

    def add_publish(
        self,
        topic_name: str,
        bodies: Bodies,
        now: Instant,
        done: Done,
        *,
        size_bytes: int,
        command: str,
        defer_ms: int,
    ) -> None:
        """Have messages committed; `done` hears of it, exactly once."""
        due = None
        if defer_ms:
            delay_ns = defer_ms * MILLISECOND_NS
            due = Instant(now.wall_ns + delay_ns, now.mono_ns + delay_ns)
        try:
            topic = self._topics.by_name.get(topic_name)
            if topic is None:
                topic = self._topics.get_or_create(topic_name, now)
            if self._options.max_topic_bytes:
                check_room(topic, len(bodies), size_bytes)
        except Leaving as leaving:
            done(refusal(command, str(leaving), fatal=True))
            return
        except LimitReached as limit:
            done(refusal(command, str(limit), fatal=False))
            return
        except DiskError as error:
            self._agenda.fail(f"topic {topic_name} cannot be created: {error}", error)
            done(refusal(command, error.reason, fatal=False))
            return
        topic.publishing.add(Publish(command, bodies, size_bytes, due, done))

    def _publish(self, session: Session, command: commands.Publish, now: Instant) -> None:
        self._run(session, command, now, "PUB", oks=len(command.bodies))

    def _multi_publish(
        self, session: Session, command: commands.MultiPublish, now: Instant
    ) -> None:
        self._run(session, command, now, "MPUB", oks=1)

    def _deferred_publish(
        self, session: Session, command: commands.DeferredPublish, now: Instant
    ) -> None:
        self._run(session, command, now, "DPUB", oks=1, defer_ms=command.defer_ms)

    def _run(
        self,
        session: Session,
        command: commands.Publish | commands.MultiPublish | commands.DeferredPublish,
        now: Instant,
        name: str,
        *,
        oks: int,
        defer_ms: int = 0,
    ) -> None:
        topic, bodies = command.topic, command.bodies
        if name != "MPUB":  # which was checked before its body was read
            self._check(session, name, topic)
        size_bytes = bodies.size_bytes
        done = PublishReply(
            self._agenda, session, topic, count=len(bodies), oks=oks, size_bytes=size_bytes
        )
        self.add_publish(
            topic, bodies, now, done, size_bytes=size_bytes, command=name, defer_ms=defer_ms
        )

    def _topic_needed(self, session: Session, command: commands.TopicNeeded, now: Instant) -> None:
        self._check(session, "MPUB", command.topic)
        if command.topic not in self._topics.by_name:
            try:
                self._topics.get_or_create(command.topic, now)
            except (Leaving, LimitReached, DiskError):
                return  # the MPUB itself, which follows, is told

    # Consuming

    def _subscribe(self, session: Session, command: commands.Subscribe, now: Instant) -> None:
        if session.heartbeat_interval_ms <= 0:
            raise RemoteError("E_INVALID", HEARTBEATS_OFF)
        self._check(session, "SUB", command.topic, command.channel)
        topic, channel, is_new = self._open(command.topic, command.channel, "SUB", now)
        name = f"{topic.name}:{channel.name}"
        if channel.hold is not None:
            raise RemoteError(
                "E_SUB_FAILED", f"SUB failed channel {name} is held by a range reader"
            )
        most = self._options.max_channel_consumers
        if 0 < most <= len(channel.sessions):
            raise RemoteError(
                "E_SUB_FAILED", f"SUB failed consumers for {name} exceeds limit of {most}"
            )
        session.nearness = nearness(session, self._options)
        channel.subscribe(session)
        session.state = commands.STATE_SUBSCRIBED
        self._answer_when_kept(session, topic, is_new, frames.OK, "SUB")
        session.hold_messages()

    def _open(
        self, topic: str, name: str, command: str, now: Instant
    ) -> tuple[Topic, Channel, bool]:
        code = f"E_{command}_FAILED"
        try:
            found = self._topics.get_or_create(topic, now)
            is_new = name not in found.channels
            return found, found.create_channel(name), is_new
        except (Leaving, LimitReached) as reason:
            raise RemoteError(code, f"{command} failed {reason}") from reason
        except DiskError as error:
            self._agenda.fail(f"topic {topic} cannot be created: {error}", error)
            raise RemoteError(code, f"{command} failed {error.reason}") from error

    def _answer_when_kept(
        self, session: Session, topic: Topic, is_new: bool, answer: bytes, command: str
    ) -> None:
        """A channel that a command made is answered once it would survive a crash (decision 7)."""
        if topic.books is None or (not is_new and topic.books.is_written()):
            session.reply(answer)
            return
        slot = session.slot()

        def kept(error: DiskError | None) -> None:
            if error is None:
                slot.data = answer
            else:
                refused = RemoteError(f"E_{command}_FAILED", f"{command} failed {error.reason}")
                slot.data = frames.error(refused.frame_text())
                session.closing |= refused.fatal
            self._agenda.dirty[session] = None

        if is_new:
            topic.books.when_synced(kept)
        else:
            topic.books.when_written(kept)

    def _ready(self, session: Session, command: commands.Ready, _now: Instant) -> None:
        if session.state == commands.STATE_SUBSCRIBED and session.channel is not None:
            session.ready_count = command.count
            session.channel.opened(session)

    def _finish(self, session: Session, command: commands.Finish, now: Instant) -> None:
        _channel(session).finish(session, command, now)

    def _requeue(self, session: Session, command: commands.Requeue, now: Instant) -> None:
        _channel(session).requeue(session, command, now)

    def _touch(self, session: Session, command: commands.Touch, now: Instant) -> None:
        cap_ns = self._options.limits.max_msg_timeout_ms * MILLISECOND_NS
        _channel(session).touch(session, command, now, cap_ns)

    def _close(self, session: Session, _command: commands.Close, _now: Instant) -> None:
        session.ready_count = 0
        session.state = commands.STATE_CLOSING
        session.reply(frames.CLOSE_WAIT)

    def _nop(self, _session: Session, _command: commands.Nop, _now: Instant) -> None:
        return

    def _identify(self, session: Session, command: commands.Identify, _now: Instant) -> None:
        granted = negotiate(command.body, self._options.limits, self._server_facts)
        session.identify(granted)
        session.reply(frames.response(granted.reply_data()))

    # Range reading

    def _attach(self, session: Session, command: commands.Attach, now: Instant) -> None:
        self._check(session, "ATTACH", command.topic, command.channel)
        topic, channel, created = self._open(command.topic, command.channel, "ATTACH", now)
        epoch = self._last_epoch = max(now.wall_ns, self._last_epoch + 1)
        answer = range_mode.attach(topic, channel, session, epoch, created=created)
        self._answer_when_kept(session, topic, True, frames.response(answer), "ATTACH")

    def _reader(self, session: Session) -> range_mode.RangeReader:
        if session.reader is None:
            session.reader = range_mode.RangeReader(self._agenda, session)
        return session.reader

    def _range_topic(self, name: str, command: str) -> Topic:
        topic = self._topics.by_name.get(name)
        if topic is None:
            raise RemoteError("E_RANGE_FAILED", f"{command} failed topic {name} not found")
        return topic

    def _ends(self, session: Session, command: commands.Ends, _now: Instant) -> None:
        self._check(session, "ENDS", command.topic, reads=True)
        self._reader(session).ends(self._range_topic(command.topic, "ENDS"), command)

    def _read(self, session: Session, command: commands.Read, _now: Instant) -> None:
        self._check(session, "READ", command.topic, reads=True)
        self._reader(session).read(self._range_topic(command.topic, "READ"), command)

    def _commit_range(self, session: Session, command: commands.CommitRange, now: Instant) -> None:
        self._check(session, "COMMIT", command.topic, command.channel)
        topic = self._topics.by_name.get(command.topic)
        channel = topic.channels.get(command.channel) if topic is not None else None
        if topic is None or channel is None:
            missing = f"channel {command.topic}:{command.channel} not found"
            raise RemoteError("E_COMMIT_FAILED", f"COMMIT failed {missing}")
        range_mode.commit(topic, channel, command)
        channel.committed_mono_ns = now.mono_ns
        self._answer_when_kept(session, topic, False, frames.OK, "COMMIT")


def _channel(session: Session) -> Channel:
    """The parser lets FIN, REQ and TOUCH through only behind a SUB."""
    assert session.channel is not None
    return session.channel
