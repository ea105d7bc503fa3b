"""Administrators' actions on single messages of a channel: requeue, finish, cancel, claim.

1. Each message is looked up wherever the channel holds it (see `channel`) and removed from there.
   The result is noted in the ledger, so it survives a restart as a FIN or a REQ does.
2. A consumer is not notified when a message in flight is taken from it; its FIN fails as it would
   after a timeout.
3. A deferred publish that is taken before it is due is `detached`: other channels still wait
   for it.
4. These actions are refused on a channel that is read by ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sparq.broker.channel import Channel
from sparq.broker.dead_letters import mark_as_claimed
from sparq.broker.in_flight import ranges_of
from sparq.broker.topic import Topic
from sparq.broker.waiting import among
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


def requeue(channel: Channel, indexes: Indexes) -> Refused:
    """Redeliver messages as soon as possible, even if they are finished.

    Args:
        channel: the channel.
        indexes: the messages, ascending, at most IDS_MAX.

    Raises:
        RemoteError: the channel is read by ranges.
    """
    refused, rest = _seen(channel, indexes)
    flying = channel.in_flight.take(rest)
    channel.take_back(flying)
    rest = np.setdiff1d(rest, flying.indexes)
    waits = _waiting(channel, rest)
    rest = rest[~waits]
    delayed = dict(channel.delays.take(set(rest.tolist())))
    gone = channel.stream.due.cancelled.intersection(rest.tolist()).difference(delayed)
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


def finish(channel: Channel, indexes: Indexes) -> Refused:
    """Finish messages in any state; parameters and errors as in `requeue`."""
    refused, rest = _seen(channel, indexes)
    flying = channel.in_flight.take(rest)
    # Opens the owners' windows only; `take_back` would also make the messages ready again.
    channel.taken_from_owners(flying)
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


def cancel(channel: Channel, indexes: Indexes) -> Refused:
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


Action = Callable[[Channel, Indexes], Refused]
ACTIONS: Final[dict[str, Action]] = {"requeue": requeue, "finish": finish, "cancel": cancel}


def claim(channel: Channel, indexes: Indexes, now: Instant) -> Refused:
    """Withhold waiting messages from consumers until they are sent back or released (`unclaim`)."""
    refused, rest = _seen(channel, indexes)
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


def _seen(channel: Channel, indexes: Indexes) -> tuple[Refused, Indexes]:
    """Refuse messages that are not stored or not yet visible; returns the other indexes, too."""
    _refuse_ranges(channel)
    inspection, end = channel.stream.log.inspection, channel.stream.end
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
    again = channel.requeued.all()[0]
    return np.isin(indexes, again[among(again, indexes)]) | _fresh(channel, indexes)


def _finished(channel: Channel, pending: Indexes, indexes: Indexes) -> None:
    """Note ascending indexes as finished, and the `pending` ones among them as apart."""
    if len(pending):
        channel.ledger.note(RecordKind.DETACHED, channel.name, pending)
    if len(indexes):
        channel.ledger.note(RecordKind.FINISHED, channel.name, *ranges_of(indexes))
