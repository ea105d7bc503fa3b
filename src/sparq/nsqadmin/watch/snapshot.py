"""The whole cluster at one moment, and the builder, which makes one snapshot after the other.

1. A snapshot never changes: it may be shown while the next one is made, also on another thread,
   because it shares nothing that is changed later (`names` replaces its lists instead).
2. Sums are over the nodes that answer, and over silent ones with their last figures. A node that is
   gone keeps its last figures in its own row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sparq.cluster.figures import NsqdFigures
from sparq.cluster.fleet import Node
from sparq.cluster.rows import (
    Answer,
    ChannelPast,
    ChannelRow,
    Key,
    NodeStats,
    RowTable,
    Tables,
    TopicRow,
    tables,
)
from sparq.nsqadmin.watch.attention import attention
from sparq.nsqadmin.watch.history import History
from sparq.nsqadmin.watch.rows import Lookupd, NodeRow, NodeState, Notice, Totals
from sparq.protocol.names import one_line

COUNTED: Final = ("up", "silent", "unregistered")
NO_STATS: Final = NodeStats(NsqdFigures(), 0.0)


class Observed(NamedTuple):
    """One nsqd as the watch has seen it; times are seconds since 1970.

    Attributes:
        node: as it was listed.
        lookupds: addresses of the nsqlookupds that list it.
        stats: its last statistics; None if it has never answered.
        base: earlier statistics from which its rates are computed; None if there are none.
    """

    node: Node
    state: NodeState
    since_at: float
    answered_at: float | None
    error: str = ""
    lookupds: tuple[str, ...] = ()
    stats: NodeStats | None = None
    base: NodeStats | None = None

    @property
    def answer(self) -> Answer:
        """Its figures, and the earlier ones; without any topic if it has never answered."""
        return self.stats or NO_STATS, self.base


@dataclass(frozen=True)
class ClusterSnapshot:
    """The cluster.

    Attributes:
        number: 1, 2, ...; a later snapshot has a larger one.
        time: seconds since 1970.
        lookupds: the nsqlookupds; empty if nsqds were configured instead.
        observed: the data that each of `nodes` is made from.
    """

    number: int
    time: float
    totals: Totals
    nodes: tuple[NodeRow, ...]
    topics: RowTable[TopicRow]
    channels: RowTable[ChannelRow]
    notices: tuple[Notice, ...]
    lookupds: tuple[Lookupd, ...]
    observed: tuple[Observed, ...]

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

    def node(self, address: str) -> NodeRow | None:
        """The node with this address; None if there is none."""
        return next((node for node in self.nodes if node.address == address), None)

    def notices_at(self, *links: str) -> list[Notice]:
        """The notices that link to one of these pages."""
        return [notice for notice in self.notices if notice.link in links]

    def at_node(self, address: str) -> Tables:
        """The topics and channels of one node, with its last figures."""
        return tables(each.answer for each in self.observed if each.node.address == address)

    def topic_nodes(self, topic: str) -> list[tuple[NodeRow, TopicRow]]:
        """The nodes that have a topic, including gone ones, each with its own figures."""
        return [(node, row) for node, found in self._at(topic) for row in found.topics]

    def channel_nodes(self, topic: str, channel: str) -> list[tuple[NodeRow, ChannelRow]]:
        """The nodes that have a channel, including gone ones, each with its own figures."""
        found = [(node, found.channels.find(topic, channel)) for node, found in self._at(topic)]
        return [(node, row) for node, row in found if row is not None]

    def _at(self, topic: str) -> list[tuple[NodeRow, Tables]]:
        """A topic and its channels at each node that has it."""
        return [
            (node, tables([seen.answer], topic))
            for node, seen in zip(self.nodes, self.observed, strict=True)
            if topic in seen.answer[0].names.places
        ]


class SnapshotBuilder(ChannelPast):
    """Makes one snapshot after the other; it keeps what the next one needs of earlier ones.

    Attributes:
        history: the last hour; `build` adds a step when one is due.
    """

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self._base: tuple[int, float] | None = None
        self._number = 0

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
        counted = [each for each in observed if each.state in COUNTED]
        self.begin(now)
        self._base = self.history.base(time, frozenset(each.node.address for each in counted))
        topics, channels, sums, left_out = tables((each.answer for each in counted), past=self)
        nodes = tuple(_node(seen) for seen in observed)
        lags = [row.lag_seconds for row in channels if row.lag_seconds is not None]
        up, lag = sum(node.is_well for node in nodes), max(lags, default=None)
        totals = Totals(nodes=len(nodes), nodes_up=up, **sums, lag_seconds=lag)
        # Before the first answer nothing is known: a step of zeros would be wrong for ten seconds.
        if any(seen.stats is not None for seen in observed):
            self.history.add(time, topics, channels, nodes, totals)
        notices = attention(
            time=time,
            nodes=nodes,
            topics=topics,
            channels=channels,
            lookupds=lookupds,
            refused=refused or {},
            names_left_out=left_out,
        )
        self._number += 1
        made_of = (topics, channels, notices, tuple(lookupds), tuple(observed))
        return ClusterSnapshot(self._number, time, totals, nodes, *made_of)

    def growth(self, key: Key, depth: int) -> float | None:
        """Growth of a depth in the last minute, in messages per second."""
        return self.history.growth(key, depth, self._base)


def _node(seen: Observed) -> NodeRow:
    listed, (stats, base) = seen.node, seen.answer
    nsqd, version = stats.figures, listed.version
    if seen.stats is not None:
        version, own = one_line(nsqd.version), nsqd.sparq_version
        version = version if own is None else f"{version} (sparq {one_line(own)})"
    sums = stats.sums(base)
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
        is_sparq=nsqd.sparq_version is not None,
        health=one_line(nsqd.health),
        is_short=nsqd.is_short,
        draining=nsqd.draining,
        started_at=nsqd.start_time,
        lookupds=seen.lookupds,
        tombstoned=tuple(name for name, is_hidden in listed.topics if is_hidden),
        out_of_date=listed.out_of_date,
        **{name: sums[name] for name in sums.keys() & {*NodeRow.__struct_fields__}},
    )
