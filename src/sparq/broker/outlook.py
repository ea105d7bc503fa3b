"""How far behind a channel is: the age of the oldest message that waits, and the time to clear.

Both come from memory alone, since they are asked for with every look at thousands of channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparq.broker.options import SECOND_NS

if TYPE_CHECKING:
    from sparq.broker.channel import Channel
    from sparq.protocol.instant import Instant

TREND_NS: Final = 15 * SECOND_NS
"""A depth is compared with one of at least so long ago, if there is one."""

TREND_MIN_NS: Final = SECOND_NS
"""What is younger than this tells nothing yet."""

TREND_MAX_NS: Final = 60 * SECOND_NS
"""What is older than this tells nothing any more."""

LOOKS_MAX: Final = 64
"""So many stretches that the cursor passes over are looked past."""


class Outlook:
    """What earlier looks at a channel have told: its depth then, and a message's time."""

    __slots__ = ("_known", "_newer", "_older")

    def __init__(self) -> None:
        self._older = self._newer = (0, -1)
        self._known = (-1, 0)

    def oldest_waiting_ns(self, channel: Channel, now: Instant) -> int | None:
        """How long ago the oldest message was published that waits; None: none waits.

        Where its own time is not in memory, the time of the youngest of its extent counts.
        """
        index = oldest_waiting(channel)
        if index is None:
            return None
        if index != self._known[0]:
            told = channel.stream.log.looking.known_time(index)
            if told is None:
                return None
            if not told[1]:
                return max(0, now.wall_ns - told[0])
            self._known = index, told[0]
        return max(0, now.wall_ns - self._known[1])

    def clear_ns(self, depth: int, now: Instant) -> int | None:
        """How long until nothing waits, if the depth goes on to fall as it did; None: unknown."""
        since = now.mono_ns - self._newer[0]
        if self._newer[1] < 0 or since > TREND_MAX_NS:
            self._older = self._newer = now.mono_ns, depth
        elif since >= TREND_NS:
            self._older, self._newer = self._newer, (now.mono_ns, depth)
        if not depth:
            return 0
        before_ns, before = self._older
        span = now.mono_ns - before_ns
        if span < TREND_MIN_NS or before <= depth:
            return None
        return depth * span // (before - depth)


def oldest_waiting(channel: Channel) -> int | None:
    """The index of the oldest message that waits; None: none waits, or it is hard to find."""
    again = channel.again.oldest()
    fresh = _oldest_fresh(channel) if channel.fresh_count() > 0 else None
    if fresh is None or again is None:
        return again if fresh is None else fresh
    return min(fresh, again)


def _oldest_fresh(channel: Channel) -> int | None:
    """The first message that the cursor will deliver."""
    log, due, end = channel.stream.log, channel.stream.due, channel.stream.end
    index = channel.cursor
    for _ in range(LOOKS_MAX):
        began = index
        if not channel.range_epoch:
            index = due.next_unskipped(channel.skips.end_at(index))
        index = log.next_stored(index)
        if index >= end:
            return None
        if index == began:
            return index
    return None
