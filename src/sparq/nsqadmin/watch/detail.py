"""Data that is fetched only while it is viewed: one topic or channel with clients, or all clients.

1. A topic or channel is fetched once for all of its viewers, and again after `EVERY_SECONDS`.
2. Between two snapshots, a node is queried for at most `A_ROUND` topics and channels, in turns,
   even if fifty pages show fifty channels. A channel that has to wait keeps its last data and comes
   first the next time. The first request for a channel does not wait for its turn, but only
   `FIRST_AT_ONCE` of these queries run at once.
3. Every later request waits at most `SOON_SECONDS` for new data, so that a hanging node does not
   delay a page that already has data to show.
4. Only nodes that have the topic are queried.
5. Connections of consumers are grouped by host and user agent: one row for a fleet of 500 pods.
   Data that clients send about themselves is not trusted: texts are cut to one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from sparq.client.reasons import one_line
from sparq.cluster import cluster_stats, figures
from sparq.cluster.figures import Client
from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.watch.rows import ClientGroup
from sparq.nsqadmin.watch.snapshot import COUNTED, ClusterSnapshot

KEPT_MAX: Final = 2000
KEPT_SECONDS: Final = 60.0
"""How long data is kept after it was last viewed."""

EVERY_SECONDS: Final = 1.5
A_ROUND: Final = 8
"""Maximum number of topics and channels that a node is queried for between two snapshots."""

FIRST_AT_ONCE: Final = 8
WATCHED_SECONDS: Final = 5.0
"""How long after a request a topic or channel counts as being viewed."""

SOON_SECONDS: Final = 0.25
CLIENTS_SECONDS: Final = 10.0
"""Minimum time between two fetches of all clients, which are much larger than the figures."""

IDS_MAX: Final = 20
GROUPS_MAX: Final = 20_000

Key = tuple[str, str]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Detail:
    """One topic or channel over all nodes that answered.

    Attributes:
        topic: figures in NSQ's shape, also by node, with latencies.
        channel: the same for the channel; None if a topic was requested, or no node has it.
        clients: its consumers, grouped.
        errors: why nodes did not answer, by address.
    """

    topic: cluster_stats.TopicSummary
    channel: cluster_stats.ChannelSummary | None
    clients: tuple[ClientGroup, ...]
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Kept:
    """The cached data of a topic or channel.

    Attributes:
        looked_at, asked_at: when it was last viewed and last queried, on the monotonic clock.
        asked: addresses of the nodes that were queried.
        task: the running query; None if there is none.
    """

    looked_at: float
    asked_at: float = 0.0
    detail: Detail | None = None
    asked: tuple[str, ...] = ()
    task: asyncio.Task[Detail] | None = None


class Details:
    """Fetches topics, channels and clients, and caches the answers for a while."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._due: OrderedDict[Key, None] = OrderedDict()
        self._number = 0
        self._asked: Counter[str] = Counter()
        self._first = asyncio.Semaphore(FIRST_AT_ONCE)
        self._all: tuple[float, asyncio.Task[tuple[ClientGroup, ...]]] | None = None

    async def close(self) -> None:
        """Cancel running queries."""
        tasks: list[asyncio.Task[Any]] = [one.task for one in self._kept.values() if one.task]
        tasks += [self._all[1]] if self._all else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def detail(self, snapshot: ClusterSnapshot, topic: str, channel: str = "") -> Detail:
        """Get a topic, or one of its channels, with its clients."""
        now, key = time.monotonic(), (topic, channel)
        self._begin(snapshot, now)
        kept = self._kept.setdefault(key, _Kept(now))
        self._kept.move_to_end(key)
        is_watched = now - kept.looked_at < WATCHED_SECONDS
        is_old = now - kept.asked_at >= EVERY_SECONDS
        kept.looked_at = now
        if kept.detail is None or (is_old and not is_watched):
            task = kept.task or self._start(snapshot, key, kept, is_first=True)
            # Shielded, so that one viewer's disconnect does not cancel the query of the others.
            return await asyncio.shield(task)
        if is_old and kept.task is None:
            self._due[key] = None
            self._take_turns(snapshot, now)
        if kept.task is not None:
            # Not wait_for, which would cancel the query that all viewers share.
            await asyncio.wait([kept.task], timeout=SOON_SECONDS)
        return kept.detail

    def _begin(self, snapshot: ClusterSnapshot, now: float) -> None:
        """If the snapshot is new, allow more queries of each node, and drop old data."""
        if snapshot.number <= self._number:
            return
        self._number = snapshot.number
        self._asked.clear()
        for key in list(self._kept):
            old = self._kept[key]
            is_needed = now - old.looked_at < KEPT_SECONDS and len(self._kept) <= KEPT_MAX
            if is_needed or old.task is not None:
                break
            del self._kept[key]
        self._take_turns(snapshot, now)

    def _take_turns(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Start the queries that have been due longest, as far as their nodes may be queried."""
        for key in list(self._due):
            kept = self._kept.get(key)
            if kept is None or now - kept.looked_at >= WATCHED_SECONDS:
                del self._due[key]  # it is no longer viewed
            elif all(self._asked[address] < A_ROUND for address in kept.asked):
                del self._due[key]
                self._start(snapshot, key, kept)

    def _start(
        self, snapshot: ClusterSnapshot, key: Key, kept: _Kept, *, is_first: bool = False
    ) -> asyncio.Task[Detail]:
        nodes = _nodes(snapshot, key[0])
        kept.asked_at = time.monotonic()
        kept.asked = tuple(node.address for node in nodes)
        self._asked.update(kept.asked)
        kept.task = asyncio.create_task(self._ask(nodes, *key, is_first))
        kept.task.add_done_callback(lambda task: _keep(kept, task))
        return kept.task

    async def _ask(self, nodes: list[Node], topic: str, channel: str, is_first: bool) -> Detail:
        if not is_first:
            return await self._detail(nodes, topic, channel)
        async with self._first:
            return await self._detail(nodes, topic, channel)

    async def _detail(self, nodes: list[Node], topic: str, channel: str) -> Detail:
        found = await self._fleet.stats(topic, channel, clients=True, nodes=nodes)
        groups = ClientGroups()
        for address, answer in found.value.items():
            groups.add(address, answer.clients())
        now = time.time()
        whole = cluster_stats.topic_of(topic, nodes, found.value, now)
        part = (
            cluster_stats.channel_of(topic, channel, nodes, found.value, now) if channel else None
        )
        return Detail(whole, part, groups.groups(), found.errors)

    async def clients(self, snapshot: ClusterSnapshot) -> tuple[ClientGroup, ...]:
        """Get all consumers of the nodes that are not gone."""
        edition = time.monotonic() // CLIENTS_SECONDS
        kept = self._all
        if kept is None or (kept[0] != edition and kept[1].done()) or _has_failed(kept[1]):
            kept = self._all = edition, asyncio.create_task(self._clients(snapshot))
        return await asyncio.shield(kept[1])

    async def _clients(self, snapshot: ClusterSnapshot) -> tuple[ClientGroup, ...]:
        folder = ClientGroups()
        # One node after the other, so that only one of these large answers is in memory at a time.
        for seen in snapshot.observed:
            if seen.state in COUNTED:
                with contextlib.suppress(UpstreamError, ValueError):
                    answer = await self._fleet.upstream.read(
                        seen.node.at, "/stats", format="json", include_mem="false"
                    )
                    stats = await asyncio.to_thread(figures.read, answer)
                    folder.add(seen.node.address, stats.clients())
        return folder.groups()


class ClientGroups:
    """Groups clients by kind; beyond `GROUPS_MAX` kinds, further kinds are left out."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], _Group] = {}

    def add(self, node: str, clients: Iterable[tuple[str, str, Client]]) -> None:
        """Add the clients of a node."""
        for topic, channel, client in clients:
            attributes = _attributes(client)
            place = (client.topology_zone, client.topology_region)
            key = (topic, channel, client.hostname, client.user_agent, *place, *attributes)
            group = self._groups.get(key)
            if group is None and len(self._groups) < GROUPS_MAX:
                group = self._groups[key] = _Group(topic, channel, client, attributes)
            if group is not None:
                group.add(node, client)

    def groups(self) -> tuple[ClientGroup, ...]:
        """All groups, ordered by topic, channel, host and user agent."""
        return tuple(group.row() for _, group in sorted(self._groups.items()))


class _Group:
    def __init__(
        self, topic: str, channel: str, first: Client, attributes: tuple[str, ...]
    ) -> None:
        self.names = topic, channel
        self.first = first
        self.attributes = attributes
        self.nodes: set[str] = set()
        self.ids: dict[str, None] = {}
        self.addresses: list[str] = []
        self.connections = self.in_flight = self.ready = 0
        self.finished = self.requeued = self.messages = 0
        self.connected_at = first.connect_ts

    def add(self, node: str, client: Client) -> None:
        self.nodes.add(node)
        self.connections += 1
        self.in_flight += client.in_flight_count
        self.ready += client.ready_count
        self.finished += client.finish_count
        self.requeued += client.requeue_count
        self.messages += client.message_count
        self.connected_at = min(self.connected_at, client.connect_ts)
        if len(self.ids) < IDS_MAX:
            self.ids[client.client_id] = None
        if len(self.addresses) < IDS_MAX:
            self.addresses.append(f"{node}/{client.remote_address}")

    def row(self) -> ClientGroup:
        return ClientGroup(
            *self.names,
            hostname=one_line(self.first.hostname),
            user_agent=one_line(self.first.user_agent),
            connections=self.connections,
            nodes=len(self.nodes),
            client_ids=tuple(one_line(each) for each in self.ids),
            in_flight=self.in_flight,
            ready=self.ready,
            finished=self.finished,
            requeued=self.requeued,
            messages=self.messages,
            connected_at=self.connected_at,
            attributes=self.attributes,
            zone=one_line(self.first.topology_zone),
            region=one_line(self.first.topology_region),
            addresses=tuple(one_line(each) for each in self.addresses),
        )


def _attributes(client: Client) -> tuple[str, ...]:
    """How a client is connected, in NSQ's words."""
    names = ("TLS", "Deflate", "Snappy", "Authed")
    found = [name for name in names if getattr(client, name.lower())]
    if client.sample_rate:
        found.append(f"Sampled {client.sample_rate}%")
    return tuple(found)


def _keep(kept: _Kept, task: asyncio.Task[Detail]) -> None:
    """Store the result of a query; if it failed, the previous data stays."""
    kept.task = None
    if task.cancelled():
        return
    if (error := task.exception()) is not None:
        logger.error("fetching a topic or channel failed", exc_info=error)
        return
    kept.detail = task.result()


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _nodes(snapshot: ClusterSnapshot, topic: str) -> list[Node]:
    """The nodes that have a topic and are not gone."""
    addresses = {node.address for node, _ in snapshot.topic_nodes(topic)}
    counted = (seen for seen in snapshot.observed if seen.state in COUNTED)
    return [seen.node for seen in counted if seen.node.address in addresses]
