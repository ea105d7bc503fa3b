"""Create, delete, empty, pause and seek: what HTTP offers to administrators.

Each refusal is a `RemoteError` with NSQ's HTTP code. What is done is durable, and the space that it
frees is free, once `Topics.unsettled` says so: turns and the tasks that they hand out lead there.
"""

from __future__ import annotations

from sparq.broker import intervention, seeking
from sparq.broker.channel import Channel, SeekTarget
from sparq.broker.intervention import Indexes, Refused
from sparq.broker.options import LimitReached
from sparq.broker.seeking import Seek
from sparq.broker.topic import Topic
from sparq.broker.topics import Leaving, Topics
from sparq.broker.turn import Turn
from sparq.log.disk import DiskError
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant


class Admin:
    """The administrators' actions."""

    def __init__(self, topics: Topics, turn: Turn) -> None:
        self._topics = topics
        self._turn = turn

    def create_topic(self, name: str, now: Instant) -> None:
        """Make sure that the topic exists."""
        try:
            topic = self._topics.get_or_create(name, now)
        except Leaving as leaving:
            raise RemoteError("EXITING", str(leaving)) from leaving
        except LimitReached as limit:
            raise RemoteError("LIMIT_REACHED", str(limit)) from limit
        except DiskError as error:
            self._turn.health.fail(f"topic {name} cannot be created: {error}", error)
            raise RemoteError("INTERNAL_ERROR", error.reason) from error
        self._settle(topic, now)

    def delete_topic(self, name: str, now: Instant) -> None:
        """Drop the topic with its channels and messages, and end its consumers' connections."""
        self._topic(name)
        self._topics.delete(name)

    def empty_topic(self, name: str, now: Instant) -> None:
        """Drop what no channel sees yet."""
        topic = self._topic(name)
        topic.empty()
        self._settle(topic, now, frees=True)

    def pause_topic(self, name: str, paused: bool, now: Instant) -> None:
        """Stop or resume the flow from the topic to its channels."""
        topic = self._topic(name)
        topic.pause(paused)
        self._settle(topic, now)

    def create_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Make sure that the channel exists; its topic must."""
        topic = self._topic(topic_name)
        try:
            topic.create_channel(name)
        except LimitReached as limit:
            raise RemoteError("LIMIT_REACHED", str(limit)) from limit
        self._settle(topic, now)

    def delete_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Drop the channel and end its consumers' connections."""
        topic, channel = self._channel(topic_name, name)
        self._topics.delete_channel(topic, channel.name)
        self._settle(topic, now, frees=True)
        self._topics.forget_if_unused(topic)

    def empty_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Drop what waits, is in flight or is deferred."""
        topic, channel = self._channel(topic_name, name)
        channel.empty()
        topic.wake(channel)
        self._settle(topic, now, frees=True)

    def pause_channel(self, topic_name: str, name: str, paused: bool, now: Instant) -> None:
        """Stop or resume deliveries to the channel's consumers."""
        topic, channel = self._channel(topic_name, name)
        channel.pause(paused)
        topic.wake(channel)
        self._settle(topic, now)

    def seek_channel(self, topic_name: str, name: str, target: SeekTarget, now: Instant) -> None:
        """Do what `seek` does, for those who do not ask where the channel has gone."""
        self.seek(topic_name, name, target, now)

    def seek(
        self, topic_name: str, name: str, target: SeekTarget, now: Instant, *, dry_run: bool = False
    ) -> Seek:
        """Have the channel go on from another place of the log: replay, or a leap ahead.

        What is in flight or deferred is forgotten. A time may need a look at the disk first; then
        the channel moves when the task that is queued now is done. The result tells where it went
        once the tasks of this turn and the next are done. A dry run only tells where it would go.
        """
        topic, channel = self._channel(topic_name, name)
        if channel.hold is not None:
            raise RemoteError("INVALID_REQUEST", "a range reader holds the channel")
        seek = seeking.begin(self._turn, topic, channel, target, moves=not dry_run)
        self._settle(topic, now)
        return seek

    def act_on_messages(
        self, action: str, topic_name: str, name: str | None, indexes: Indexes, now: Instant
    ) -> Refused:
        """Requeue, finish or cancel single messages (`intervention.ACTIONS`).

        Args:
            action: which.
            topic_name: of which topic.
            name: in which channel; None: in all, which only `cancel` does.
            indexes: which messages, ascending.
            now: the time.
        """
        if name is None:
            topic = self._topic(topic_name)
            refused = intervention.cancel_everywhere(topic, indexes)
            channels = list(topic.channels.values())
        else:
            topic, channel = self._channel(topic_name, name)
            refused = intervention.ACTIONS[action](topic, channel, indexes)
            channels = [channel]
        for channel in channels:
            topic.wake(channel)
        self._settle(topic, now)
        return refused

    def _settle(self, topic: Topic, now: Instant, *, frees: bool = False) -> None:
        """Have a decision kept for good; `frees`: and what nobody needs any more deleted."""
        topic.settle(now, frees=frees)
        self._turn.touch(topic)

    def _topic(self, name: str) -> Topic:
        topic = self._topics.by_name.get(name)
        if topic is None:
            raise RemoteError("TOPIC_NOT_FOUND")
        return topic

    def _channel(self, topic_name: str, name: str) -> tuple[Topic, Channel]:
        topic = self._topic(topic_name)
        channel = topic.channels.get(name)
        if channel is None:
            raise RemoteError("CHANNEL_NOT_FOUND")
        return topic, channel
