"""What is fetched only while somebody looks at it: one topic or channel with clients, all clients.

1. A topic or channel is fetched once for all who look at it, and again after `EVERY_SECONDS`.
2. Fifty pages of fifty channels ask a node for `A_ROUND` of them between two pictures, in turns:
   who is not asked for this time keeps what was known, and goes first the next time. The first look
   at a channel does not wait for its turn, but only `FIRST_AT_ONCE` of these are under way at once.
3. Whoever looks again waits `SOON_SECONDS` for news at most, so that a node that hangs holds up no
   page that has something to show.
4. Only nodes that have the topic are asked.
5. Connections of consumers are folded by host and user agent: a row for a fleet of 500 pods. What
   clients say of themselves is not trusted: texts are cut to one line.
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
from sparq.cluster import figures
from sparq.cluster.clients import Client, clients_of, read_clients
from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import UpstreamError
from sparq.nsqadmin.watch.picture import COUNTED, Picture
from sparq.nsqadmin.watch.rows import ClientGroup

KEPT_MAX: Final = 2000
KEPT_SECONDS: Final = 60.0
"""For how long what nobody looks at any more is kept."""

EVERY_SECONDS: Final = 1.5
A_ROUND: Final = 8
"""Topics and channels that a node is asked for between two pictures."""

FIRST_AT_ONCE: Final = 8
WATCHED_SECONDS: Final = 5.0
"""For how long after a look somebody counts as looking at a channel."""

SOON_SECONDS: Final = 0.25
CLIENTS_SECONDS: Final = 10.0
"""All clients of the cluster are fetched this often at most: that is much more than figures."""

IDS_MAX: Final = 20
GROUPS_MAX: Final = 20_000

Key = tuple[str, str]

logger = logging.getLogger(__name__)


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


@dataclass(slots=True)
class _Kept:
    """What is known of a topic or channel.

    Attributes:
        looked_at, asked_at: when it was last looked at and asked for, on the monotonic clock.
        asked: the addresses that were asked.
        task: the question that is under way.
    """

    looked_at: float
    asked_at: float = 0.0
    detail: Detail | None = None
    asked: tuple[str, ...] = ()
    task: asyncio.Task[Detail] | None = None


class Details:
    """Asks, and keeps answers for a while."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._due: OrderedDict[Key, None] = OrderedDict()
        self._number = 0
        self._asked: Counter[str] = Counter()
        self._first = asyncio.Semaphore(FIRST_AT_ONCE)
        self._all: tuple[float, asyncio.Task[tuple[ClientGroup, ...]]] | None = None

    async def close(self) -> None:
        """Give up what is under way."""
        tasks: list[asyncio.Task[Any]] = [one.task for one in self._kept.values() if one.task]
        tasks += [self._all[1]] if self._all else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def detail(self, picture: Picture, topic: str, channel: str = "") -> Detail:
        """A topic, or a channel of it, with its clients."""
        now, key = time.monotonic(), (topic, channel)
        self._begin(picture, now)
        kept = self._kept.setdefault(key, _Kept(now))
        self._kept.move_to_end(key)
        is_watched = now - kept.looked_at < WATCHED_SECONDS
        is_old = now - kept.asked_at >= EVERY_SECONDS
        kept.looked_at = now
        if kept.detail is None or (is_old and not is_watched):
            task = kept.task or self._start(picture, key, kept, is_first=True)
            # A viewer who leaves takes nothing away from the others.
            return await asyncio.shield(task)
        if is_old and kept.task is None:
            self._due[key] = None
            self._take_turns(picture, now)
        if kept.task is not None:
            await asyncio.wait([kept.task], timeout=SOON_SECONDS)
        return kept.detail

    def _begin(self, picture: Picture, now: float) -> None:
        """With a new picture nodes may be asked again."""
        if picture.number <= self._number:
            return
        self._number = picture.number
        self._asked.clear()
        for key in list(self._kept):
            old = self._kept[key]
            is_needed = now - old.looked_at < KEPT_SECONDS and len(self._kept) <= KEPT_MAX
            if is_needed or old.task is not None:
                break
            del self._kept[key]
        self._take_turns(picture, now)

    def _take_turns(self, picture: Picture, now: float) -> None:
        """Ask for what has been due for longest, as far as its nodes may be asked."""
        for key in list(self._due):
            kept = self._kept.get(key)
            if kept is None or now - kept.looked_at >= WATCHED_SECONDS:
                del self._due[key]  # nobody looks at it any more
            elif all(self._asked[address] < A_ROUND for address in kept.asked):
                del self._due[key]
                self._start(picture, key, kept)

    def _start(
        self, picture: Picture, key: Key, kept: _Kept, *, is_first: bool = False
    ) -> asyncio.Task[Detail]:
        nodes = _nodes(picture, key[0])
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
        folder = Folder()
        for address, stats in found.value.items():
            folder.add(address, clients_of(stats))
        now = time.time()
        whole = figures.topic_of(topic, nodes, found.value, now)
        part = figures.channel_of(topic, channel, nodes, found.value, now) if channel else None
        return Detail(whole, part, folder.groups(), found.errors)

    async def clients(self, picture: Picture) -> tuple[ClientGroup, ...]:
        """All consumers of the nodes that answer."""
        edition = time.monotonic() // CLIENTS_SECONDS
        kept = self._all
        if kept is None or (kept[0] != edition and kept[1].done()) or _has_failed(kept[1]):
            kept = self._all = edition, asyncio.create_task(self._clients(picture))
        return await asyncio.shield(kept[1])

    async def _clients(self, picture: Picture) -> tuple[ClientGroup, ...]:
        folder = Folder()
        for seen in picture.observed:
            if seen.state in COUNTED:
                with contextlib.suppress(UpstreamError, ValueError):
                    answer = await self._fleet.upstream.read(
                        seen.node.at, "/stats", format="json", include_mem="false"
                    )
                    folder.add(seen.node.address, await asyncio.to_thread(read_clients, answer))
        return folder.groups()


class Folder:
    """Folds clients; beyond `GROUPS_MAX` kinds further ones are left out."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], _Group] = {}

    def add(self, node: str, clients: Iterable[tuple[str, str, Client]]) -> None:
        """Take in the clients of a node."""
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
        """All kinds, by topic, channel, host and user agent."""
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
        )


def _attributes(client: Client) -> tuple[str, ...]:
    """How it is connected, in NSQ's words."""
    names = ("TLS", "Deflate", "Snappy", "Authed")
    found = [name for name in names if getattr(client, name.lower())]
    if client.sample_rate:
        found.append(f"Sampled {client.sample_rate}%")
    return tuple(found)


def _keep(kept: _Kept, task: asyncio.Task[Detail]) -> None:
    """Take in an answer; without one what was known stays."""
    kept.task = None
    if task.cancelled():
        return
    if (error := task.exception()) is not None:
        logger.error("a look at a topic or channel failed", exc_info=error)
        return
    kept.detail = task.result()


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _nodes(picture: Picture, topic: str) -> list[Node]:
    """Those that have a topic and are not gone."""
    addresses = {node.address for node, _ in picture.topic_nodes(topic)}
    counted = (seen for seen in picture.observed if seen.state in COUNTED)
    return [seen.node for seen in counted if seen.node.address in addresses]
