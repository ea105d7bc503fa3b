"""Decides how many messages of each log one micro-batch reads.

`admit` depends on counts, limits and time alone; `ReadableRange` asks the nsqds for the counts.

1. A batch is held back while fewer than `messages_min` messages are available. It is not held back
   once `delay_seconds` have passed since the last batch, nor when the byte limit is reached: it
   would not grow. The first batch after a start is not held back, as with Spark's Kafka source.
2. A batch takes at most `messages_max` messages, divided among the logs by their backlogs.
3. It takes at most `bytes_max` bytes of stored batches, divided likewise. But every log that has
   messages may give one extent of its sparse index; otherwise an extent larger than the log's
   share would never be read.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sparq.client.range_reader import Ends, Place
from sparq.spark.offsets import LogPosition, parse_key
from sparq.spark.source_options import ReadLimits
from sparq.spark.topic_connections import TopicConnections


class Backlog(NamedTuple):
    """The unread messages of one log.

    Attributes:
        messages: number of unread messages.
        allowed: how many of them fit the byte limit.
    """

    messages: int
    allowed: int


def admit(
    backlogs: Mapping[str, Backlog], limits: ReadLimits, waited_seconds: float
) -> dict[str, int]:
    """How many messages of each log a batch takes; empty while the batch is held back.

    Args:
        backlogs: by log.
        limits: the batch's limits.
        waited_seconds: seconds since the last batch; infinite before the first.
    """
    messages = sum(backlog.messages for backlog in backlogs.values())
    allowed = {key: backlog.allowed for key, backlog in backlogs.items()}
    is_full = sum(allowed.values()) < messages
    if messages < limits.messages_min and waited_seconds < limits.delay_seconds and not is_full:
        return {}
    return share(limits.messages_max, allowed)


def share(limit: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """How many messages each log may give when `limit` are allowed in total.

    Shares are proportional to the backlogs. Each log that has messages gets at least one, as far as
    the limit allows, so that a busy nsqd does not starve a quiet one.
    """
    backlogs = {key: count for key, count in backlogs.items() if count > 0}
    if sum(backlogs.values()) <= limit:
        return backlogs
    # Fewer messages than logs: the longest backlogs give one each. Ties go by key, so that equal
    # backlogs give equal shares, whatever the order in which nsqds were found.
    if limit <= len(backlogs):
        longest = sorted(backlogs, key=lambda key: (-backlogs[key], key))[:limit]
        return dict.fromkeys(longest, 1)
    spare = limit - len(backlogs)
    rest = {key: count - 1 for key, count in backlogs.items()}
    # Not zero: the backlogs exceed the limit, which exceeds their number.
    total = sum(rest.values())
    shares = {key: 1 + spare * count // total for key, count in rest.items()}
    # Largest remainders: rounding down alone would leave up to one message per log of the limit
    # unused.
    remainders = sorted(rest, key=lambda key: (-(spare * rest[key] % total), key))
    for key in remainders[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares


def share_bytes(limit: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """How many bytes each log may give when `limit` are allowed in total.

    Shares are proportional to the logs' sizes, rounded down: the sum never exceeds the limit. A log
    whose share is smaller than its first extent still gives that extent (see 3).
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    return {key: limit * size // total for key, size in sizes.items()}


class ReadableRange:
    """How far each log may be read from its current position.

    Args:
        fleet: the nsqds.
        found: by key, the position up to which each log has been read.
        stops: by log id, the ends up to which it may be read; missing logs are unreachable.
    """

    def __init__(
        self,
        fleet: TopicConnections,
        found: Mapping[str, LogPosition],
        stops: Mapping[str, Ends],
    ) -> None:
        self._fleet = fleet
        self._found = found
        self._stops = {
            key: stop for key in found if (stop := stops.get(parse_key(key).log)) is not None
        }
        self._counts = {key: self._messages(key) for key in self._stops}

    def _messages(self, key: str) -> int:
        stop, position = self._stops[key], self._found[key]
        return max(0, stop.end_ordinal - position.ordinal)

    def backlogs(self, bytes_max: int) -> dict[str, Backlog]:
        """The backlog of each log.

        Args:
            bytes_max: maximum bytes of all logs together; 0: no limit.
        """
        if not bytes_max:
            return {key: Backlog(count, count) for key, count in self._counts.items()}
        # How far the whole limit reaches in each log comes first, since the shares are proportional
        # to that. `_allowed` asks again only where the share is smaller.
        full = {
            key: place
            for key, count in self._counts.items()
            if count and (place := self._place_within(key, bytes_max))
        }
        sizes = {key: place.size for key, place in full.items()}
        shares = share_bytes(bytes_max, sizes)
        return {
            key: Backlog(self._counts[key], self._allowed(key, place, shares[key]))
            for key, place in full.items()
        }

    def _allowed(self, key: str, full: Place, share: int) -> int:
        """Number of a log's messages that fit its share of the bytes."""
        place = full if full.size <= share else self._place_within(key, share)
        if place is None:
            return 0
        return min(self._counts[key], max(0, place.at_ordinal - self._found[key].ordinal))

    def _place_within(self, key: str, size: int) -> Place | None:
        return self._fleet.place_within(parse_key(key).log, self._found[key].index, size)

    def after(self, key: str, count: int) -> LogPosition:
        """The position `count` messages on; the log's current position if nsqd is unreachable."""
        stop, position = self._stops[key], self._found[key]
        if count >= self._counts[key]:
            return LogPosition(stop.end, stop.end_ordinal)
        place = self._fleet.place_after(parse_key(key).log, position.index, count)
        return position if place is None else LogPosition(place.at, place.at_ordinal)
