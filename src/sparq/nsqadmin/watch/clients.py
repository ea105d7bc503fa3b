"""The connections of consumers, folded by host and user agent: a row for a fleet of 500 pods.

What clients say of themselves is not trusted: texts are cut to one line. Of a figure that is no
number the whole connection is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from sparq.client.reasons import one_line
from sparq.nsqadmin.watch.rows import ClientGroup
from sparq.protocol.names import is_valid_name

IDS_MAX: Final = 20
GROUPS_MAX: Final = 20_000


class Client(msgspec.Struct, gc=False):
    """What is used of a client in `/stats`."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    sample_rate: int = 0
    tls: bool = False
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    topology_zone: str = ""
    topology_region: str = ""


class _Channel(msgspec.Struct, gc=False):
    channel_name: str
    clients: list[Client] | None = None


class _Topic(msgspec.Struct, gc=False):
    topic_name: str
    channels: list[_Channel] | None = None


class _Document(msgspec.Struct, gc=False):
    topics: list[_Topic] | None = None


_document = msgspec.json.Decoder(_Document)


def read_clients(answer: bytes) -> Iterator[tuple[str, str, Client]]:
    """Topic, channel and each client in an answer of `/stats`.

    Raises:
        ValueError: it is no such answer.
    """
    try:
        topics = _document.decode(answer).topics
    except RecursionError:
        raise ValueError("figures that are nested too deep") from None
    for topic in topics or ():
        for channel in topic.channels or ():
            if is_valid_name(topic.topic_name) and is_valid_name(channel.channel_name):
                for client in channel.clients or ():
                    yield topic.topic_name, channel.channel_name, client


def clients_of(stats: Mapping[str, Any]) -> Iterator[tuple[str, str, Client]]:
    """The same of a document that was parsed (`Fleet.stats`)."""
    for topic in stats["topics"]:
        for channel in topic["channels"]:
            listed = channel.get("clients")
            for told in listed if isinstance(listed, list) else ():
                try:
                    client = msgspec.convert(told, Client)
                except msgspec.ValidationError:
                    continue
                yield topic["topic_name"], channel["channel_name"], client


class Folder:
    """Folds clients; beyond `GROUPS_MAX` kinds further ones are left out and counted.

    Attributes:
        left_out: connections that had no room.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._groups: dict[tuple[str, ...], _Group] = {}

    def add(self, node: str, clients: Iterable[tuple[str, str, Client]]) -> None:
        """Take in the clients of a node."""
        for topic, channel, client in clients:
            attributes = _attributes(client)
            place = (client.topology_zone, client.topology_region)
            key = (topic, channel, client.hostname, client.user_agent, *place, *attributes)
            group = self._groups.get(key)
            if group is None and len(self._groups) >= GROUPS_MAX:
                self.left_out += 1
                continue
            if group is None:
                group = self._groups[key] = _Group(topic, channel, client, attributes)
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
    names = {"TLS": client.tls, "Deflate": client.deflate, "Snappy": client.snappy}
    found = [name for name, is_so in (*names.items(), ("Authed", client.authed)) if is_so]
    if client.sample_rate:
        found.append(f"Sampled {client.sample_rate}%")
    return tuple(found)
