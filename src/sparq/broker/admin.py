"""Create, delete, empty, pause, seek and intervene: what HTTP offers to administrators.

Each refusal is a `RemoteError` with NSQ's HTTP code. What is done is durable, and the space that it
frees is free, once `Topics.unsettled` says so: turns and the tasks that they hand out lead there.

Of what is done with single messages of a channel (requeue, finish, cancel):

1. Each message is looked for where it is (see `channel`) and taken from there; what becomes of it
   is told to the ledger, so that it outlives the process as a FIN or a REQ does.
2. A consumer whose message is taken is told nothing; its FIN fails as after a timeout.
3. A deferred publish that is taken before its time is `apart`: other channels still wait for it.
4. A range reader's channel is its reader's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.broker import seeking
from sparq.broker.channel import Channel, SeekTarget
from sparq.broker.letters import bury, unclaim
from sparq.broker.options import LimitReached
from sparq.broker.seeking import Seek
from sparq.broker.slots import ranges_of
from sparq.broker.topic import Topic
from sparq.broker.topics import Leaving, Topics
from sparq.broker.turn import Turn
from sparq.log.disk import DiskError
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant

Indexes = NDArray[np.int64]
Refused = dict[int, str]
"""Why, by index; what is not in it is done."""

IDS_MAX: Final = 1000
"""So many messages of one request."""

GONE: Final = "the log does not have it"
UNSEEN: Final = "the channel does not see it yet, its topic is paused"
FINISHED: Final = "it is finished"
CANCELLED: Final = "it was cancelled"
NOT_DEFERRED: Final = "it is not deferred"
DEFERRED: Final = "it is deferred"
HELD: Final = "it is in flight"


def requeue(topic: Topic, channel: Channel, indexes: Indexes) -> Refused:
    """Have messages delivered as soon as possible, also those that are finished.

    Args:
        topic: the channel's.
        channel: where.
        indexes: which, ascending, at most IDS_MAX.

    Raises:
        RemoteError: the channel is read by ranges.
    """
    refused, rest = _seen(topic, channel, indexes)
    flying = channel.in_flight.take(rest)
    channel.take_back(flying)
    rest = np.setdiff1d(rest, flying.indexes)
    waits = _waiting(channel, rest)
    rest = rest[~waits]
    delayed = dict(channel.delays.take(set(rest.tolist())))
    gone = topic.stream.due.cancelled.intersection(rest.tolist()).difference(delayed)
    refused.update(dict.fromkeys(sorted(gone), CANCELLED))
    rest = rest[~np.isin(rest, np.array([*refused], np.int64))]
    # Also what lies before the channel's start: it must not count as due for the others.
    pending = _take_apart(channel, rest, start=0)
    attempts = dict.fromkeys(rest.tolist(), 0) | delayed
    if len(rest):
        counts = np.array(list(attempts.values()), np.int64)
        if len(pending):
            channel.ledger.apart(channel.name, pending)
        channel.ledger.requeued(channel.name, rest, np.zeros(len(rest), np.int64), counts)
        channel.again.push_many(rest, counts.astype(np.uint16))
    return refused


def finish(topic: Topic, channel: Channel, indexes: Indexes) -> Refused:
    """Finish messages wherever they are; parameters and errors as `requeue`'s."""
    refused, rest = _seen(topic, channel, indexes)
    flying = channel.in_flight.take(rest)
    channel.returned(flying)
    again, _ = channel.again.remove(rest)
    delayed = [index for index, _ in channel.delays.take(set(rest.tolist()))]
    pending = _take_apart(channel, rest, channel.start)
    elsewhere = np.concatenate((flying.indexes, again, np.array(delayed, np.int64), pending))
    others = np.setdiff1d(rest, elsewhere)
    fresh = others[_fresh(channel, others)]
    if len(fresh):
        channel.skips.insert(fresh.tolist())
    _finished(channel, pending, np.union1d(elsewhere, fresh))
    refused.update(dict.fromkeys(np.setdiff1d(others, fresh).tolist(), FINISHED))
    return refused


def cancel(topic: Topic, channel: Channel, indexes: Indexes) -> Refused:
    """Drop deferred messages from a channel; parameters and errors as `requeue`'s."""
    _refuse_ranges(channel)
    delayed = [index for index, _ in channel.delays.take(set(indexes.tolist()))]
    pending = _take_apart(channel, indexes, channel.start)
    gone = np.union1d(np.array(delayed, np.int64), pending)
    _finished(channel, pending, gone)
    return dict.fromkeys(np.setdiff1d(indexes, gone).tolist(), NOT_DEFERRED)


def cancel_everywhere(topic: Topic, indexes: Indexes) -> Refused:
    """Drop deferred publishes from all channels, also from those to come, and what REQ has deferred
    from each channel that has it so."""
    wanted = set(indexes.tolist())
    done = topic.stream.due.cancel(wanted)
    if done and topic.books is not None:
        topic.books.ledger.apart("", sorted(done))
    for channel in topic.channels.values():
        channel.apart -= done
        delayed = sorted(index for index, _ in channel.delays.take(wanted))
        _finished(channel, np.empty(0, np.int64), np.array(delayed, np.int64))
        done.update(delayed)
    return dict.fromkeys(sorted(wanted - done), NOT_DEFERRED)


Action = Callable[[Topic, Channel, Indexes], Refused]
ACTIONS: Final[dict[str, Action]] = {"requeue": requeue, "finish": finish, "cancel": cancel}


def claim(topic: Topic, channel: Channel, indexes: Indexes, now: Instant) -> Refused:
    """Have messages that wait given to nobody until they are sent back, or `unclaim`."""
    refused, rest = _seen(topic, channel, indexes)
    held = channel.in_flight.rows_of(rest).indexes
    rest = np.setdiff1d(rest, held)
    again, counts = channel.again.remove(rest)
    attempts = dict(zip(again.tolist(), counts.tolist(), strict=True))
    attempts |= channel.delays.take(set(rest.tolist()))
    others = np.array([index for index in rest.tolist() if index not in attempts], np.int64)
    fresh = others[_fresh(channel, others)].tolist()
    if fresh:
        channel.skips.insert(fresh)
    taken = sorted((attempts | dict.fromkeys(fresh, 0)).items())
    for index in np.setdiff1d(others, np.array(fresh, np.int64)).tolist():
        refused[index] = DEFERRED if channel.stream.due.contains(index) else FINISHED
    refused.update(dict.fromkeys(held.tolist(), HELD))
    columns = np.array(taken, np.int64).reshape(-1, 2).T
    bury(channel, columns[0], columns[1].astype(np.uint16), now)
    return refused


def _refuse_ranges(channel: Channel) -> None:
    if channel.range_epoch:
        raise RemoteError("INVALID_REQUEST", "a range reader has the channel")


def _seen(topic: Topic, channel: Channel, indexes: Indexes) -> tuple[Refused, Indexes]:
    """Refuse what is not stored, or is not for the channel's eyes yet; returns the others, too."""
    _refuse_ranges(channel)
    looking, end = topic.stream.log.looking, topic.stream.end
    refused: Refused = {}
    for index in indexes.tolist():
        if looking.part(index) is None:
            refused[index] = GONE
        elif index >= end:
            refused[index] = UNSEEN
    return refused, indexes[~np.isin(indexes, np.array([*refused], np.int64))]


def _take_apart(channel: Channel, indexes: Indexes, start: int) -> Indexes:
    """Of ascending indexes, the deferred publishes from `start` on that are not due yet: the
    channel waits for them no more."""
    pending = channel.stream.due.pending
    found = [
        index
        for index in indexes.tolist()
        if index in pending and index >= start and index not in channel.apart
    ]
    channel.apart.update(found)
    return np.array(found, np.int64)


def _fresh(channel: Channel, indexes: Indexes) -> NDArray[np.bool_]:
    """Which of the indexes, which are nowhere else, the cursor will deliver."""
    skips, due = channel.skips, channel.stream.due
    return np.array(
        [
            index >= channel.cursor and skips.end_at(index) == index and not due.contains(index)
            for index in indexes.tolist()
        ],
        np.bool_,
    )


def _waiting(channel: Channel, indexes: Indexes) -> NDArray[np.bool_]:
    """Which of the indexes wait already."""
    return np.isin(indexes, channel.again.having(indexes)) | _fresh(channel, indexes)


def _finished(channel: Channel, pending: Indexes, indexes: Indexes) -> None:
    """Note that ascending indexes are finished, of which the pending ones are apart now."""
    if len(pending):
        channel.ledger.apart(channel.name, pending)
    if len(indexes):
        channel.ledger.finished(channel.name, *ranges_of(indexes))


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
        """Requeue, finish or cancel single messages (`ACTIONS`).

        Args:
            action: which.
            topic_name: of which topic.
            name: in which channel; None: in all, which only `cancel` does.
            indexes: which messages, ascending.
            now: the time.
        """
        if name is None:
            topic = self._topic(topic_name)
            refused = cancel_everywhere(topic, indexes)
            channels = list(topic.channels.values())
        else:
            topic, channel = self._channel(topic_name, name)
            refused = ACTIONS[action](topic, channel, indexes)
            channels = [channel]
        for channel in channels:
            topic.wake(channel)
        self._settle(topic, now)
        return refused

    def claim(self, topic_name: str, name: str, indexes: Indexes, now: Instant) -> Refused:
        """Have messages that wait in a channel kept for `Broker.send_back`, or `unclaim`.

        Args:
            topic_name: the topic.
            name: the channel.
            indexes: which, ascending, at most IDS_MAX.
            now: the time.
        """
        topic, channel = self._channel(topic_name, name)
        return claim(topic, channel, indexes, now)

    def unclaim(self, channel: Channel, indexes: Indexes) -> None:
        """Have claimed messages wait again, those that still are."""
        unclaim(channel, indexes)
        topic = self._topics.by_name.get(channel.stream.topic)
        if topic is not None and not channel.is_retired:
            topic.wake(channel)
            self._turn.touch(topic)

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
