"""Delivers the next messages of a channel to many consumers at once.

Fifty consumers with RDY 1 that finish their messages in the same turn each get one message. Doing
this once per consumer (finding the block, noting and counting the message) took a fifth of the
server's time per message. Here it is done once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sparq.broker.channel import Channel
from sparq.broker.session import V2Session
from sparq.broker.slots import PAGE_MASK
from sparq.log.block import Block
from sparq.protocol.instant import Instant

SHARERS_MIN: Final = 4
"""For fewer consumers than this, numpy's calls cost more than they save."""


class Shares(NamedTuple):
    """The slices of a block that sessions were given.

    Attributes:
        first, block: the first message and its block; None: no message was available.
        seen: how many sessions had their turn.
        sessions, counts, deadlines: the sessions that got messages, how many, and until when (ns).
    """

    first: int
    block: Block | None
    seen: int
    sessions: list[V2Session]
    counts: list[int]
    deadlines: list[int]


def share_block(
    channel: Channel, sessions: Sequence[V2Session], bounds: tuple[int, int], now: Instant
) -> Shares:
    """Give each session its share of the next messages, within one block and one page.

    Stops before the first session that cannot take a slice of the block: it samples, takes
    envelopes, its share exceeds the block or page, or its output would overflow.

    Args:
        channel: a channel without redeliveries waiting.
        sessions: the sessions in order; all are in `channel.ready_sessions`.
        bounds: maximum number of messages per session, and in total.
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
        # Checked inline and not in a function: this runs for each message.
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
            # A slice of the block, uncopied: it keeps the block in memory until it is sent.
            session.send(frames[start:stop], stop - start, count)
            shares.sessions.append(session)
            shares.counts.append(count)
            shares.deadlines.append(now.mono_ns + session.msg_timeout_ns)
            given += count
            start = stop
        seen += 1
        del channel.ready_sessions[session]
        # Computed again, since the output may be full now.
        if window > count and session.window() > 0:
            channel.ready_sessions[session] = None
    if given:
        owners = [session.owner for session in shares.sessions]
        channel.in_flight.note_shares(first, shares.counts, owners, shares.deadlines, now.mono_ns)
        channel.due_ns = min(channel.due_ns, *shares.deadlines)
    return shares._replace(seen=seen)


def _next_slice(channel: Channel, count: int) -> tuple[Block | None, int, list[int]]:
    """The block of the next messages, the first index, and where up to `count` frames end.

    None: the block is not in memory, or each message must be checked for its age or timed.
    """
    end = channel.run_end()
    first = channel.cursor
    block = channel.stream.block(first) if first < end else None
    if block is None or channel.settings.message_ttl_ns or channel.latencies is not None:
        return None, first, []
    # Within one page of `in_flight`, so that all shares are noted by one write.
    end = min(end, first + count, block.end, (first | PAGE_MASK) + 1)
    return block, first, block.ends[first - block.first : end - block.first].tolist()
