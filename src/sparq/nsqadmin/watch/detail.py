"""Data that is fetched only while it is viewed: one topic or channel with clients, or all clients.

1. An answer is fetched once for all of its viewers (`SharedAnswer`). The first viewer waits for it.
   Later ones wait at most `SOON_SECONDS` for a newer one, so that a hanging node does not delay a
   page that already has data to show.
2. A topic or channel is fetched again after `EVERY_SECONDS`. With more than `AT_ONCE` of them in
   view, it takes longer in proportion, and only `AT_ONCE` of these queries run at once: fifty
   pages put no more load on a node than eight.
3. Only nodes that have the topic are queried.
4. Connections of consumers are grouped by host and user agent: one row for a fleet of 500 pods.
   Data that clients send about themselves is not trusted: texts are cut to one line.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sparq.cluster import cluster_stats, figures
from sparq.cluster.figures import Client
from sparq.cluster.fleet import Fleet
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.watch.rows import ClientGroup
from sparq.nsqadmin.watch.snapshot import COUNTED, ClusterSnapshot
from sparq.protocol.names import one_line

KEPT_MAX: Final = 2000
KEPT_SECONDS: Final = 60.0
"""How long data is kept after it was last viewed."""

EVERY_SECONDS: Final = 1.5
AT_ONCE: Final = 8
WATCHED_SECONDS: Final = 5.0
"""How long after a request a topic or channel counts as being viewed."""

SOON_SECONDS: Final = 0.25
CLIENTS_SECONDS: Final = 10.0
"""Minimum time between two fetches of all clients, which are much larger than the figures."""

IDS_MAX: Final = 20
GROUPS_MAX: Final = 20_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Detail:
    """One topic or channel over all nodes that answered.

    Attributes:
        stats: its figures in NSQ's shape, with latencies; None: no node has the channel.
        clients: its consumers, grouped.
        errors: why nodes did not answer, by address.
    """

    stats: cluster_stats.Document | None
    clients: tuple[ClientGroup, ...]
    errors: dict[str, str]


class SharedAnswer(Generic[T]):
    """The answer to one query, for all viewers; times are on the monotonic clock."""

    def __init__(self) -> None:
        self.looked_at = self._asked_at = -math.inf
        self._value: T | None = None
        self._task: asyncio.Task[T] | None = None

    async def get(self, ask: Callable[[], Awaitable[T]], every_seconds: float) -> T:
        """The last answer; if it is older than `every_seconds`, `ask` for a new one (rule 1)."""
        now = time.monotonic()
        is_watched, self.looked_at = now - self.looked_at < WATCHED_SECONDS, now
        if self._task is not None and self._task.done():
            self._task = None
        if self._task is None and now - self._asked_at >= every_seconds:
            self._asked_at, self._task = now, asyncio.create_task(self._ask(ask))
        if self._value is None or (self._task is not None and not is_watched):
            assert self._task is not None
            # Shielded, so that one viewer's disconnect does not cancel the query of the others.
            return await asyncio.shield(self._task)
        if self._task is not None:
            # Not wait_for, which would cancel the query that all viewers share.
            await asyncio.wait([self._task], timeout=SOON_SECONDS)
        return self._value

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            self._value = await ask()
        except BaseException:
            self._asked_at = -math.inf
            raise
        return self._value

    async def close(self) -> None:
        """Cancel a running query."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Details:
    """Fetches topics, channels and clients, and caches the answers for a while."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: OrderedDict[tuple[str, str], SharedAnswer[Detail]] = OrderedDict()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._all = SharedAnswer[tuple[ClientGroup, ...]]()

    async def close(self) -> None:
        """Cancel running queries."""
        await asyncio.gather(self._all.close(), *(one.close() for one in self._kept.values()))

    async def detail(self, snapshot: ClusterSnapshot, topic: str, channel: str = "") -> Detail:
        """Get a topic, or one of its channels, with its clients."""
        kept = self._kept.setdefault((topic, channel), SharedAnswer())
        self._kept.move_to_end((topic, channel))
        now = time.monotonic()
        for key, one in [*self._kept.items()][:-1]:
            if now - one.looked_at < KEPT_SECONDS and len(self._kept) <= KEPT_MAX:
                break
            del self._kept[key]
        watched = sum(now - one.looked_at < WATCHED_SECONDS for one in self._kept.values())
        every = EVERY_SECONDS * max(1, math.ceil(watched / AT_ONCE))
        return await kept.get(lambda: self._ask(snapshot, topic, channel), every)

    async def _ask(self, snapshot: ClusterSnapshot, topic: str, channel: str) -> Detail:
        there = {row.address for row, _ in snapshot.topic_nodes(topic) if row.state in COUNTED}
        nodes = [seen.node for seen in snapshot.observed if seen.node.address in there]
        async with self._slots:
            found = await self._fleet.stats(topic, channel, clients=True, nodes=nodes)
        groups = ClientGroups()
        for address, answer in found.value.items():
            groups.add(address, answer.clients())
        of = (nodes, found.value, time.time())
        stats = (
            cluster_stats.channel_of(topic, channel, *of)
            if channel
            else cluster_stats.topic_of(topic, *of)
        )
        return Detail(stats, groups.groups(), found.errors)

    async def clients(self, snapshot: ClusterSnapshot) -> tuple[ClientGroup, ...]:
        """Get all consumers of the nodes that are not gone."""
        return await self._all.get(lambda: self._clients(snapshot), CLIENTS_SECONDS)

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
        self._groups: dict[tuple[Any, ...], ClientGroup] = {}

    def add(self, node: str, clients: Iterable[tuple[str, str, Client]]) -> None:
        """Add the clients of a node, once for each node."""
        here: set[int] = set()
        for topic, channel, client in clients:
            attributes = _attributes(client)
            told = (
                client.hostname,
                client.user_agent,
                client.topology_zone,
                client.topology_region,
            )
            key = (topic, channel, *told, *attributes)
            group = self._groups.get(key)
            if group is None:
                if len(self._groups) >= GROUPS_MAX:
                    continue
                host, agent, zone, region = map(one_line, told)
                group = self._groups[key] = ClientGroup(
                    topic, channel, host, agent, attributes=attributes, zone=zone, region=region
                )
            if id(group) not in here:
                here.add(id(group))
                group.nodes += 1
            group.connections += 1
            group.in_flight += client.in_flight_count
            group.ready += client.ready_count
            group.finished += client.finish_count
            group.requeued += client.requeue_count
            group.messages += client.message_count
            group.connected_at = min(group.connected_at or client.connect_ts, client.connect_ts)
            name = one_line(client.client_id)
            if len(group.client_ids) < IDS_MAX and name not in group.client_ids:
                group.client_ids += (name,)
            if len(group.addresses) < IDS_MAX:
                group.addresses += (one_line(f"{node}/{client.remote_address}"),)

    def groups(self) -> tuple[ClientGroup, ...]:
        """All groups, ordered by topic, channel, host and user agent."""
        return tuple(group for _, group in sorted(self._groups.items()))


def _attributes(client: Client) -> tuple[str, ...]:
    """How a client is connected, in NSQ's words."""
    names = ("TLS", "Deflate", "Snappy", "Authed")
    found = [name for name in names if getattr(client, name.lower())]
    if client.sample_rate:
        found.append(f"Sampled {client.sample_rate}%")
    return tuple(found)
