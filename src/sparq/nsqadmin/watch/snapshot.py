"""The whole cluster at one moment, and the builder, which makes one snapshot after the other.

1. A snapshot never changes: it may be shown while the next one is made, also on another thread,
   because it shares nothing that is changed later (`names` replaces its lists instead).
2. Sums are over the nodes that answer, and over silent ones with their last figures. A node that is
   gone keeps its last figures in its own row.
3. The builder keeps the data of earlier snapshots that the next one needs, so that the computations
   can be pure functions.
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
from sparq.nsqadmin.watch.merge import ClusterColumns, Flags, StallClock, merge, rates_of
from sparq.nsqadmin.watch.names import Key, NameNumbers, Numbering, Numbers
from sparq.nsqadmin.watch.node_stats import AT, EarlierCounts, Figures, NodeStats
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
    NameOrder,
    channels_table,
    order_of,
    topics_table,
)

COUNTED: Final = ("up", "silent", "unregistered")


@dataclass(frozen=True, slots=True)
class Observed:
    """One nsqd as the watch has seen it; times are seconds since 1970.

    Attributes:
        node: as it was listed.
        lookupds: addresses of the nsqlookupds that list it.
        stats: its last statistics; None if it has never answered.
        base: earlier counters from which its rates are computed; None if there are none.
    """

    node: Listed
    state: NodeState
    since_at: float
    answered_at: float | None
    error: str = ""
    lookupds: tuple[str, ...] = ()
    stats: NodeStats | None = None
    base: EarlierCounts | None = None


@dataclass(frozen=True)
class ClusterSnapshot:
    """The cluster.

    Attributes:
        number: 1, 2, ...; a later snapshot has a larger one.
        time: seconds since 1970.
        errors: why a node or nsqlookupd did not answer, by address.
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

    @cached_property
    def has_go(self) -> bool:
        """Whether some node that is not gone is not sparq's: it does not show its messages."""
        return any(not node.is_sparq for node in self.nodes if node.state in COUNTED)

    @property
    def has_log(self) -> bool:
        """Whether some node shows the messages of its log; Go's nsqd does not."""
        return any(node.is_sparq for node in self.nodes)

    @cached_property
    def _by_address(self) -> dict[str, tuple[NodeRow, Observed]]:
        pairs = zip(self.nodes, self.observed, strict=True)
        return {node.address: (node, seen) for node, seen in pairs}

    @cached_property
    def _topic_numbers(self) -> dict[str, int]:
        keys = self.named.keys[: self.named.size]
        return {key[0]: n for n, key in enumerate(keys) if key[0] and not key[1]}

    def node(self, address: str) -> NodeRow | None:
        """The node with this address; None if there is none."""
        found = self._by_address.get(address)
        return found[0] if found else None

    def at_node(self, address: str) -> tuple[ColumnTable[TopicRow], ColumnTable[ChannelRow]]:
        """The topics and channels of one node, with its last figures.

        Raises:
            KeyError: there is no such node.
        """
        _, seen = self._by_address[address]
        answers = [] if seen.stats is None else [(seen.stats, seen.base)]
        return _tables(self.named, answers)

    def topic_nodes(self, topic: str) -> list[tuple[NodeRow, TopicRow]]:
        """The nodes that have a topic, including gone ones, each with its own figures."""
        return [(node, topics.row(0)) for node, topics, _ in self._parts(topic, None)]

    def channel_nodes(self, topic: str, channel: str) -> list[tuple[NodeRow, ChannelRow]]:
        """The nodes that have a channel, including gone ones, each with its own figures."""
        return [(node, channels.row(0)) for node, _, channels in self._parts(topic, channel)]

    def _parts(
        self, topic: str, channel: str | None
    ) -> list[tuple[NodeRow, ColumnTable[TopicRow], ColumnTable[ChannelRow]]]:
        """A topic with all of its channels, or one, at each node that has it."""
        wanted = self._numbers_of(topic, channel)
        keys = [self.named.keys[number] for number in wanted]
        topic_of = np.full(len(wanted), keys.index((topic, "")) if wanted.size else 0, np.int32)
        named = Numbering(keys, topic_of, len(keys))
        parts = []
        for node, seen in self._by_address.values():
            stats = None if seen.stats is None else seen.stats.only(wanted)
            if stats is None or not stats.numbers.size:
                continue
            base = None if seen.base is None else seen.base.only(wanted)
            topics, channels = _tables(named, [(stats, base)])
            if channel is None or len(channels):
                parts.append((node, topics, channels))
        return parts

    def _numbers_of(self, topic: str, channel: str | None) -> Numbers:
        """The numbers of a topic and its channels, or one of them; empty if it is unknown."""
        keys, topic_of, size = self.named.keys, self.named.topic_of, self.named.size
        own = self._topic_numbers.get(topic)
        if own is None:
            return np.zeros(0, np.int32)
        family = np.flatnonzero(topic_of[:size] == own).astype(np.int32)
        left = [n for n in family.tolist() if channel is None or keys[n][1] in ("", channel)]
        return np.array(left, np.int32)


def _tables(
    named: Numbering, answers: Sequence[tuple[NodeStats, EarlierCounts | None]]
) -> tuple[ColumnTable[TopicRow], ColumnTable[ChannelRow]]:
    """The tables of some nodes, without the figures that exist only for the whole cluster."""
    columns = merge(answers, named.size)
    order = order_of(named, columns)
    unfinished, growth = np.zeros(named.size), np.full(named.size, np.nan)
    channels = channels_table(named.keys, columns, order, unfinished, growth)
    return topics_table(named.keys, columns, order), channels


class SnapshotBuilder:
    """Makes one snapshot after the other.

    Attributes:
        names: the numbers that the statistics of all nodes use.
        history: the last hour; `build` adds a step when one is due.
    """

    def __init__(self) -> None:
        self.names = NameNumbers()
        self.history = History(self.names)
        self._progress = StallClock()
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
        columns = merge([(s.stats, s.base) for s in counted if s.stats], named.size)
        order = self._order(named, columns)
        unfinished = self._progress.update(columns, now)
        there = frozenset(seen.node.address for seen in counted)
        growth = self.history.growth(time, columns.count("depth").astype(np.float64), there)
        channels = channels_table(named.keys, columns, order, unfinished, growth)
        topics = topics_table(named.keys, columns, order)
        nodes = tuple(_node(seen, named) for seen in observed)
        totals = _totals(nodes, topics, channels)
        if self.history.is_due(time, named.size):
            self.history.take(time, named.size, order, (topics, channels), (nodes, totals))
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

    def _order(self, named: Numbering, columns: ClusterColumns) -> NameOrder:
        """The order of the names; it is computed again only if the names have changed."""
        there = columns.nodes > 0
        if self._ordered is not None:
            keys, before, order = self._ordered
            # Reused numbers come with a new list of keys. New names are appended to the same list,
            # but then `there` is longer.
            if keys is named.keys and np.array_equal(before, there):
                return order
        order = order_of(named, columns)
        self._ordered = named.keys, there, order
        return order


def _node(seen: Observed, named: Numbering) -> NodeRow:
    stats, listed = seen.stats, seen.node
    figures = _zero_sums() if stats is None else _sums(stats, seen.base, named)
    return NodeRow(
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
        is_sparq=stats is not None and stats.sparq_version is not None,
        health="" if stats is None else stats.health,
        is_short=stats is not None and stats.is_short,
        draining=stats is not None and stats.draining,
        started_at=0 if stats is None else stats.start_time,
        lookupds=seen.lookupds,
        tombstoned=tuple(name for name, is_hidden in listed.topics if is_hidden),
        out_of_date=listed.out_of_date,
        **figures,
    )


def _version(seen: Observed) -> str:
    """NSQ's version, and for sparq's nsqd also sparq's version."""
    if seen.stats is None:
        return seen.node.version
    own = seen.stats.sparq_version
    return seen.stats.version if own is None else f"{seen.stats.version} (sparq {own})"


def _zero_sums() -> dict[str, Any]:
    counts = ("topics", "channels", "waiting", "in_flight", "deferred", "clients", "messages")
    return {**dict.fromkeys(counts, 0), "in_rate": None, "out_rate": None}


def _sums(stats: NodeStats, base: EarlierCounts | None, named: Numbering) -> dict[str, Any]:
    """Sums over the topics and channels of one node."""
    is_topic = named.topic_of[stats.numbers] == stats.numbers
    sums = stats.counts.sum(axis=1)
    grown = rates_of(stats, base)
    in_rate = None if grown is None else _sum(grown[AT["messages"]][is_topic])
    out_rate = None if grown is None else _sum(grown[AT["finished"]][~is_topic])
    return {
        "topics": int(is_topic.sum()),
        "channels": int((~is_topic).sum()),
        "waiting": int(sums[AT["depth"]]),
        "in_flight": int(sums[AT["in_flight"]]),
        "deferred": int(sums[AT["deferred"]]),
        "clients": int(sums[AT["clients"]]),
        "messages": int(stats.column("messages")[is_topic].sum()),
        "in_rate": in_rate,
        "out_rate": out_rate,
    }


def _sum(rates: Figures) -> float | None:
    """The sum of the known rates; None if there are rates but none is known."""
    known = rates[~np.isnan(rates)]
    return float(known.sum()) if known.size or not rates.size else None


def _totals(
    nodes: Sequence[NodeRow], topics: ColumnTable[TopicRow], channels: ColumnTable[ChannelRow]
) -> Totals:
    lags = channels.columns["lag_seconds"]
    known = lags[~np.isnan(lags)]
    of_topics, of_channels = topics.columns, channels.columns
    return Totals(
        nodes=len(nodes),
        nodes_up=sum(node.is_well for node in nodes),
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
