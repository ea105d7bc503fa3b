"""Makes pictures: keeps what one needs of those before, so that the arithmetic can be pure.

All of it may run on another thread than the one that shows pictures; a picture shares nothing
that is changed later (`names` replaces what it changes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparq.nsqadmin.watch.attention import Lookupd, Sight, attention
from sparq.nsqadmin.watch.history import History
from sparq.nsqadmin.watch.look import AT, Counters, Figures, Look, read_look
from sparq.nsqadmin.watch.merge import Columns, Flags, merge, rates_of
from sparq.nsqadmin.watch.names import Key, Names, Numbering
from sparq.nsqadmin.watch.picture import COUNTED, Observed, Picture
from sparq.nsqadmin.watch.progress import Progress
from sparq.nsqadmin.watch.rows import Channel, Node, Topic, Totals
from sparq.nsqadmin.watch.table import Table
from sparq.nsqadmin.watch.tables import Order, channels_table, order_of, topics_table


class Painter:
    """Makes one picture after the other.

    Attributes:
        names: the numbers that all looks are in.
        history: of the last hour; a picture that is due adds a step.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.history = History(self.names)
        self._progress = Progress()
        self._number = 0
        self._ordered: tuple[list[Key], Flags, Order] | None = None

    def read(self, answer: bytes | bytearray, now: float) -> Look:
        """An nsqd's `/stats`, asked for at `now`, in seconds of the monotonic clock.

        Raises:
            ValueError: it is no such answer.
        """
        return read_look(answer, self.names, now)

    def paint(
        self,
        observed: Sequence[Observed],
        lookupds: Sequence[Lookupd] = (),
        refused: Mapping[str, str] | None = None,
        *,
        time: float,
        now: float,
    ) -> Picture:
        """The picture of what was observed.

        Args:
            observed: all nodes.
            lookupds: the nsqlookupds; none where nsqds were given.
            refused: why nodes that registered are not called, by address.
            time: seconds since 1970.
            now: seconds of the monotonic clock.
        """
        for seen in observed:
            if seen.look is not None:
                self.names.seen(seen.look.numbers, now)
        named = self.names.numbering()
        counted = [each for each in observed if each.state in COUNTED]
        columns = merge([(s.look, s.base) for s in counted if s.look], named.size)
        order = self._order(named, columns)
        unfinished = self._progress.update(columns, now)
        growth = self.history.growth(time, columns.count("depth").astype(np.float64))
        channels = channels_table(named.keys, columns, order, unfinished, growth)
        topics = topics_table(named.keys, columns, order)
        nodes = tuple(_node(seen, named) for seen in observed)
        totals = _totals(nodes, topics, channels)
        if self.history.is_due(time, named.size):
            self.history.take(time, named.size, order, (topics, channels), (nodes, totals))
        left_out = self.names.left_out
        self.names.forget(now)
        self._number += 1
        sight = Sight(time, nodes, topics, channels, lookupds, refused or {}, left_out)
        return Picture(
            self._number,
            time,
            totals,
            nodes,
            topics,
            channels,
            attention(sight),
            tuple(lookupds),
            tuple(observed),
            named,
        )

    def _order(self, named: Numbering, columns: Columns) -> Order:
        """The order of the names; it is made anew only when there are others."""
        there = columns.nodes > 0
        if self._ordered is not None:
            keys, before, order = self._ordered
            if keys is named.keys and np.array_equal(before, there):
                return order
        order = order_of(named, columns)
        self._ordered = named.keys, there, order
        return order


def _node(seen: Observed, named: Numbering) -> Node:
    look, listed = seen.look, seen.node
    figures = _no_figures() if look is None else _figures(look, seen.base, named)
    return Node(
        address=listed.address,
        hostname=listed.hostname,
        broadcast_address=listed.broadcast_address,
        tcp_port=listed.tcp_port,
        http_port=listed.http_port,
        version=_version(seen),
        zone=listed.topology_zone,
        region=listed.topology_region,
        state=seen.state,
        since_at=seen.since_at,
        answered_at=seen.answered_at,
        error=seen.error,
        is_sparq=look is not None and look.sparq_version is not None,
        health="" if look is None else look.health,
        is_short=look is not None and look.is_short,
        started_at=0 if look is None else look.start_time,
        lookupds=seen.lookupds,
        tombstoned=tuple(name for name, is_hidden in listed.topics if is_hidden),
        out_of_date=listed.out_of_date,
        **figures,
    )


def _version(seen: Observed) -> str:
    """NSQ's version, and sparq's own where it is one."""
    if seen.look is None:
        return seen.node.version
    own = seen.look.sparq_version
    return seen.look.version if own is None else f"{seen.look.version} (sparq {own})"


def _no_figures() -> dict[str, Any]:
    counts = ("topics", "channels", "waiting", "in_flight", "deferred", "clients", "messages")
    return {**dict.fromkeys(counts, 0), "in_rate": None, "out_rate": None}


def _figures(look: Look, base: Counters | None, named: Numbering) -> dict[str, Any]:
    """A node's own sums."""
    is_topic = named.topic_of[look.numbers] == look.numbers
    sums = look.counts.sum(axis=1)
    grown = rates_of(look, base)
    in_rate = None if grown is None else _sum(grown[AT["messages"]][is_topic])
    out_rate = None if grown is None else _sum(grown[AT["finished"]][~is_topic])
    return {
        "topics": int(is_topic.sum()),
        "channels": int((~is_topic).sum()),
        "waiting": int(sums[AT["depth"]]),
        "in_flight": int(sums[AT["in_flight"]]),
        "deferred": int(sums[AT["deferred"]]),
        "clients": int(sums[AT["clients"]]),
        "messages": int(look.column("messages")[is_topic].sum()),
        "in_rate": in_rate,
        "out_rate": out_rate,
    }


def _sum(rates: Figures) -> float | None:
    """The sum of what is known; None if there is something, but nothing is known."""
    known = rates[~np.isnan(rates)]
    return float(known.sum()) if known.size or not rates.size else None


def _totals(nodes: Sequence[Node], topics: Table[Topic], channels: Table[Channel]) -> Totals:
    lags = channels.columns["lag_seconds"]
    known = lags[~np.isnan(lags)]
    of_topics, of_channels = topics.columns, channels.columns
    return Totals(
        nodes=len(nodes),
        nodes_up=sum(node.state != "gone" for node in nodes),
        topics=len(topics),
        channels=len(channels),
        waiting=int(of_topics["waiting"].sum()),
        in_flight=int(of_topics["in_flight"].sum()),
        deferred=int(of_topics["deferred"].sum()),
        clients=int(of_topics["clients"].sum()),
        messages=int(of_topics["messages"].sum()),
        in_rate=_sum(of_topics["in_rate"]),
        byte_rate=_sum(of_topics["byte_rate"]),
        out_rate=_sum(of_channels["out_rate"]),
        requeue_rate=_sum(of_channels["requeue_rate"]),
        timeout_rate=_sum(of_channels["timeout_rate"]),
        lag_seconds=float(known.max()) if known.size else None,
    )
