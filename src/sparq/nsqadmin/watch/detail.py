"""What is fetched only while somebody looks at it: one topic or channel with clients, all clients.

1. A question is asked once for a picture, however many want to know; the answer is kept until the
   next picture.
2. Only nodes that have the topic are asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from sparq.cluster import figures
from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.watch.clients import Folder, clients_of, read_clients
from sparq.nsqadmin.watch.picture import COUNTED, Picture
from sparq.nsqadmin.watch.rows import ClientGroup

KEPT_MAX: Final = 256
CLIENTS_SECONDS: Final = 10.0
"""All clients of the cluster are fetched this often at most: that is much more than figures."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Detail:
    """One topic or channel over all nodes that answered.

    Attributes:
        topic: its figures in NSQ's shape, also by node, with latencies.
        channel: the same of the channel; None if a topic was asked for, or no node has it.
        clients: its consumers, folded.
        errors: why nodes did not answer, by address.
    """

    topic: figures.TopicStats
    channel: figures.ChannelStats | None
    clients: tuple[ClientGroup, ...]
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AllClients:
    """The consumers of the cluster, folded; `left_out` connections had no room."""

    clients: tuple[ClientGroup, ...]
    left_out: int
    errors: dict[str, str]


class Details:
    """Asks, and keeps answers for a while."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: dict[tuple[str, ...], tuple[object, asyncio.Task[Any]]] = {}

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [task for _, task in self._kept.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def detail(self, picture: Picture, topic: str, channel: str = "") -> Detail:
        """A topic, or a channel of it, with its clients."""

        async def ask() -> Detail:
            return await self._detail(picture, topic, channel)

        return await self._once(("detail", topic, channel), picture.number, ask)

    async def clients(self, picture: Picture) -> AllClients:
        """All consumers."""

        async def ask() -> AllClients:
            return await self._clients(picture)

        return await self._once(("clients",), time.monotonic() // CLIENTS_SECONDS, ask)

    async def _once(
        self, key: tuple[str, ...], edition: object, ask: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        kept = self._kept.pop(key, None)
        if kept is None or (kept[0] != edition and kept[1].done()) or _has_failed(kept[1]):
            kept = edition, asyncio.create_task(ask())
        self._kept[key] = kept
        for old in list(self._kept)[: len(self._kept) - KEPT_MAX]:
            if self._kept[old][1].done():
                del self._kept[old]
        # A viewer who leaves takes nothing away from the others.
        return cast(T, await asyncio.shield(kept[1]))

    async def _detail(self, picture: Picture, topic: str, channel: str) -> Detail:
        nodes = _nodes(picture, topic)
        found = await self._fleet.stats(topic, channel, clients=True, nodes=nodes)
        folder = Folder()
        for address, stats in found.value.items():
            folder.add(address, clients_of(stats))
        now = time.time()
        whole = figures.topic_of(topic, nodes, found.value, now)
        part = figures.channel_of(topic, channel, nodes, found.value, now) if channel else None
        return Detail(whole, part, folder.groups(), found.errors)

    async def _clients(self, picture: Picture) -> AllClients:
        folder = Folder()
        errors = {}
        for seen in picture.observed:
            if seen.state not in COUNTED:
                continue
            try:
                answer = await self._fleet.upstream.read(
                    seen.node.at, "/stats", format="json", include_mem="false"
                )
                folder.add(seen.node.address, await asyncio.to_thread(_listed, answer))
            except (UpstreamError, ValueError) as error:
                errors[seen.node.address] = getattr(error, "reason", str(error))
        return AllClients(folder.groups(), folder.left_out, errors)


def _listed(answer: bytes) -> list[Any]:
    return list(read_clients(answer))


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _nodes(picture: Picture, topic: str) -> list[Node]:
    """Those that have a topic and are not gone."""
    addresses = {node.address for node, _ in picture.topic_nodes(topic)}
    counted = (seen for seen in picture.observed if seen.state in COUNTED)
    return [seen.node for seen in counted if seen.node.address in addresses]
