"""Executes the commands of a connection.

One table maps each command class to the method that executes it. A refusal is a `RemoteError`; it
is raised where the problem is found and turned into a reply in one place, `Commands.execute`. What
the parser refuses is not a command and does not come here: see `Broker.fail`.
Publishes, and commands that must be synced before they are answered, take a reply slot; all others
are answered at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sparq.broker.bounds import admit
from sparq.broker.channel import Channel
from sparq.broker.options import BrokerOptions, LimitReached
from sparq.broker.publishing import Answered, Publish
from sparq.broker.range_mode import Ranges, commit
from sparq.broker.session import Proximity, V2Session
from sparq.broker.topic import Topic
from sparq.broker.topics import Leaving, Topics
from sparq.broker.turn import Reply, Turn
from sparq.log.disk import DiskError
from sparq.options.units import MILLISECOND
from sparq.protocol import commands, layout
from sparq.protocol.errors import RemoteError
from sparq.protocol.identify import negotiate
from sparq.protocol.instant import Instant

if TYPE_CHECKING:
    from sparq.broker.permissions import Permissions

HEARTBEATS_OFF: Final = "cannot SUB with heartbeats disabled"


class Commands:
    """Executes commands against the topics.

    Attributes:
        subscriptions: the topic and channel that each session has subscribed to.
        ranges: the range readers' holds and reads, by session.
    """

    def __init__(
        self, topics: Topics, turn: Turn, options: BrokerOptions, server_facts: Mapping[str, object]
    ) -> None:
        self.subscriptions: dict[V2Session, tuple[Topic, Channel]] = {}
        self.ranges = Ranges(turn)
        self._topics = topics
        self._turn = turn
        self._options = options
        self._server_facts = {"auth_required": options.auth_required, **server_facts}
        self._last_epoch = 0
        self._execute: dict[type, Callable[[V2Session, Any, Instant], None]] = {
            commands.PublishRun: partial(self._send, name="PUB"),
            commands.Finish: self._finish,
            commands.Ready: self._ready,
            commands.MultiPublish: partial(self._send, name="MPUB"),
            commands.DeferredPublish: partial(self._send, name="DPUB"),
            commands.TopicNeeded: self._topic_needed,
            commands.Requeue: self._requeue,
            commands.Touch: self._touch,
            commands.Identify: self._identify,
            commands.Authenticate: self._authenticate,
            commands.Subscribe: self._subscribe,
            commands.Close: self._close,
            commands.Nop: self._nop,
            commands.Attach: self._attach,
            commands.ReadEnds: self._ends,
            commands.Read: self._read,
            commands.CommitRange: self._commit_range,
        }

    def execute(self, session: V2Session, command: commands.Command, now: Instant) -> None:
        """Execute a command; replies keep the order of the session's commands."""
        if session.closing:
            return
        try:
            self._execute[type(command)](session, command, now)
        except RemoteError as error:
            session.reply_error(error)
        self._turn.sessions[session] = None

    # Permissions

    def authorize(self, session: V2Session, permissions: Permissions) -> None:
        """Apply authd's answer to an AUTH command."""
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

    def _check(
        self,
        session: V2Session,
        command: str,
        topic: str,
        channel: str = "",
        *,
        reads: bool = False,
    ) -> None:
        """Check a permission. An empty channel means publish; `reads` means reading ranges."""
        if not self._options.auth_required:
            return
        if session.permissions is None:
            raise RemoteError("E_AUTH_FIRST", f"AUTH required before {command}")
        if not session.permissions.allows(topic, None if reads else channel):
            text = f'AUTH failed for {command} on "{topic}" "{channel}"'
            raise RemoteError("E_UNAUTHORIZED", text)

    # Publishing

    def publish(self, publish: Publish, now: Instant) -> None:
        """Submit messages for commit, or refuse them.

        The publish is answered exactly once in either case.
        """
        # Looked up here, so that a publish to an existing topic costs no further call.
        topic = self._topics.by_name.get(publish.topic)
        ready_ns = 0
        drains = self._topics.drains
        try:
            if drains.is_on and publish.letters is None:
                drains.check(publish.topic, publish.messages)
            if topic is None:
                topic = self._topics.get_or_create(publish.topic, now)
            if topic.scope.is_limited:
                ready_ns = admit(topic, publish, now)
        except Leaving as leaving:
            self._refuse(publish, str(leaving), fatal=True)
        except LimitReached as limit:
            self._refuse(publish, str(limit), fatal=False)
        except DiskError as error:
            self._refuse(publish, error.reason, fatal=False)
        else:
            turn = self._turn
            if ready_ns:
                topic.publishing.commit_later(publish, ready_ns)
                topic.expect(ready_ns)
            else:
                topic.publishing.add(publish)
            turn.backlog_bytes += publish.size_bytes
            # `add_topic`, without a call: this runs for each publish.
            turn.topics[topic] = None

    def _refuse(self, publish: Publish, reason: str, *, fatal: bool) -> None:
        # `Broker._answer` subtracts it again, as for a publish that was accepted.
        self._turn.backlog_bytes += publish.size_bytes
        self._turn.answers.append(Answered([publish], reason, fatal))
        if publish.session is not None:
            publish.session.closing |= fatal

    def _send(
        self,
        session: V2Session,
        command: commands.PublishRun | commands.MultiPublish | commands.DeferredPublish,
        now: Instant,
        *,
        name: str,
    ) -> None:
        topic, bodies = command.topic, command.bodies
        # An MPUB's permission was checked before its body was read: see `_topic_needed`.
        if self._options.auth_required and name != "MPUB":
            self._check(session, name, topic)
        count = len(bodies.sizes)
        size_bytes = int(bodies.sizes[0]) if count == 1 else bodies.size_bytes
        session.uncommitted_bytes += size_bytes
        slot = session.slot()
        due: Instant | None = None
        if isinstance(command, commands.DeferredPublish):
            due = due_after(command.defer_ms, now)
        oks = count if name == "PUB" else 1
        self.publish(Publish(topic, name, bodies, count, size_bytes, due, session, slot, oks), now)

    def _topic_needed(
        self, session: V2Session, command: commands.TopicNeeded, now: Instant
    ) -> None:
        self._check(session, "MPUB", command.topic)
        if command.topic not in self._topics.by_name and not self._topics.drains.refusal(
            command.topic
        ):
            try:
                self._topics.get_or_create(command.topic, now)
            except (Leaving, LimitReached, DiskError):
                return  # the MPUB that follows is answered with this error

    # Consuming

    def _subscribe(self, session: V2Session, command: commands.Subscribe, now: Instant) -> None:
        if session.heartbeat_interval_ms <= 0:
            raise RemoteError("E_INVALID", HEARTBEATS_OFF)
        self._check(session, "SUB", command.topic, command.channel)
        topic, channel, is_new = self._open(command.topic, command.channel, "SUB", now)
        name = f"{topic.name}:{channel.name}"
        if channel.hold is not None:
            raise RemoteError(
                "E_SUB_FAILED", f"SUB failed channel {name} is held by a range reader"
            )
        most = channel.settings.max_channel_consumers
        if 0 < most <= len(channel.sessions):
            raise RemoteError(
                "E_SUB_FAILED", f"SUB failed consumers for {name} exceeds limit of {most}"
            )
        session.nearness = self._nearness(session)
        channel.subscribe(session)
        self.subscriptions[session] = topic, channel
        self._turn.wake(topic, channel)
        session.state = commands.STATE_SUBSCRIBED
        self._answer_when_kept(session, topic, is_new, layout.OK, "SUB")
        # After its slot is taken: no message of this turn may overtake the OK.
        session.hold_messages()

    def _nearness(self, session: V2Session) -> Proximity | None:
        """A consumer's location relative to this nsqd; None: delivery does not depend on it."""
        options = self._options
        if not options.topology_aware:
            return None
        if session.topology_zone == options.topology_zone:
            return Proximity.ZONE
        is_near = session.topology_region == options.topology_region
        return Proximity.REGION if is_near else Proximity.OTHER

    def _open(
        self, topic: str, name: str, command: str, now: Instant
    ) -> tuple[Topic, Channel, bool]:
        code = f"E_{command}_FAILED"
        try:
            found = self._topics.get_or_create(topic, now)
            is_new = name not in found.channels
            channel = found.create_channel(name)
        except (Leaving, LimitReached) as reason:
            raise RemoteError(code, f"{command} failed {reason}") from reason
        except DiskError as error:
            raise RemoteError(code, f"{command} failed {error.reason}") from error
        self._turn.add_topic(found)
        return found, channel, is_new

    def _answer_when_kept(
        self, session: V2Session, topic: Topic, is_new: bool, answer: bytes, command: str
    ) -> None:
        """Answer now, or once the ledger is written; for a new channel, once it is synced."""
        if topic.writer is None or (not is_new and topic.writer.is_written()):
            session.reply(answer)
            return
        reply = Reply(session, session.slot(), answer, command)
        if is_new:
            # A channel that a power cut removed would miss what is published after its SUB.
            topic.writer.wait_for_sync(reply)
        else:
            topic.writer.wait_for_write(reply)
        self._turn.add_topic(topic)

    def _ready(self, session: V2Session, command: commands.Ready, _now: Instant) -> None:
        if session.state == commands.STATE_SUBSCRIBED:
            topic, channel = self.subscriptions[session]
            session.ready_count = command.count
            channel.opened(session)
            self._turn.wake(topic, channel)

    def _finish(self, session: V2Session, command: commands.Finish, now: Instant) -> None:
        # The parser accepts FIN, REQ and TOUCH only after a SUB.
        topic, channel = self.subscriptions[session]
        channel.finish(session, command, now)
        self._turn.wake(topic, channel)

    def _requeue(self, session: V2Session, command: commands.Requeue, now: Instant) -> None:
        topic, channel = self.subscriptions[session]
        channel.requeue(session, command, now)
        self._turn.wake(topic, channel)

    def _touch(self, session: V2Session, command: commands.Touch, now: Instant) -> None:
        cap_ns = self._options.limits.max_msg_timeout_ms * MILLISECOND
        self.subscriptions[session][1].touch(session, command, now, cap_ns)

    def _close(self, session: V2Session, _command: commands.Close, _now: Instant) -> None:
        # No further messages; those in flight can still be finished, as in NSQ.
        session.ready_count = 0
        session.state = commands.STATE_CLOSING
        session.reply(layout.CLOSE_WAIT)

    def _nop(self, _session: V2Session, _command: commands.Nop, _now: Instant) -> None:
        return

    def _identify(self, session: V2Session, command: commands.Identify, _now: Instant) -> None:
        granted = negotiate(command.body, self._options.limits, self._server_facts)
        session.identify(granted)
        session.reply(layout.response(granted.reply_data()))

    # Range reading

    def _attach(self, session: V2Session, command: commands.Attach, now: Instant) -> None:
        self._check(session, "ATTACH", command.topic, command.channel)
        topic, channel, created = self._open(command.topic, command.channel, "ATTACH", now)
        # From the clock, since epochs must ascend over restarts and are not stored; by 1 while the
        # clock is set back.
        epoch = self._last_epoch = max(now.wall_ns, self._last_epoch + 1)
        answer = self.ranges.attach(topic, channel, session, epoch, created=created)
        self._turn.wake(topic, channel)
        self._answer_when_kept(session, topic, True, layout.response(answer), "ATTACH")

    def _range_topic(self, name: str, command: str) -> Topic:
        topic = self._topics.by_name.get(name)
        if topic is None:
            raise RemoteError("E_RANGE_FAILED", f"{command} failed topic {name} not found")
        return topic

    def _ends(self, session: V2Session, command: commands.ReadEnds, _now: Instant) -> None:
        self._check(session, "ENDS", command.topic, reads=True)
        self.ranges.ends(session, self._range_topic(command.topic, "ENDS"), command)

    def _read(self, session: V2Session, command: commands.Read, _now: Instant) -> None:
        self._check(session, "READ", command.topic, reads=True)
        self.ranges.read(session, self._range_topic(command.topic, "READ"), command)

    def _commit_range(
        self, session: V2Session, command: commands.CommitRange, now: Instant
    ) -> None:
        self._check(session, "COMMIT", command.topic, command.channel)
        topic = self._topics.by_name.get(command.topic)
        channel = topic.channels.get(command.channel) if topic is not None else None
        if topic is None or channel is None:
            missing = f"channel {command.topic}:{command.channel} not found"
            raise RemoteError("E_COMMIT_FAILED", f"COMMIT failed {missing}")
        commit(topic, channel, command)
        self._turn.wake(topic, channel)
        channel.committed_mono_ns = now.mono_ns
        # Written, not synced: if a power cut undoes it, the cursor is further back, and the log
        # still has the messages, since their files are deleted only after a sync.
        self._answer_when_kept(session, topic, False, layout.OK, "COMMIT")


def due_after(defer_ms: int, now: Instant) -> Instant | None:
    """When a message deferred by `defer_ms` is due; None: it is not deferred."""
    if not defer_ms:
        return None
    delay_ns = defer_ms * MILLISECOND
    return Instant(now.wall_ns + delay_ns, now.mono_ns + delay_ns)
