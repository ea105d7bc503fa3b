"""The figures of one nsqd at one moment: its `/stats`, parsed into columns.

1. Only the fields in use are decoded, and no document is kept: 20 nodes with 10,000 channels each
   would be a gigabyte of dictionaries, but are 25 MB of columns.
2. An answer is not trusted (`cluster.figures`): names that NSQ does not allow are left out, counts
   are limited to 0 to 2^53, and texts are cut to one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparq.client.reasons import one_line
from sparq.cluster import figures
from sparq.cluster.figures import ChannelFigures, TopicFigures
from sparq.nsqadmin.watch.names import NONE, NameNumbers, Numbers
from sparq.nsqadmin.watch.rows import Reader

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
NO_NAME: Final = " "
"""Replaces a channel's empty name, which would mean its topic; NSQ allows neither name."""


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

    def column(self, name: str) -> Counts:
        """The counts of one of `COUNTS`, shape (n,)."""
        found: Counts = self.counts[AT[name]]
        return found

    def only(self, numbers: Numbers) -> NodeStats:
        """Select the figures of some ascending numbers, which become 0, 1, ... in this order."""
        here = np.isin(self.numbers, numbers)
        at = np.searchsorted(numbers, self.numbers[here]).astype(np.int32)
        places = {int(number): place for place, number in enumerate(numbers)}
        readers = {places[n]: reader for n, reader in self.readers.items() if n in places}
        return replace(
            self, numbers=at, counts=self.counts[:, here], oldest=self.oldest[here], readers=readers
        )


@dataclass(frozen=True, slots=True)
class EarlierCounts:
    """The part of an earlier answer that rates need: `counts` has only the rows of `COUNTERS`."""

    at_seconds: float
    start_time: int
    numbers: Numbers
    counts: Counts

    def only(self, numbers: Numbers) -> EarlierCounts:
        """Select some numbers, like `NodeStats.only`."""
        here = np.isin(self.numbers, numbers)
        at = np.searchsorted(numbers, self.numbers[here]).astype(np.int32)
        return replace(self, numbers=at, counts=self.counts[:, here])


def counters(stats: NodeStats) -> EarlierCounts:
    """Copy the counters, as the base of later rates."""
    kept = stats.counts[: len(COUNTERS)].copy()
    return EarlierCounts(stats.at_seconds, stats.start_time, stats.numbers, kept)


def read_stats(answer: bytes | bytearray, names: NameNumbers, at_seconds: float) -> NodeStats:
    """Parse an answer of `/stats`, also in the form before NSQ 1.0 (wrapped in `data`).

    Raises:
        ValueError: the answer is invalid.
    """
    # Not `figures.read`, which checks each name: `names` does so only for new ones.
    document = figures.decode(answer)
    rows, numbers = _numbered(document.topics, names)
    counts = _counts(rows)
    oldest = _oldest(rows, document.sparq_version is not None)
    names.seen(numbers, at_seconds)
    own = document.sparq_version
    return NodeStats(
        at_seconds,
        document.start_time,
        one_line(document.version),
        None if own is None else one_line(own),
        one_line(document.health),
        document.is_short,
        numbers,
        counts,
        oldest,
        dict(_readers(rows, numbers)),
        document.draining,
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of an answer: first topics, then channels."""

    topics: list[TopicFigures]
    channels: list[ChannelFigures]

    def __len__(self) -> int:
        return len(self.topics) + len(self.channels)


def _numbered(topics: list[TopicFigures], names: NameNumbers) -> tuple[_Rows, Numbers]:
    """The topics and channels without duplicates and invalid names, and their numbers."""
    # Nearly every answer has the names of the one before. So look up all numbers first, and check
    # each name only if one is missing or occurs twice.
    found = [names.number(topic.topic_name) for topic in topics]
    for topic in topics:
        number_of = names.of_topic(topic.topic_name).get
        found += [number_of(each.channel_name or NO_NAME, NONE) for each in topic.channels or ()]
    numbers = np.array(found, np.int32)
    if NONE in found or len(np.unique(numbers)) < len(numbers):
        return _numbered_anew(topics, names)
    return _Rows(topics, [channel for topic in topics for channel in topic.channels or ()]), numbers


def _numbered_anew(topics: list[TopicFigures], names: NameNumbers) -> tuple[_Rows, Numbers]:
    """The same for answers with new names, duplicates or invalid names."""
    rows = _Rows([], [])
    of_topics: dict[int, TopicFigures] = {}
    of_channels: dict[int, None] = {}
    for topic in topics:
        number = names.number_or_new(topic.topic_name)
        if number == NONE or number in of_topics:
            continue
        of_topics[number] = topic
        rows.topics.append(topic)
        for channel in topic.channels or ():
            number = names.number_or_new(topic.topic_name, channel.channel_name or NO_NAME)
            if number != NONE and number not in of_channels:
                of_channels[number] = None
                rows.channels.append(channel)
    return rows, np.array([*of_topics, *of_channels], np.int32)


def _counts(rows: _Rows) -> Counts:
    """The counts of the rows, shape (len(COUNTS), n), limited to 0 to `COUNT_MAX`."""
    # One iterator of numbers into one array: no list of tuples is built. Then one row per figure,
    # contiguous, because all later sums and rates are computed figure by figure.
    flat = chain.from_iterable(chain(map(_of_topic, rows.topics), map(_of_channel, rows.channels)))
    found = np.fromiter(flat, np.int64, len(rows) * len(COUNTS))
    counts = np.ascontiguousarray(found.reshape(len(rows), len(COUNTS)).T)
    return np.clip(counts, 0, COUNT_MAX, out=counts)


def _of_topic(topic: TopicFigures) -> tuple[int, ...]:
    count, size, depth = topic.message_count, topic.message_bytes, topic.depth
    return count, 0, 0, 0, size, depth, topic.backend_depth, 0, 0, 0, 0, topic.paused


def _oldest(rows: _Rows, is_sparq: bool) -> Figures:
    """Ages of the oldest waiting messages; sparq's nsqd sends null if no message waits."""
    ages = np.zeros(len(rows))
    known = [channel.oldest_waiting_seconds for channel in rows.channels]
    ages[len(rows.topics) :] = np.array(known, np.float64)
    np.maximum(ages, 0.0, out=ages)
    return np.nan_to_num(ages) if is_sparq else ages


def _readers(rows: _Rows, numbers: Numbers) -> Iterator[tuple[int, Reader]]:
    for place, row in enumerate(rows.channels, len(rows.topics)):
        if row.range_reader:
            address, query = one_line(row.range_reader), one_line(row.range_query or "")
            age = row.range_commit_seconds
            yield (
                int(numbers[place]),
                Reader(address, query, None if age is None else max(0.0, age)),
            )
