"""The whole cluster at one moment, and the builder, which makes one snapshot after the other.

1. A snapshot never changes: it may be shown while the next one is made, also on another thread,
   because it shares nothing that is changed later (`names` replaces its lists instead).
2. Sums are over the nodes that answer, and over silent ones with their last figures. A node that is
   gone keeps its last figures in its own row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from sparq.cluster.nodes import Node as Listed
from sparq.nsqadmin.watch.attention import attention
from sparq.nsqadmin.watch.history import History
from sparq.nsqadmin.watch.names import Key, NameNumbers, Numbering, Numbers
from sparq.nsqadmin.watch.node_stats import AT, Figures, NodeStats
from sparq.nsqadmin.watch.rows import (
    ChannelRow,
    Lookupd,
    NodeRow,
    NodeState,
    Notice,
    TopicRow,
    Totals,
)
from sparq.nsqadmin.watch.tables import (
    ColumnTable,
    Flags,
    Merged,
    NameOrder,
    merge,
    order_of,
    rates_of,
    tables,
)

COUNTED: Final = ("up", "silent", "unregistered")


@dataclass(frozen=True, slots=True)
class Observed:
    """One nsqd as the watch has seen it; times are seconds since 1970.

    Attributes:
        node: as it was listed.
        lookupds: addresses of the nsqlookupds that list it.
        stats: its last statistics; None if it has never answered.
        base: earlier statistics from which its rates are computed; None if there are none.
    """

    node: Listed
    state: NodeState
    since_at: float
    answered_at: float | None
    error: str = ""
    lookupds: tuple[str, ...] = ()
    stats: NodeStats | None = None
    base: NodeStats | None = None


@dataclass(frozen=True)
class ClusterSnapshot:
    """The cluster.

    Attributes:
        number: 1, 2, ...; a later snapshot has a larger one.
        time: seconds since 1970.
        lookupds: the nsqlookupds; empty if nsqds were configured instead.
        observed: the data that each of `nodes` is made from.
        named: the names of the numbers in statistics.
    """

    number: int
    time: float
    totals: Totals
    nodes: tuple[NodeRow, ...]
    topics: ColumnTable[TopicRow]
    channels: ColumnTable[ChannelRow]
    notices: tuple[Notice, ...]
    lookupds: tuple[Lookupd, ...]
    observed: tuple[Observed, ...]
    named: Numbering

    @property
    def errors(self) -> dict[str, str]:
        """Why a node or nsqlookupd did not answer, by address."""
        nodes = {node.address: node.error for node in self.nodes if node.error}
        return nodes | {each.address: each.error for each in self.lookupds if each.error}

    @property
    def has_go(self) -> bool:
        """Whether some node that is not gone is not sparq's: it does not show its messages."""
        return any(not node.is_sparq for node in self.nodes if node.state in COUNTED)

    @property
    def has_log(self) -> bool:
        """Whether some node shows the messages of its log; Go's nsqd does not."""
        return any(node.is_sparq for node in self.nodes)

    @cached_property
    def _topic_numbers(self) -> dict[str, int]:
        keys = self.named.keys[: self.named.size]
        return {key[0]: n for n, key in enumerate(keys) if key[0] and not key[1]}

    def node(self, address: str) -> NodeRow | None:
        """The node with this address; None if there is none."""
        return next((node for node in self.nodes if node.address == address), None)

    def notices_at(self, *links: str) -> list[Notice]:
        """The notices that link to one of these pages."""
        return [notice for notice in self.notices if notice.link in links]

    def at_node(self, address: str) -> tuple[ColumnTable[TopicRow], ColumnTable[ChannelRow]]:
        """The topics and channels of one node, with its last figures."""
        seen = [each for each in self.observed if each.node.address == address]
        answers = [(each.stats, each.base) for each in seen if each.stats is not None]
        return tables(self.named, merge(answers, self.named.size))

    def topic_nodes(self, topic: str) -> list[tuple[NodeRow, TopicRow]]:
        """The nodes that have a topic, including gone ones, each with its own figures."""
        return [(node, topics[0]) for node, topics, _ in self._parts(topic, None)]

    def channel_nodes(self, topic: str, channel: str) -> list[tuple[NodeRow, ChannelRow]]:
        """The nodes that have a channel, including gone ones, each with its own figures."""
        parts = self._parts(topic, channel)
        return [(node, channels[0]) for node, _, channels in parts if len(channels)]

    def _parts(
        self, topic: str, channel: str | None
    ) -> list[tuple[NodeRow, ColumnTable[TopicRow], ColumnTable[ChannelRow]]]:
        """A topic with all of its channels, or one, at each node that has it."""
        own = self._topic_numbers.get(topic)
        if own is None:
            return []
        keys = self.named.keys
        family = np.flatnonzero(self.named.topic_of[: self.named.size] == own).tolist()
        left = [n for n in family if channel is None or keys[n][1] in ("", channel)]
        wanted: Numbers = np.array(left, np.int32)
        topic_of = np.full(len(left), left.index(own), np.int32)
        named = Numbering([keys[number] for number in left], topic_of, len(left))
        parts = []
        for node, seen in zip(self.nodes, self.observed, strict=True):
            stats = None if seen.stats is None else seen.stats.only(wanted)
            if stats is not None and stats.numbers.size:
                base = None if seen.base is None else seen.base.only(wanted)
                parts.append((node, *tables(named, merge([(stats, base)], named.size))))
        return parts


class SnapshotBuilder:
    """Makes one snapshot after the other; it keeps what the next one needs of earlier ones.

    Attributes:
        names: the numbers that the statistics of all nodes use.
        history: the last hour; `build` adds a step when one is due.
    """

    def __init__(self) -> None:
        self.names = NameNumbers()
        self.history = History(self.names)
        self._finished: Figures = np.zeros(0)
        self._moved_at: Figures = np.zeros(0)
        self._number = 0
        self._ordered: tuple[list[Key], Flags, NameOrder] | None = None

    def build(
        self,
        observed: Sequence[Observed],
        lookupds: Sequence[Lookupd] = (),
        refused: Mapping[str, str] | None = None,
        *,
        time: float,
        now: float,
    ) -> ClusterSnapshot:
        """Make a snapshot of the observed nodes.

        Args:
            observed: all nodes.
            lookupds: the nsqlookupds; empty if nsqds were configured instead.
            refused: by address, why a registered node is not queried.
            time: seconds since 1970.
            now: seconds of the monotonic clock.
        """
        for seen in observed:
            # A node that is gone keeps its last figures (rule 2), so their names must keep their
            # numbers.
            if seen.stats is not None:
                self.names.seen(seen.stats.numbers, now)
        named = self.names.numbering()
        counted = [each for each in observed if each.state in COUNTED]
        merged = merge([(s.stats, s.base) for s in counted if s.stats], named.size)
        order = self._order(named, merged)
        there = frozenset(seen.node.address for seen in counted)
        growth = self.history.growth(time, merged.counts["depth"], there)
        topics, channels = tables(named, merged, order, self._idle(merged, now), growth)
        nodes = tuple(_node(seen, named) for seen in observed)
        totals = _totals(nodes, topics, channels)
        if self.history.is_due(time, named.size):
            self.history.add(time, order, topics, channels, nodes=nodes, totals=totals)
        notices = attention(
            time=time,
            nodes=nodes,
            topics=topics,
            channels=channels,
            lookupds=lookupds,
            refused=refused or {},
            names_left_out=self.names.left_out,
        )
        self.names.forget(now)
        self._number += 1
        made_of = (tuple(lookupds), tuple(observed), named)
        return ClusterSnapshot(
            self._number, time, totals, nodes, topics, channels, notices, *made_of
        )

    def _order(self, named: Numbering, merged: Merged) -> NameOrder:
        """The order of the names; it is computed again only if the names have changed."""
        there = merged.nodes > 0
        if self._ordered is not None:
            keys, before, order = self._ordered
            # Reused numbers come with a new list of keys. New names are appended to the same list,
            # but then `there` is longer.
            if keys is named.keys and np.array_equal(before, there):
                return order
        order = order_of(named, merged)
        self._ordered = named.keys, there, order
        return order

    def _idle(self, merged: Merged, now: float) -> Figures:
        """Seconds for which messages have been unfinished without one being finished, by number.

        Any change of the counter counts as progress, even an nsqd's restart.
        """
        finished = merged.counts["finished"].astype(np.float64)
        # nan differs from every number, so a new name counts as having moved just now.
        before, moved_at = np.full(len(finished), np.nan), np.full(len(finished), now)
        known = min(len(finished), len(self._finished))
        before[:known], moved_at[:known] = self._finished[:known], self._moved_at[:known]
        moved_at[(finished != before) | (merged.unfinished == 0)] = now
        self._finished, self._moved_at = finished, moved_at
        return now - moved_at


def _node(seen: Observed, named: Numbering) -> NodeRow:
    stats, listed = seen.stats, seen.node
    version, sums = listed.version, dict.fromkeys(AT, 0)
    is_topic, messages, in_rate, out_rate = np.zeros(0, np.bool_), 0, None, None
    if stats is not None:
        own = stats.sparq_version
        version = stats.version if own is None else f"{stats.version} (sparq {own})"
        is_topic = named.topic_of[stats.numbers] == stats.numbers
        sums = dict(zip(AT, stats.counts.sum(axis=1).tolist(), strict=True))
        messages = int(stats.counts[AT["messages"]][is_topic].sum())
        rates = rates_of(stats, seen.base)
        if rates is not None:
            in_rate = _sum(rates[AT["messages"]][is_topic])
            out_rate = _sum(rates[AT["finished"]][~is_topic])
    return NodeRow(
        address=listed.address,
        hostname=listed.hostname,
        broadcast_address=listed.broadcast_address,
        tcp_port=listed.tcp_port,
        http_port=listed.http_port,
        version=version,
        zone=listed.topology_zone,
        region=listed.topology_region,
        state=seen.state,
        since_at=seen.since_at,
        answered_at=seen.answered_at,
        error=seen.error,
        is_sparq=stats is not None and stats.sparq_version is not None,
        health="" if stats is None else stats.health,
        is_short=stats is not None and stats.is_short,
        draining=stats is not None and stats.draining,
        started_at=0 if stats is None else stats.start_time,
        lookupds=seen.lookupds,
        tombstoned=tuple(name for name, is_hidden in listed.topics if is_hidden),
        out_of_date=listed.out_of_date,
        topics=int(is_topic.sum()),
        channels=int((~is_topic).sum()),
        waiting=sums["depth"],
        in_flight=sums["in_flight"],
        deferred=sums["deferred"],
        clients=sums["clients"],
        messages=messages,
        in_rate=in_rate,
        out_rate=out_rate,
    )


def _sum(rates: Figures) -> float | None:
    """The sum of the known rates; None if there are rates but none is known."""
    known = rates[~np.isnan(rates)]
    return float(known.sum()) if known.size or not rates.size else None


def _totals(
    nodes: Sequence[NodeRow], topics: ColumnTable[TopicRow], channels: ColumnTable[ChannelRow]
) -> Totals:
    lags = channels.columns["lag_seconds"]
    known = lags[~np.isnan(lags)]
    counted = ("waiting", "in_flight", "deferred", "clients", "messages")
    counts: dict[str, Any] = {name: int(topics.columns[name].sum()) for name in counted}
    return Totals(
        nodes=len(nodes),
        nodes_up=sum(node.is_well for node in nodes),
        topics=len(topics),
        channels=len(channels),
        **counts,
        in_rate=_sum(topics.columns["in_rate"]),
        byte_rate=_sum(topics.columns["byte_rate"]),
        out_rate=_sum(channels.columns["out_rate"]),
        requeue_rate=_sum(channels.columns["requeue_rate"]),
        timeout_rate=_sum(channels.columns["timeout_rate"]),
        lag_seconds=float(known.max()) if known.size else None,
    )
