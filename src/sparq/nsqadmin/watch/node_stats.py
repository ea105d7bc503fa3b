"""The figures of one nsqd at one moment: its `/stats`, parsed into columns.

1. Only the fields in use are decoded, and no document is kept: 20 nodes with 10,000 channels each
   would be a gigabyte of dictionaries, but are 25 MB of columns.
2. An answer is not trusted (`cluster.figures`): names that NSQ does not allow are left out, counts
   are limited to 0 to 2^53, and texts are cut to one line.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparq.cluster import figures
from sparq.cluster.figures import ChannelFigures, TopicFigures
from sparq.nsqadmin.watch.names import NONE, NameNumbers, Numbers
from sparq.nsqadmin.watch.rows import Reader
from sparq.protocol.names import one_line

Counts: TypeAlias = NDArray[np.int64]
Figures: TypeAlias = NDArray[np.float64]

COUNTS: Final = (
    *("messages", "finished", "requeued", "timed_out", "bytes"),
    *("depth", "backend_depth", "in_flight", "deferred", "clients", "ready", "paused"),
)
"""The rows of `NodeStats.counts`; the first five are counters, from which rates are computed."""

AT: Final = {name: place for place, name in enumerate(COUNTS)}
COUNTERS: Final = COUNTS[:5]
COUNT_MAX: Final = 1 << 53

_of_channel = attrgetter(
    *("message_count", "finished", "requeue_count", "timeout_count", "message_bytes"),
    *("depth", "backend_depth", "in_flight_count", "deferred_count"),
    *("client_count", "ready_count", "paused"),
)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """An nsqd's figures.

    Attributes:
        at_seconds: when they were queried, on the monotonic clock.
        start_time: when the nsqd was started, in seconds since 1970.
        sparq_version: None if it is Go's nsqd.
        is_short: whether it refuses publishes because it is short of disk space.
        numbers: numbers of its topics and channels, shape (n,), without duplicates.
        counts: shape (len(COUNTS), n).
        oldest: age of the oldest waiting message in seconds, shape (n,); 0: none waits, nan: not
            reported.
        readers: range readers by the number of the channel that they hold.
        draining: whether it refuses publishes because it is draining.
    """

    at_seconds: float
    start_time: int
    version: str
    sparq_version: str | None
    health: str
    is_short: bool
    numbers: Numbers
    counts: Counts
    oldest: Figures
    readers: dict[int, Reader]
    draining: bool = False

    def only(self, numbers: Numbers) -> NodeStats:
        """Select the figures of some ascending numbers, which become 0, 1, ... in this order."""
        here = np.isin(self.numbers, numbers)
        at = np.searchsorted(numbers, self.numbers[here]).astype(np.int32)
        places = {int(number): place for place, number in enumerate(numbers)}
        readers = {places[n]: reader for n, reader in self.readers.items() if n in places}
        return replace(
            self, numbers=at, counts=self.counts[:, here], oldest=self.oldest[here], readers=readers
        )


def read_stats(answer: bytes | bytearray, names: NameNumbers, at_seconds: float) -> NodeStats:
    """Parse an answer of `/stats`, also in the form before NSQ 1.0 (wrapped in `data`).

    Raises:
        ValueError: the answer is invalid.
    """
    # Not `figures.read`, which checks each name: `names` does so only for new ones.
    document = figures.decode(answer)
    topics, channels = _numbered(document.topics, names)
    numbers = np.array([*topics, *channels], np.int32)
    names.seen(numbers, at_seconds)
    # One iterator of numbers into one array: no list of tuples is built. Then one row per figure,
    # contiguous, because all later sums and rates are computed figure by figure.
    rows = chain(map(_of_topic, topics.values()), map(_of_channel, channels.values()))
    flat = np.fromiter(chain.from_iterable(rows), np.int64, len(numbers) * len(COUNTS))
    counts = np.ascontiguousarray(flat.reshape(len(numbers), len(COUNTS)).T)
    ages = [channel.oldest_waiting_seconds for channel in channels.values()]
    oldest = np.maximum(np.array([0.0] * len(topics) + ages, np.float64), 0.0)
    own = document.sparq_version
    return NodeStats(
        at_seconds,
        document.start_time,
        one_line(document.version),
        None if own is None else one_line(own),
        one_line(document.health),
        document.is_short,
        numbers,
        np.clip(counts, 0, COUNT_MAX, out=counts),
        # sparq's nsqd sends null if no message waits.
        oldest if own is None else np.nan_to_num(oldest),
        {number: _reader(one) for number, one in channels.items() if one.range_reader},
        document.draining,
    )


def _numbered(
    topics: list[TopicFigures], names: NameNumbers
) -> tuple[dict[int, TopicFigures], dict[int, ChannelFigures]]:
    """The topics and channels by number, without duplicates and invalid names."""
    found: dict[int, TopicFigures] = {}
    channels: dict[int, ChannelFigures] = {}
    for topic in topics:
        number = names.number_or_new(topic.topic_name)
        if number == NONE or number in found:
            continue
        found[number] = topic
        known = names.of_topic(topic.topic_name)
        for channel in topic.channels:
            name = channel.channel_name
            # The name "" is that of the topic here; NSQ allows it for neither.
            number = known.get(name, NONE) if name else NONE
            if number == NONE and name:
                number = names.number_or_new(topic.topic_name, name)
            if number != NONE:
                channels.setdefault(number, channel)
    return found, channels


def _of_topic(topic: TopicFigures) -> tuple[int, ...]:
    count, size, depth = topic.message_count, topic.message_bytes, topic.depth
    return count, 0, 0, 0, size, depth, topic.backend_depth, 0, 0, 0, 0, topic.paused


def _reader(channel: ChannelFigures) -> Reader:
    age = channel.range_commit_seconds
    address, query = channel.range_reader or "", channel.range_query or ""
    return Reader(one_line(address), one_line(query), None if age is None else max(0.0, age))
