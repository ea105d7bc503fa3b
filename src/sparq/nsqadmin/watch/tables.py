"""Merges the figures of nodes into tables of channels and topics, stored as columns.

1. Figures are arrays by number (`names`). A rate is the growth of a counter between two answers of
   one nsqd, divided by the time between them. An nsqd that was restarted in between, or has been
   looked at only once, adds nothing. If no nsqd adds anything, the rate is unknown: nan.
2. Lags and states are those of `cluster.figures`, here computed for all channels at once.
3. A table has the existing topics or channels in the order of their names. Its columns are named
   like the fields of the rows (`rows`), so that a list can be sorted by any of them. 10,000 rows as
   objects would take 10 ms and 5 MB in each round, and only 50 of them are shown: a row is made
   when it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sparq.cluster.figures import STATES, state_rules
from sparq.nsqadmin.watch.names import Key, Numbering, Numbers
from sparq.nsqadmin.watch.node_stats import COUNTERS, COUNTS, Counts, Figures, NodeStats
from sparq.nsqadmin.watch.rows import ChannelRow, Reader, TopicRow

RowT = TypeVar("RowT")
Flags = NDArray[np.bool_]
Answer = tuple[NodeStats, NodeStats | None]
"""A node's figures, and the earlier ones from which its rates are computed."""

_COUNTS: Final = (
    *("depth", "backend_depth", "in_flight", "deferred", "clients"),
    *("messages", "requeued", "timed_out"),
)
_RATES: Final = {
    "in_rate": "messages",
    "out_rate": "finished",
    "requeue_rate": "requeued",
    "timeout_rate": "timed_out",
}


@dataclass(frozen=True, slots=True)
class Merged:
    """Figures of all topics and channels over some nodes, each an array by number.

    Attributes:
        nodes: number of nodes that have the topic or channel; 0: it does not exist.
        counts: by the names of `COUNTS`, summed.
        rates: by the names of `COUNTERS`, per second; nan: unknown.
        unfinished: messages waiting or in flight.
        lag: seconds; nan: unknown.
        is_exact: whether all nodes reported the age of the oldest waiting message.
        says_ready: whether all nodes report their clients' RDY.
        readers: range readers, by number of the channel.
    """

    nodes: NDArray[np.int32]
    counts: dict[str, Counts]
    rates: dict[str, Figures]
    unfinished: Counts
    lag: Figures
    is_exact: Flags
    says_ready: Flags
    readers: dict[int, Reader]


def rates_of(stats: NodeStats, base: NodeStats | None) -> Figures | None:
    """The rates between two answers, shape (len(COUNTERS), n), nan for new names; None: unknown."""
    if base is None or base.start_time != stats.start_time or base.at_seconds >= stats.at_seconds:
        return None
    now, before = stats.counts[: len(COUNTERS)], base.counts[: len(COUNTERS)]
    seconds = stats.at_seconds - base.at_seconds
    # The usual case, without the sort that intersect1d needs. A counter that shrinks belongs to a
    # topic or channel that was deleted and created again: its rate counts as 0.
    if np.array_equal(base.numbers, stats.numbers):
        return cast(Figures, np.maximum(0, now - before) / seconds)
    grown = np.full(now.shape, np.nan)
    _, here, there = np.intersect1d(stats.numbers, base.numbers, True, return_indices=True)
    grown[:, here] = np.maximum(0, now[:, here] - before[:, there]) / seconds
    return grown


def merge(answers: Iterable[Answer], size: int) -> Merged:
    """Merge the figures of nodes whose numbers are below `size`."""
    nodes = np.zeros(size, np.int32)
    counts = np.zeros((len(COUNTS), size), np.int64)
    rates = np.zeros((len(COUNTERS), size))
    is_known = np.zeros(size, np.bool_)
    oldest = np.zeros(size)
    says_ready = np.ones(size, np.bool_)
    readers: dict[int, Reader] = {}
    for stats, base in answers:
        at = stats.numbers
        nodes[at] += 1
        counts[:, at] += stats.counts
        oldest[at] = np.maximum(oldest[at], stats.oldest)  # nan stays: a node does not report it
        readers.update(stats.readers)
        if stats.sparq_version is None:
            says_ready[at] = False
        grown = rates_of(stats, base)
        if grown is not None:
            known = ~np.isnan(grown[0])
            is_known[at] |= known
            rates[:, at] += grown if known.all() else np.where(known, grown, 0.0)
    rates[:, ~is_known] = np.nan
    by_name, rate_of = (
        dict(zip(COUNTS, counts, strict=True)),
        dict(zip(COUNTERS, rates, strict=True)),
    )
    unfinished = by_name["depth"] + by_name["in_flight"]
    # The rule of `figures.lag_of`, for all channels.
    estimated, finish_rate = np.full(size, np.nan), rate_of["finished"]
    np.divide(unfinished, finish_rate, out=estimated, where=finish_rate > 0)
    estimated[unfinished == 0] = 0.0
    is_exact = ~np.isnan(oldest)
    lag = np.where(is_exact, oldest, estimated)
    return Merged(nodes, by_name, rate_of, unfinished, lag, is_exact, says_ready, readers)


class ColumnTable(Generic[RowT]):
    """Rows of one kind.

    Args:
        make: makes a row from its key and its figures; an unknown figure (nan) is None there.

    Attributes:
        keys: topic and channel of each row, in order.
        columns: the figures by name, each of shape (len(keys),).
    """

    def __init__(
        self,
        keys: Sequence[Key],
        columns: Mapping[str, NDArray[Any]],
        make: Callable[[Key, dict[str, Any]], RowT],
    ) -> None:
        self.keys = keys
        self.columns = columns
        self._make = make

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.keys)

    def __iter__(self) -> Iterator[RowT]:
        """All rows, one after the other."""
        return map(self.__getitem__, range(len(self.keys)))

    def __getitem__(self, place: int) -> RowT:
        """Make the row at this place."""
        figures = {name: column[place].item() for name, column in self.columns.items()}
        for name, figure in figures.items():
            if isinstance(figure, float) and math.isnan(figure):
                figures[name] = None
        return self._make(self.keys[place], figures)

    def find(self, topic: str, channel: str = "") -> RowT | None:
        """Make the row of this name; None if there is none."""
        place = self._places.get((topic, channel))
        return None if place is None else self[place]

    @cached_property
    def _places(self) -> dict[Key, int]:
        return {key: place for place, key in enumerate(self.keys)}

    @cached_property
    def texts(self) -> list[str]:
        """The text of each row that filters search: `topic/channel` in lower case."""
        return ["/".join(filter(None, key)).lower() for key in self.keys]


@dataclass(frozen=True, slots=True)
class NameOrder:
    """The numbers of the existing topics, and of the channels, in the order of their names."""

    topics: Numbers
    channels: Numbers


def order_of(named: Numbering, merged: Merged) -> NameOrder:
    """Compute the order of the topics and channels that exist."""
    found = np.flatnonzero(merged.nodes).tolist()
    numbers = np.array(sorted(found, key=named.keys.__getitem__), np.int32)
    is_topic = named.topic_of[numbers] == numbers
    return NameOrder(numbers[is_topic], numbers[~is_topic])


def tables(
    named: Numbering,
    merged: Merged,
    order: NameOrder | None = None,
    idle: Figures | None = None,
    growth: Figures | None = None,
) -> tuple[ColumnTable[TopicRow], ColumnTable[ChannelRow]]:
    """Make the tables of all topics and channels.

    Args:
        order: the order of the names.
        idle: seconds that messages have waited without one being finished, by number.
        growth: growth of the depth, messages per second, by number.
    """
    order = order or order_of(named, merged)
    idle = np.zeros(named.size) if idle is None else idle
    growth = np.full(named.size, np.nan) if growth is None else growth
    return _topics(named, merged, order), _channels(named, merged, order, idle, growth)


def _channels(
    named: Numbering, merged: Merged, order: NameOrder, idle: Figures, growth: Figures
) -> ColumnTable[ChannelRow]:
    counts, rates = merged.counts, merged.rates
    readers = np.zeros(named.size, np.int8)
    readers[list(merged.readers)] = 1
    rules = state_rules(
        paused=counts["paused"] > 0,
        clients=counts["clients"],
        readers=readers,
        unfinished=merged.unfinished,
        idle_seconds=idle,
        lag_seconds=merged.lag,
    )
    places = [STATES.index(state) for state in rules]
    shrinking = rates["finished"] - rates["messages"]
    with np.errstate(divide="ignore", invalid="ignore"):
        clear = np.where(shrinking > 0, merged.unfinished / shrinking, np.inf)
    clear[np.isnan(shrinking)] = np.nan
    # What is in flight does not wait: a channel whose consumers keep up is clear.
    clear[counts["depth"] == 0] = 0.0
    by_number: dict[str, NDArray[Any]] = {
        **{name: counts[name] for name in _COUNTS},
        **{name: rates[counter] for name, counter in _RATES.items()},
        "memory_depth": np.maximum(0, counts["depth"] - counts["backend_depth"]),
        "paused": counts["paused"] > 0,
        "topic_paused": counts["paused"][named.topic_of[: named.size]] > 0,
        "ready": np.where(merged.says_ready, counts["ready"], np.nan),
        "lag_seconds": merged.lag,
        "lag_is_exact": merged.is_exact,
        "clear_seconds": clear,
        "growth": growth,
        "unfinished_seconds": idle,
        "nodes": merged.nodes,
        "state": np.select([*rules.values()], places, STATES.index("ok")).astype(np.int8),
    }
    by_key = {named.keys[number]: reader for number, reader in merged.readers.items()}

    def make(key: Key, figures: dict[str, Any]) -> ChannelRow:
        figures["state"] = STATES[figures["state"]]
        if figures["ready"] is not None:
            figures["ready"] = int(figures["ready"])
        return ChannelRow(topic=key[0], channel=key[1], reader=by_key.get(key), **figures)

    columns = {name: column[order.channels] for name, column in by_number.items()}
    return ColumnTable([named.keys[n] for n in order.channels.tolist()], columns, make)


def _topics(named: Numbering, merged: Merged, order: NameOrder) -> ColumnTable[TopicRow]:
    """The table of all topics, with sums over their channels."""
    at, topic_of = order.topics, named.topic_of[order.channels]

    def over_channels(figures: NDArray[Any], add: np.ufunc, start: float = 0) -> NDArray[Any]:
        # Not bincount, which adds in float64: sums of counts stay exact as integers.
        sums = np.full(named.size, start, figures.dtype)
        add.at(sums, topic_of, figures[order.channels])
        return sums[at]

    counts, rates = merged.counts, merged.rates
    summed = {
        name: over_channels(counts[name], np.add)
        for name in ("depth", "in_flight", "deferred", "clients")
    }
    # Unknown only if it is unknown for all of its channels; fmax ignores nan.
    rate = over_channels(np.nan_to_num(rates["finished"]), np.add)
    is_known = over_channels(~np.isnan(rates["finished"]), np.logical_or)
    lags = over_channels(merged.lag, np.fmax, -1.0)
    depth, backend = counts["depth"][at], counts["backend_depth"][at]
    columns: dict[str, NDArray[Any]] = {
        **summed,
        "depth": depth,
        "memory_depth": np.maximum(0, depth - backend),
        "backend_depth": backend,
        "waiting": depth + summed["depth"],
        "messages": counts["messages"][at],
        "message_bytes": counts["bytes"][at],
        "channels": over_channels(np.ones(named.size, np.int64), np.add),
        "nodes": merged.nodes[at],
        "paused": counts["paused"][at] > 0,
        "in_rate": rates["messages"][at],
        "byte_rate": rates["bytes"][at],
        "out_rate": np.where(is_known, rate, np.nan),
        "lag_seconds": np.where(lags < 0, np.nan, lags),
    }

    def make(key: Key, figures: dict[str, Any]) -> TopicRow:
        return TopicRow(topic=key[0], **figures)

    return ColumnTable([named.keys[number] for number in at.tolist()], columns, make)
