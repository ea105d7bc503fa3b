"""Tables of channels and topics, stored as columns; a row is made only when it is shown.

1. A table has the existing topics or channels in the order of their names. Its columns are named
   like the fields of the rows (`rows`), so that a list can be sorted by any of them.
2. All arithmetic here works on whole columns; none loops over channels.
3. 10,000 rows as objects would take 10 ms and 5 MB in each round, and only 50 of them are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sparq.cluster.figures import STATES
from sparq.nsqadmin.watch import merge
from sparq.nsqadmin.watch.merge import ClusterColumns
from sparq.nsqadmin.watch.names import Key, Numbering, Numbers
from sparq.nsqadmin.watch.node_stats import AT, Figures
from sparq.nsqadmin.watch.rows import ChannelRow, TopicRow

RowT = TypeVar("RowT")
Places = NDArray[np.intp]

_COUNTS = (
    *("depth", "backend_depth", "in_flight", "deferred", "clients"),
    *("messages", "requeued", "timed_out"),
)
_RATES = {
    "in_rate": "messages",
    "out_rate": "finished",
    "requeue_rate": "requeued",
    "timeout_rate": "timed_out",
}


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
        return map(self.row, range(len(self.keys)))

    def row(self, place: int) -> RowT:
        """Make the row at this place."""
        figures = {name: _plain(column[place]) for name, column in self.columns.items()}
        return self._make(self.keys[place], figures)

    def find(self, topic: str, channel: str = "") -> RowT | None:
        """Make the row of this name; None if there is none."""
        place = self._places.get((topic, channel))
        return None if place is None else self.row(place)

    @cached_property
    def _places(self) -> dict[Key, int]:
        return {key: place for place, key in enumerate(self.keys)}

    @cached_property
    def texts(self) -> list[str]:
        """The text of each row that filters search: `topic/channel` in lower case."""
        return [
            f"{topic}/{channel}".lower() if channel else topic.lower()
            for topic, channel in self.keys
        ]


def _plain(figure: Any) -> Any:
    """Convert a figure to a Python value; None if it is unknown."""
    value = figure.item()
    return None if isinstance(value, float) and np.isnan(value) else value


@dataclass(frozen=True, slots=True)
class NameOrder:
    """The numbers of existing topics and channels, in the order of their names.

    Attributes:
        topics, channels: their numbers.
        of_topic: for each channel, the place of its topic in `topics`.
    """

    topics: Numbers
    channels: Numbers
    of_topic: Places


def order_of(named: Numbering, columns: ClusterColumns) -> NameOrder:
    """Compute the order of the topics and channels in the columns."""
    found = np.flatnonzero(columns.nodes)
    numbers = np.array(sorted(found.tolist(), key=named.keys.__getitem__), np.int32)
    is_topic = named.topic_of[numbers] == numbers
    topics, channels = numbers[is_topic], numbers[~is_topic]
    place = np.zeros(named.size, np.intp)
    place[topics] = np.arange(len(topics))
    return NameOrder(topics, channels, place[named.topic_of[channels]])


def channels_table(
    keys: list[Key], columns: ClusterColumns, order: NameOrder, unfinished: Figures, growth: Figures
) -> ColumnTable[ChannelRow]:
    """Make the table of all channels.

    Args:
        keys: the names by number.
        columns: figures of the cluster or of one node.
        order: the order of the names in them.
        unfinished: seconds that messages have waited without one being finished, by number.
        growth: growth of the depth, messages per second, by number.
    """
    at = order.channels
    states = merge.channel_states(columns, unfinished)
    ready = np.where(columns.says_ready, columns.count("ready"), np.nan)
    found: dict[str, NDArray[Any]] = {
        **{name: columns.count(name)[at] for name in _COUNTS},
        **{name: columns.rate(counter)[at] for name, counter in _RATES.items()},
        "memory_depth": np.maximum(0, columns.count("depth") - columns.count("backend_depth"))[at],
        "paused": columns.count("paused")[at] > 0,
        "topic_paused": columns.count("paused")[order.topics[order.of_topic]] > 0,
        "ready": ready[at],
        "lag_seconds": columns.lag[at],
        "lag_is_exact": columns.is_exact[at],
        "clear_seconds": merge.clear_seconds(columns)[at],
        "growth": growth[at],
        "unfinished_seconds": unfinished[at],
        "nodes": columns.nodes[at],
        "state": states[at],
    }
    readers = {keys[number]: reader for number, reader in columns.readers.items()}

    def make(key: Key, figures: dict[str, Any]) -> ChannelRow:
        figures["state"] = STATES[figures["state"]]
        if figures["ready"] is not None:
            figures["ready"] = int(figures["ready"])
        return ChannelRow(topic=key[0], channel=key[1], reader=readers.get(key), **figures)

    return ColumnTable([keys[number] for number in at.tolist()], found, make)


def topics_table(
    keys: list[Key], columns: ClusterColumns, order: NameOrder
) -> ColumnTable[TopicRow]:
    """Make the table of all topics, with sums over their channels."""
    at, own = order.topics, columns.counts[:, order.topics]
    depth, backend = own[AT["depth"]], own[AT["backend_depth"]]
    found: dict[str, NDArray[Any]] = {
        "depth": depth,
        "memory_depth": np.maximum(0, depth - backend),
        "backend_depth": backend,
        "waiting": depth + _summed(columns, order, "depth"),
        "in_flight": _summed(columns, order, "in_flight"),
        "deferred": _summed(columns, order, "deferred"),
        "messages": own[AT["messages"]],
        "message_bytes": own[AT["bytes"]],
        "clients": _summed(columns, order, "clients"),
        "channels": np.bincount(order.of_topic, minlength=len(at)),
        "nodes": columns.nodes[at],
        "paused": own[AT["paused"]] > 0,
        "in_rate": columns.rate("messages")[at],
        "byte_rate": columns.rate("bytes")[at],
        "out_rate": _out_rates(columns, order),
        "lag_seconds": _largest_lags(columns, order),
    }

    def make(key: Key, figures: dict[str, Any]) -> TopicRow:
        return TopicRow(topic=key[0], **figures)

    return ColumnTable([keys[number] for number in at.tolist()], found, make)


def _summed(columns: ClusterColumns, order: NameOrder, name: str) -> NDArray[np.int64]:
    """Sum a count over each topic's channels."""
    sums = np.zeros(len(order.topics), np.int64)
    # Not bincount, which adds in float64: sums of counts stay exact as integers.
    np.add.at(sums, order.of_topic, columns.count(name)[order.channels])
    return sums


def _out_rates(columns: ClusterColumns, order: NameOrder) -> Figures:
    """Finish rate over each topic's channels; unknown if it is unknown for all of them."""
    rates = columns.rate("finished")[order.channels]
    is_known = ~np.isnan(rates)
    sums = np.bincount(order.of_topic, np.nan_to_num(rates), len(order.topics))
    known = np.bincount(order.of_topic, is_known, len(order.topics))
    return cast(Figures, np.where(known > 0, sums, np.nan))


def _largest_lags(columns: ClusterColumns, order: NameOrder) -> Figures:
    """Largest lag of each topic's channels; unknown if it is unknown for all of them."""
    lags = np.full(len(order.topics), -1.0)
    # fmax ignores nan: a topic's lag is known if that of one channel is. -1 marks topics for which
    # none is known.
    np.fmax.at(lags, order.of_topic, columns.lag[order.channels])
    return np.where(lags < 0, np.nan, lags)
