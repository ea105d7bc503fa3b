"""Dead letters in transit: from a channel to the dead-letter topic, and back.

1. With `max_attempts`, a message that was delivered that many times is not delivered again: it is
   published to the dead-letter topic and then finished. Until it is stored there, it is in flight
   with no consumer (`DEAD_LETTERS`); if the publish is refused, it is tried again. A message whose
   last `LOST_MAX` deliveries all ended with a lost connection is assumed to crash its consumers,
   and is moved too.
2. A letter that is sent back is published to its topic for its channel only, with the number of
   times it was sent back. A later letter of the same message contains that number.
3. If nsqd dies in between, a letter may be duplicated, but none is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.channel import Channel
from sparq.broker.in_flight import DEAD_LETTERS, Rows
from sparq.broker.last_deliveries import UNKNOWN, LastDelivery
from sparq.broker.options import NEVER
from sparq.log.block import Block
from sparq.log.records import RecordKind
from sparq.options.units import SECOND
from sparq.protocol.dead_letters import DeadLetterHistory
from sparq.protocol.instant import Instant
from sparq.protocol.layout import FRAME_OVERHEAD

Indexes = NDArray[np.int64]
Attempts = NDArray[np.uint16]

TRY_AGAIN_NS: Final = SECOND
"""Delay before a refused dead letter is published again."""


class DeadLetterBatch(NamedTuple):
    """Messages of one channel to be published as dead letters, or sent back.

    Attributes:
        channel: the channel that has them in flight with DEAD_LETTERS.
        indexes: their indexes, ascending.
        bodies: their bodies in the form in which they are published.
        only: the channel that they are sent back to; None: they are new dead letters.
    """

    channel: Channel
    indexes: Indexes
    bodies: list[bytes]
    only: Only | None = None


class Only(NamedTuple):
    """Restricts published messages to one channel of their topic.

    Attributes:
        channel: its name.
        times: how often each message was sent back; empty: none of them was.
    """

    channel: str
    times: list[int]


def for_one(channels: Mapping[str, Channel], only: Only, indexes: range) -> None:
    """Void messages that no channel sees yet for all channels but one, if that one exists."""
    one = channels.get(only.channel)
    if one is None:
        return  # the channel was deleted meanwhile: all others get the messages, so none is lost
    for channel in channels.values():
        if channel is not one:
            channel.void(indexes.start, indexes.stop)
            channel.base_ordinal += len(indexes)  # they do not count as messages of this channel
    if only.times:
        # An ephemeral topic may have dropped the last ones.
        times = only.times[: len(indexes)]
        one.redriven.update(zip(indexes, times, strict=True))
        one.ledger.note(RecordKind.REDRIVEN, one.name, indexes, times)


def dead_letters_of(
    channel: Channel, block: Block, indexes: Indexes, attempts: Attempts
) -> DeadLetterBatch:
    """Make dead letters of a channel from ascending messages of a block."""
    bodies = []
    stamps = block.timestamps(indexes).tolist()
    for index, count, published_ns in zip(indexes.tolist(), attempts.tolist(), stamps, strict=True):
        last = channel.last_deliveries.get(index) or LastDelivery(UNKNOWN, "", 0)
        history = DeadLetterHistory(
            topic=channel.stream.topic,
            channel=channel.name,
            id=channel.id_of(index),
            attempts=count,
            published_ns=published_ns,
            returned_ns=last.wall_ns,
            consumer=last.consumer,
            reason=last.reason,
            redriven=channel.redriven.get(index, 0),
        )
        bodies.append(history.seal(bytes(block.slice(index, index + 1)[FRAME_OVERHEAD:])))
    return DeadLetterBatch(channel, indexes, bodies)


def mark_as_claimed(channel: Channel, indexes: Indexes, attempts: Attempts, now: Instant) -> None:
    """Mark messages as being published elsewhere, so that no consumer gets them meanwhile."""
    channel.in_flight.note_many(
        indexes, attempts, DEAD_LETTERS, now_ns=now.mono_ns, deadline_ns=NEVER
    )


def apply_result(letters: DeadLetterBatch, now: Instant, *, is_kept: bool) -> None:
    """Finish messages whose letters were stored; otherwise schedule them to be tried again.

    Messages that were taken from DEAD_LETTERS meanwhile are left alone.
    """
    channel = letters.channel
    if not is_kept:
        ours = _take(channel, letters.indexes)
        for index, attempts in zip(ours.indexes.tolist(), ours.attempts.tolist(), strict=True):
            # The ledger has it as requeued since its last delivery: there is nothing new to note.
            channel.delays.add(index, now.mono_ns + TRY_AGAIN_NS, attempts)
        channel.reschedule()
        return
    freed = channel.in_flight.finish(letters.indexes, DEAD_LETTERS)
    if not freed.freed:
        return
    if letters.only is None:
        channel.counts.dead_letter_count += freed.freed
    else:
        channel.counts.redriven_count += freed.freed
    channel.forget(freed.starts, freed.ends)
    channel.ledger.note(RecordKind.FINISHED, channel.name, freed.starts, freed.ends)


def unclaim(channel: Channel, indexes: Indexes) -> None:
    """Make claimed messages wait for delivery as before."""
    ours = _take(channel, indexes)
    channel.requeued.push_many(ours.indexes, ours.attempts)


def _take(channel: Channel, indexes: Indexes) -> Rows:
    rows = channel.in_flight.rows_of(indexes)
    return channel.in_flight.take(rows.indexes[rows.owners == DEAD_LETTERS])
