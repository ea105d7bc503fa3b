"""Dead letters on their way: from a channel to the dead-letter topic, and back.

1. With `max_attempts` a message that was delivered so often is not delivered once more: it is
   published to the dead-letter topic and then finished. Until that is kept it is in flight with
   nobody (`BURIAL`); where it is refused it is tried again. A message whose last deliveries,
   `LOST_MAX` of them, all ended with the connection is taken for one that kills its consumers, and
   goes there too.
2. A letter that is sent back is published to its topic for its channel alone, with the number of
   times that it was: another letter of it tells that.
3. If nsqd dies in between, a letter may be there twice, and none is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparq.broker.channel import Channel
from sparq.broker.dead_letters import BURIAL
from sparq.broker.fates import UNKNOWN, Fate
from sparq.broker.in_flight import Expired
from sparq.broker.options import NEVER, SECOND_NS
from sparq.log.block import Block
from sparq.protocol.dead_letters import History
from sparq.protocol.instant import Instant
from sparq.protocol.layout import FRAME_OVERHEAD

Indexes = NDArray[np.int64]
Attempts = NDArray[np.uint16]

BURY_AGAIN_NS: Final = SECOND_NS
"""How long after it was refused there it is tried again."""


class Letters(NamedTuple):
    """Messages of one channel that are to be published as dead letters, or sent back.

    Attributes:
        channel: whose they are, in flight with BURIAL.
        indexes: which, ascending.
        bodies: theirs, as they are to be published.
        only: where they are sent back to; None: they are new dead letters.
    """

    channel: Channel
    indexes: Indexes
    bodies: list[bytes]
    only: Only | None = None


class Only(NamedTuple):
    """Messages are published for one channel of their topic alone.

    Attributes:
        channel: its name.
        times: how often each was sent back; none of them where it is empty.
    """

    channel: str
    times: list[int]


def for_one(channels: Mapping[str, Channel], only: Only, indexes: range) -> None:
    """Messages that no channel sees yet are for one of them, if it is there; else for all."""
    one = channels.get(only.channel)
    if one is None:
        return
    for channel in channels.values():
        if channel is not one:
            channel.void(indexes.start, indexes.stop)
    if only.times:
        times = only.times[: len(indexes)]
        one.redriven.update(zip(indexes, times, strict=True))
        one.ledger.redriven(one.name, indexes, times)


def letters_of(channel: Channel, block: Block, indexes: Indexes, attempts: Attempts) -> Letters:
    """Ascending messages that a block has, as the dead letters of a channel."""
    bodies = []
    stamps = block.timestamps(indexes).tolist()
    for index, count, published_ns in zip(indexes.tolist(), attempts.tolist(), stamps, strict=True):
        fate = channel.fates.get(index) or Fate(UNKNOWN, "", 0)
        history = History(
            topic=channel.stream.topic,
            channel=channel.name,
            id=channel.id_of(index),
            attempts=count,
            published_ns=published_ns,
            returned_ns=fate.wall_ns,
            consumer=fate.consumer,
            reason=fate.reason,
            redriven=channel.redriven.get(index, 0),
        )
        bodies.append(history.seal(bytes(block.slice(index, index + 1)[FRAME_OVERHEAD:])))
    return Letters(channel, indexes, bodies)


def bury(channel: Channel, indexes: Indexes, attempts: Attempts, now: Instant) -> None:
    """These messages are published elsewhere: nobody else may have them meanwhile."""
    channel.in_flight.note_many(indexes, attempts, BURIAL, now_ns=now.mono_ns, deadline_ns=NEVER)


def settle(letters: Letters, now: Instant, *, is_kept: bool) -> None:
    """They are kept there, so they are finished here; or they come up again after a while.

    Those that were taken away meanwhile are let alone.
    """
    channel = letters.channel
    if not is_kept:
        not_buried(channel, letters.indexes, now)
        return
    freed = channel.in_flight.finish(letters.indexes, BURIAL)
    if not freed.freed:
        return
    if letters.only is None:
        channel.dead_letter_count += freed.freed
    else:
        channel.redriven_count += freed.freed
    channel.forget(freed.starts, freed.ends)
    channel.ledger.finished(channel.name, freed.starts, freed.ends)


def not_buried(channel: Channel, indexes: Indexes, now: Instant) -> None:
    """They were not taken: they come up again after a while."""
    ours = _take(channel, indexes)
    for index, attempts in zip(ours.indexes.tolist(), ours.attempts.tolist(), strict=True):
        # The ledger has it as requeued since its last delivery: nothing new is to be noted.
        channel.delays.add(now.mono_ns + BURY_AGAIN_NS, index, attempts)
    channel.reschedule()


def unclaim(channel: Channel, indexes: Indexes) -> None:
    """Nothing is done with them after all: they wait as before."""
    ours = _take(channel, indexes)
    channel.again.push_many(ours.indexes, ours.attempts)


def _take(channel: Channel, indexes: Indexes) -> Expired:
    rows = channel.in_flight.rows_of(indexes)
    return channel.in_flight.take(rows.indexes[rows.owners == BURIAL])
