"""The next messages of a channel for many consumers at once.

Fifty consumers with RDY 1 that have finished their messages in the same turn are each given one. To
look for the block, to note what is in flight and to count, for each of them, took a fifth of the
server's time for a message. Here all of it is done once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sparq.broker.channel import Channel
from sparq.broker.session import Session
from sparq.broker.slots import PAGE_MASK
from sparq.log.block import Block
from sparq.protocol.instant import Instant

SHARERS_MIN: Final = 4
"""For fewer consumers than this, numpy's calls cost more than they save."""


class Shares(NamedTuple):
    """What sessions were given of a block.

    Attributes:
        first, block: the first message, and the block that has it; None: there was none to be had.
        seen: how many sessions have had their turn.
        sessions, counts, deadlines: who got something, how many messages, and until when (ns).
    """

    first: int
    block: Block | None
    seen: int
    sessions: list[Session]
    counts: list[int]
    deadlines: list[int]


def share_block(
    channel: Channel, sessions: Sequence[Session], bounds: tuple[int, int], now: Instant
) -> Shares:
    """Give each session its share of the next messages, as far as one block and one page go.

    It ends before the first session that wants something else than a slice of the block: one that
    takes samples or envelopes, whose share goes beyond, or whose output would be overfilled.

    Args:
        channel: without messages that were out before.
        sessions: in their order; all are in `channel.ready`.
        bounds: messages for each at most, and for all.
        now: this turn's time.
    """
    each, available = bounds
    block, first, ends = _next_slice(channel, available)
    shares = Shares(first, block, 0, [], [], [])
    if block is None:
        return shares
    frames, start = memoryview(block.frames), block.start_of(first)
    seen = given = 0
    for session in sessions:
        # Looked at here, and not in a function: this is done for each message.
        if given == available or session.sample_rate or session.takes_envelopes:
            break
        window = session.window()
        count = min(each, window, available - given)
        if count > 0:
            if given + count > len(ends):
                break
            stop = ends[given + count - 1]
            if stop - start > session.room_bytes():
                break
            session.send(frames[start:stop], stop - start, count)
            shares.sessions.append(session)
            shares.counts.append(count)
            shares.deadlines.append(now.mono_ns + session.msg_timeout_ns)
            given += count
            start = stop
        seen += 1
        del channel.ready[session]
        if window > count and session.window() > 0:
            channel.ready[session] = None
    if given:
        owners = [session.owner for session in shares.sessions]
        channel.in_flight.note_shares(first, shares.counts, owners, shares.deadlines, now.mono_ns)
        channel.due_ns = min(channel.due_ns, *shares.deadlines)
    return shares._replace(seen=seen)


def _next_slice(channel: Channel, count: int) -> tuple[Block | None, int, list[int]]:
    """The block of the next messages, the first of them, and where the frames of up to `count` end.

    None where they are not in memory, or where each message is looked at: too old, or timed.
    """
    end = channel.run_end()
    first = channel.cursor
    block = channel.stream.block(first) if first < end else None
    if block is None or channel.settings.message_ttl_ns or channel.latencies is not None:
        return None, first, []
    end = min(end, first + count, block.end, (first | PAGE_MASK) + 1)
    return block, first, block.ends[first - block.first : end - block.first].tolist()
