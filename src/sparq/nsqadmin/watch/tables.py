"""The tables of channels and topics, made of a cluster's columns.

1. A table has the names that are there, in the order of their names; its columns carry the names
   of the rows' fields (`rows`), so that a list can be sorted by each of them.
2. All arithmetic here is by column; nothing loops over channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sparq.nsqadmin.watch import merge
from sparq.nsqadmin.watch.look import AT, Figures
from sparq.nsqadmin.watch.merge import STATES, Columns
from sparq.nsqadmin.watch.names import Key, Numbering, Numbers
from sparq.nsqadmin.watch.rows import Channel, Topic
from sparq.nsqadmin.watch.table import Table

Places = NDArray[np.intp]

_COUNTERS = {"messages": "messages", "requeued": "requeued", "timed_out": "timed_out"}
_RATES = {
    "in_rate": "messages",
    "out_rate": "finished",
    "requeue_rate": "requeued",
    "timeout_rate": "timed_out",
}


@dataclass(frozen=True, slots=True)
class Order:
    """Which numbers are there, in the order of their names.

    Attributes:
        topics, channels: their numbers.
        of_topic: for each channel the place of its topic in `topics`.
    """

    topics: Numbers
    channels: Numbers
    of_topic: Places


def order_of(named: Numbering, columns: Columns) -> Order:
    """The order of what the columns have."""
    found = np.flatnonzero(columns.nodes)
    numbers = np.array(sorted(found.tolist(), key=named.keys.__getitem__), np.int32)
    is_topic = named.topic_of[numbers] == numbers
    topics, channels = numbers[is_topic], numbers[~is_topic]
    place = np.zeros(named.size, np.intp)
    place[topics] = np.arange(len(topics))
    return Order(topics, channels, place[named.topic_of[channels]])


def channels_table(
    keys: list[Key], columns: Columns, order: Order, unfinished: Figures, growth: Figures
) -> Table[Channel]:
    """All channels.

    Args:
        keys: the names by number.
        columns: the cluster, or one node.
        order: of what is in them.
        unfinished: for how long messages have waited with none finished, seconds, by number.
        growth: of the depth, messages per second, by number.
    """
    at = order.channels
    states = merge.channel_states(columns, unfinished)
    ready = np.where(columns.says_ready, columns.count("ready"), np.nan)
    found: dict[str, NDArray[Any]] = {
        **{name: columns.count(name)[at] for name in ("depth", "backend_depth", "in_flight")},
        **{name: columns.count(name)[at] for name in ("deferred", "clients", *_COUNTERS)},
        **{name: columns.rate(counter)[at] for name, counter in _RATES.items()},
        "memory_depth": np.maximum(0, columns.count("depth") - columns.count("backend_depth"))[at],
        "paused": columns.count("paused")[at] > 0,
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

    def make(key: Key, figures: dict[str, Any]) -> Channel:
        figures["state"] = STATES[figures["state"]]
        if figures["ready"] is not None:
            figures["ready"] = int(figures["ready"])
        return Channel(topic=key[0], channel=key[1], reader=readers.get(key), **figures)

    return Table([keys[number] for number in at.tolist()], found, make)


def topics_table(keys: list[Key], columns: Columns, order: Order) -> Table[Topic]:
    """All topics, with what their channels add up to."""
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

    def make(key: Key, figures: dict[str, Any]) -> Topic:
        return Topic(topic=key[0], **figures)

    return Table([keys[number] for number in at.tolist()], found, make)


def _summed(columns: Columns, order: Order, name: str) -> NDArray[np.int64]:
    """A count over each topic's channels."""
    sums = np.zeros(len(order.topics), np.int64)
    np.add.at(sums, order.of_topic, columns.count(name)[order.channels])
    return sums


def _out_rates(columns: Columns, order: Order) -> Figures:
    """What each topic's channels finish; unknown where it is for all of them."""
    rates = columns.rate("finished")[order.channels]
    is_known = ~np.isnan(rates)
    sums = np.bincount(order.of_topic, np.nan_to_num(rates), len(order.topics))
    known = np.bincount(order.of_topic, is_known, len(order.topics))
    return cast(Figures, np.where(known > 0, sums, np.nan))


def _largest_lags(columns: Columns, order: Order) -> Figures:
    """Each topic's largest lag; unknown where it is for all of its channels."""
    lags = np.full(len(order.topics), -1.0)
    np.fmax.at(lags, order.of_topic, columns.lag[order.channels])
    return np.where(lags < 0, np.nan, lags)
