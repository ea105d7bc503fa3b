"""The whole cluster at one moment.

1. A picture is never changed: whoever shows it may keep it while the next one is made.
2. Sums are over nodes that answer, and silent ones with their last figures. A node that is gone
   keeps its last figures in its own row.
3. It is made by `painter.Painter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from sparq.cluster.nodes import Node as Listed
from sparq.nsqadmin.watch.attention import Lookupd
from sparq.nsqadmin.watch.look import Counters, Look
from sparq.nsqadmin.watch.merge import merge
from sparq.nsqadmin.watch.names import Numbering, Numbers
from sparq.nsqadmin.watch.rows import Channel, Node, NodeState, Notice, Topic, Totals
from sparq.nsqadmin.watch.table import Table
from sparq.nsqadmin.watch.tables import channels_table, order_of, topics_table

COUNTED: Final = ("up", "silent", "unregistered")


@dataclass(frozen=True, slots=True)
class Observed:
    """One nsqd as the loop has seen it; times are seconds since 1970.

    Attributes:
        node: as it was listed.
        lookupds: addresses of the nsqlookupds that list it.
        look: its last figures; None: it has never answered.
        base: where its rates begin; None: unknown.
    """

    node: Listed
    state: NodeState
    since_at: float
    answered_at: float | None
    error: str = ""
    lookupds: tuple[str, ...] = ()
    look: Look | None = None
    base: Counters | None = None


@dataclass(frozen=True)
class Picture:
    """The cluster.

    Attributes:
        number: 1, 2, ...; a later picture has a larger one.
        time: seconds since 1970.
        errors: why a node or nsqlookupd did not answer, by address.
        lookupds: the nsqlookupds; none where nsqds were given.
        observed: what each of `nodes` is made of.
        named: the names of the numbers in looks.
    """

    number: int
    time: float
    totals: Totals
    nodes: tuple[Node, ...]
    topics: Table[Topic]
    channels: Table[Channel]
    notices: tuple[Notice, ...]
    lookupds: tuple[Lookupd, ...]
    observed: tuple[Observed, ...]
    named: Numbering

    @property
    def errors(self) -> dict[str, str]:
        """Who did not answer, and why."""
        nodes = {node.address: node.error for node in self.nodes if node.error}
        return nodes | {each.address: each.error for each in self.lookupds if each.error}

    @cached_property
    def has_go(self) -> bool:
        """Whether some node that answers cannot be looked into."""
        return any(not node.is_sparq for node in self.nodes if node.state in COUNTED)

    @cached_property
    def _by_address(self) -> dict[str, tuple[Node, Observed]]:
        pairs = zip(self.nodes, self.observed, strict=True)
        return {node.address: (node, seen) for node, seen in pairs}

    @cached_property
    def _topic_numbers(self) -> dict[str, int]:
        keys = self.named.keys[: self.named.size]
        return {key[0]: n for n, key in enumerate(keys) if key[0] and not key[1]}

    def node(self, address: str) -> Node | None:
        """The node of this address."""
        found = self._by_address.get(address)
        return found[0] if found else None

    def topic(self, name: str) -> Topic | None:
        """The topic of this name."""
        return self.topics.find(name)

    def channel(self, topic: str, name: str) -> Channel | None:
        """The channel of this name."""
        return self.channels.find(topic, name)

    def at_node(self, address: str) -> tuple[Table[Topic], Table[Channel]]:
        """What one node has, in its last figures.

        Raises:
            KeyError: there is no such node.
        """
        _, seen = self._by_address[address]
        looks = [] if seen.look is None else [(seen.look, seen.base)]
        return _tables(self.named, looks)

    def topic_nodes(self, topic: str) -> list[tuple[Node, Topic]]:
        """The nodes that have a topic, gone ones too, each with its own figures."""
        return [(node, topics.row(0)) for node, topics, _ in self._parts(topic, None)]

    def channel_nodes(self, topic: str, channel: str) -> list[tuple[Node, Channel]]:
        """The nodes that have a channel, gone ones too, each with its own figures."""
        return [(node, channels.row(0)) for node, _, channels in self._parts(topic, channel)]

    def _parts(
        self, topic: str, channel: str | None
    ) -> list[tuple[Node, Table[Topic], Table[Channel]]]:
        """A topic with all or one of its channels at each node that has it."""
        wanted = self._numbers_of(topic, channel)
        keys = [self.named.keys[number] for number in wanted]
        topic_of = np.full(len(wanted), keys.index((topic, "")) if wanted.size else 0, np.int32)
        named = Numbering(keys, topic_of, len(keys))
        parts = []
        for node, seen in self._by_address.values():
            look = None if seen.look is None else seen.look.only(wanted)
            if look is None or not look.numbers.size:
                continue
            base = None if seen.base is None else seen.base.only(wanted)
            topics, channels = _tables(named, [(look, base)])
            if channel is None or len(channels):
                parts.append((node, topics, channels))
        return parts

    def _numbers_of(self, topic: str, channel: str | None) -> Numbers:
        """The numbers of a topic and its channels, or one of them; none if it is not known."""
        keys, topic_of, size = self.named.keys, self.named.topic_of, self.named.size
        own = self._topic_numbers.get(topic)
        if own is None:
            return np.zeros(0, np.int32)
        family = np.flatnonzero(topic_of[:size] == own).astype(np.int32)
        left = [n for n in family.tolist() if channel is None or keys[n][1] in ("", channel)]
        return np.array(left, np.int32)


def _tables(
    named: Numbering, looks: Sequence[tuple[Look, Counters | None]]
) -> tuple[Table[Topic], Table[Channel]]:
    """The tables of some nodes alone, without what only the whole cluster is watched for."""
    columns = merge(looks, named.size)
    order = order_of(named, columns)
    unfinished, growth = np.zeros(named.size), np.full(named.size, np.nan)
    channels = channels_table(named.keys, columns, order, unfinished, growth)
    return topics_table(named.keys, columns, order), channels
