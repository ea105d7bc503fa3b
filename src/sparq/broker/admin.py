"""Administrators' actions (HTTP): create, delete, empty, pause, seek, and act on single messages.

Each refusal is a `RemoteError` with NSQ's HTTP code. An action is complete (durable, and the disk
space that it frees is free) once `Topics.not_durable_reason` returns None. Run turns, and the tasks
they return, until then.

Rules for actions on single messages of a channel (requeue, finish, cancel):

1. Each message is looked up wherever the channel holds it (see `channel`) and removed from there.
   The result is noted in the ledger, so it survives a restart as a FIN or a REQ does.
2. A consumer is not notified when a message in flight is taken from it; its FIN fails as it would
   after a timeout.
3. A deferred publish that is taken before it is due is `apart`: other channels still wait for it.
4. These actions are refused on a channel that is read by ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.broker import seeking
from sparq.broker.channel import Channel, SeekTarget
from sparq.broker.dead_letters import mark_as_claimed, unclaim
from sparq.broker.options import LimitReached
from sparq.broker.seeking import Seek
from sparq.broker.slots import ranges_of
from sparq.broker.topic import Topic
from sparq.broker.topics import Leaving, Topics
from sparq.broker.turn import Turn
from sparq.log.disk import DiskError
from sparq.log.records import RecordKind
from sparq.protocol.errors import RemoteError
from sparq.protocol.instant import Instant

Indexes = NDArray[np.int64]
Refused = dict[int, str]
"""Refusals: reasons by message index; an index that is missing was processed."""

IDS_MAX: Final = 1000
"""Maximum number of messages per request."""

GONE: Final = "not in the log"
UNSEEN: Final = "not visible yet: the topic is paused"
FINISHED: Final = "it is finished"
CANCELLED: Final = "it was cancelled"
NOT_DEFERRED: Final = "it is not deferred"
DEFERRED: Final = "it is deferred"
HELD: Final = "it is in flight"


def requeue(topic: Topic, channel: Channel, indexes: Indexes) -> Refused:
    """Redeliver messages as soon as possible, even if they are finished.

    Args:
        topic: the channel's topic.
        channel: the channel.
        indexes: the messages, ascending, at most IDS_MAX.

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
    # Even before the channel's start: such a message must not count as due for other channels.
    pending = _take_apart(channel, rest, start=0)
    # `|` keeps the order of `rest`, so the counts below fit the indexes.
    attempts = dict.fromkeys(rest.tolist(), 0) | delayed
    if len(rest):
        counts = np.array(list(attempts.values()), np.int64)
        if len(pending):
            channel.ledger.note(RecordKind.DETACHED, channel.name, pending)
        channel.ledger.note(
            RecordKind.REQUEUED, channel.name, rest, np.zeros(len(rest), np.int64), counts
        )
        channel.requeued.push_many(rest, counts.astype(np.uint16))
    return refused


def finish(topic: Topic, channel: Channel, indexes: Indexes) -> Refused:
    """Finish messages in any state; parameters and errors as in `requeue`."""
    refused, rest = _seen(topic, channel, indexes)
    flying = channel.in_flight.take(rest)
    # Opens the owners' windows only; `take_back` would also make the messages ready again.
    channel.returned(flying)
    again, _ = channel.requeued.remove(rest)
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
    """Drop deferred messages from a channel; parameters and errors as in `requeue`."""
    _refuse_ranges(channel)
    delayed = [index for index, _ in channel.delays.take(set(indexes.tolist()))]
    pending = _take_apart(channel, indexes, channel.start)
    gone = np.union1d(np.array(delayed, np.int64), pending)
    _finished(channel, pending, gone)
    return dict.fromkeys(np.setdiff1d(indexes, gone).tolist(), NOT_DEFERRED)


def cancel_everywhere(topic: Topic, indexes: Indexes) -> Refused:
    """Drop deferred messages from all channels.

    Deferred publishes are dropped for future channels, too; a message that REQ has deferred, only
    from each channel that holds it so.
    """
    wanted = set(indexes.tolist())
    done = topic.stream.due.cancel(wanted)
    if done and topic.writer is not None:
        topic.writer.ledger.note(RecordKind.DETACHED, "", sorted(done))
    for channel in topic.channels.values():
        channel.detached -= done
        delayed = sorted(index for index, _ in channel.delays.take(wanted))
        _finished(channel, np.empty(0, np.int64), np.array(delayed, np.int64))
        done.update(delayed)
    return dict.fromkeys(sorted(wanted - done), NOT_DEFERRED)


Action = Callable[[Topic, Channel, Indexes], Refused]
ACTIONS: Final[dict[str, Action]] = {"requeue": requeue, "finish": finish, "cancel": cancel}


def claim(topic: Topic, channel: Channel, indexes: Indexes, now: Instant) -> Refused:
    """Withhold waiting messages from consumers until they are sent back or released (`unclaim`)."""
    refused, rest = _seen(topic, channel, indexes)
    held = channel.in_flight.rows_of(rest).indexes
    rest = np.setdiff1d(rest, held)
    again, counts = channel.requeued.remove(rest)
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
    # In flight without a session: no timeout returns them, and a FIN of a consumer fails.
    mark_as_claimed(channel, columns[0], columns[1].astype(np.uint16), now)
    return refused


def _refuse_ranges(channel: Channel) -> None:
    if channel.range_epoch:
        raise RemoteError("INVALID_REQUEST", "a range reader holds the channel")


def _seen(topic: Topic, channel: Channel, indexes: Indexes) -> tuple[Refused, Indexes]:
    """Refuse messages that are not stored or not yet visible; returns the other indexes, too."""
    _refuse_ranges(channel)
    inspection, end = topic.stream.log.inspection, topic.stream.end
    refused: Refused = {}
    for index in indexes.tolist():
        if inspection.part(index) is None:
            refused[index] = GONE
        elif index >= end:
            refused[index] = UNSEEN
    return refused, indexes[~np.isin(indexes, np.array([*refused], np.int64))]


def _take_apart(channel: Channel, indexes: Indexes, start: int) -> Indexes:
    """Have the channel stop waiting for some deferred publishes; returns their indexes.

    These are the ones among the ascending `indexes`, from `start` on, that are not due yet.
    """
    pending = channel.stream.due.pending
    found = [
        index
        for index in indexes.tolist()
        if index in pending and index >= start and index not in channel.detached
    ]
    channel.detached.update(found)
    return np.array(found, np.int64)


def _fresh(channel: Channel, indexes: Indexes) -> NDArray[np.bool_]:
    """Which of these indexes the cursor will still deliver; no queue may hold any of them."""
    skips, due = channel.skips, channel.stream.due
    return np.array(
        [
            index >= channel.cursor and skips.end_at(index) == index and not due.contains(index)
            for index in indexes.tolist()
        ],
        np.bool_,
    )


def _waiting(channel: Channel, indexes: Indexes) -> NDArray[np.bool_]:
    """Which of the indexes are already waiting for delivery."""
    return np.isin(indexes, channel.requeued.having(indexes)) | _fresh(channel, indexes)


def _finished(channel: Channel, pending: Indexes, indexes: Indexes) -> None:
    """Note ascending indexes as finished, and the `pending` ones among them as apart."""
    if len(pending):
        channel.ledger.note(RecordKind.DETACHED, channel.name, pending)
    if len(indexes):
        channel.ledger.note(RecordKind.FINISHED, channel.name, *ranges_of(indexes))


class Admin:
    """The administrators' actions."""

    def __init__(self, topics: Topics, turn: Turn) -> None:
        self._topics = topics
        self._turn = turn

    def create_topic(self, name: str, now: Instant) -> None:
        """Create the topic unless it exists."""
        try:
            topic = self._topics.get_or_create(name, now)
        except Leaving as leaving:
            raise RemoteError("EXITING", str(leaving)) from leaving
        except LimitReached as limit:
            raise RemoteError("LIMIT_REACHED", str(limit)) from limit
        except DiskError as error:
            raise RemoteError("INTERNAL_ERROR", error.reason) from error
        self._make_durable(topic, now)

    def delete_topic(self, name: str, now: Instant) -> None:
        """Delete the topic with its channels and messages; its consumers' connections close."""
        self._topic(name)
        self._topics.delete(name)

    def empty_topic(self, name: str, now: Instant) -> None:
        """Drop the messages that no channel sees yet."""
        topic = self._topic(name)
        topic.empty()
        self._make_durable(topic, now, frees=True)

    def pause_topic(self, name: str, paused: bool, now: Instant) -> None:
        """Stop or resume the flow from the topic to its channels."""
        topic = self._topic(name)
        topic.pause(paused)
        self._make_durable(topic, now)

    def create_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Create the channel unless it exists; the topic must exist."""
        topic = self._topic(topic_name)
        try:
            topic.create_channel(name)
        except LimitReached as limit:
            raise RemoteError("LIMIT_REACHED", str(limit)) from limit
        self._make_durable(topic, now)

    def delete_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Delete the channel; its consumers' connections close."""
        topic, channel = self._channel(topic_name, name)
        self._topics.delete_channel(topic, channel.name)
        self._make_durable(topic, now, frees=True)
        self._topics.forget_if_unused(topic)

    def empty_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Drop all messages that wait, are in flight or are deferred."""
        topic, channel = self._channel(topic_name, name)
        channel.empty()
        topic.wake(channel)
        self._make_durable(topic, now, frees=True)

    def pause_channel(self, topic_name: str, name: str, paused: bool, now: Instant) -> None:
        """Stop or resume deliveries to the channel's consumers."""
        topic, channel = self._channel(topic_name, name)
        channel.pause(paused)
        topic.wake(channel)
        self._make_durable(topic, now)

    def seek_channel(self, topic_name: str, name: str, target: SeekTarget, now: Instant) -> None:
        """Do what `seek` does, for callers that do not need the resulting position."""
        self.seek(topic_name, name, target, now)

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
        topic, channel = self._channel(topic_name, name)
        if channel.hold is not None:
            raise RemoteError("INVALID_REQUEST", "a range reader holds the channel")
        seek = seeking.begin(
            self._turn, topic, channel, target, Seek(moves=not dry_run, may_skip=may_skip)
        )
        self._make_durable(topic, now)
        return seek

    def act_on_messages(
        self, action: str, topic_name: str, name: str | None, indexes: Indexes, now: Instant
    ) -> Refused:
        """Requeue, finish or cancel single messages (`ACTIONS`).

        Args:
            action: a key of `ACTIONS`.
            topic_name: the topic.
            name: the channel; None: all channels, which only `cancel` supports.
            indexes: the messages, ascending.
            now: the current time.
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
        self._make_durable(topic, now)
        return refused

    def claim(self, topic_name: str, name: str, indexes: Indexes, now: Instant) -> Refused:
        """Reserve waiting messages of a channel for `Broker.send_back`, or until `unclaim`.

        Args:
            topic_name: the topic.
            name: the channel.
            indexes: the messages, ascending, at most IDS_MAX.
            now: the current time.
        """
        topic, channel = self._channel(topic_name, name)
        return claim(topic, channel, indexes, now)

    def unclaim(self, channel: Channel, indexes: Indexes) -> None:
        """Make messages that are still claimed wait again."""
        unclaim(channel, indexes)
        topic = self._topics.by_name.get(channel.stream.topic)
        # The channel may have been deleted while its letters were being published.
        if topic is not None and not channel.is_retired:
            topic.wake(channel)
            self._turn.add_topic(topic)

    def _make_durable(self, topic: Topic, now: Instant, *, frees: bool = False) -> None:
        """Add the topic to the turn and make a decision durable; `frees`: delete unneeded files."""
        topic.make_durable(now, frees=frees)
        self._turn.add_topic(topic)

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
