"""The rows of lists: a node, an nsqlookupd, a notice, a group of clients (`cluster.rows`: others).

1. Rates are per second; None means unknown: fewer than two answers of each nsqd since its start.
2. `..._seconds` is an age or a duration, `..._at` is seconds since 1970.
3. Sums are over the nodes that answer; a node that is gone keeps its last figures in its own row.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from sparq.cluster.rows import Row

NodeState: TypeAlias = Literal["up", "silent", "unregistered", "gone"]
Level: TypeAlias = Literal["bad", "warn", "note"]
LEVELS: tuple[Level, ...] = ("bad", "warn", "note")


class NodeRow(Row):
    """One nsqd.

    Attributes:
        address: `broadcast_address:http_port`, its id everywhere in nsqadmin.
        state: up; silent (no answer yet to the last query, figures are the last ones);
            unregistered (answers, but no nsqlookupd lists it); gone (refuses connections, or does
            not answer).
        since_at: when this state began.
        answered_at: when it last answered; None: never.
        error: why it did not answer; "" if it did.
        is_sparq: whether it serves messages, search and replay over HTTP (Go's nsqd does not).
        health: `OK`, or the trouble with its disk.
        is_short: whether it refuses publishes because its disk is short of space.
        draining: whether it refuses publishes because it is draining.
        lookupds: the nsqlookupds that list it.
        waiting: waiting messages in its topics and channels.
        tombstoned: its topics that an nsqlookupd hides.
        out_of_date: whether its version is lower than the highest one in the cluster.
    """

    address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    zone: str
    region: str
    state: NodeState
    since_at: float
    answered_at: float | None
    error: str
    is_sparq: bool
    health: str
    is_short: bool
    draining: bool
    started_at: int
    lookupds: tuple[str, ...]
    tombstoned: tuple[str, ...]
    out_of_date: bool
    topics: int
    channels: int
    waiting: int
    in_flight: int
    deferred: int
    clients: int
    messages: int
    in_rate: float | None
    out_rate: float | None

    @property
    def text(self) -> str:
        """What filters search."""
        return f"{self.address} {self.hostname} {self.version}"

    @property
    def is_well(self) -> bool:
        """Whether it is there, and its disk has no trouble."""
        return self.state != "gone" and not self.is_short and self.health in ("", "OK")

    @property
    def was_drained(self) -> bool:
        """Whether it has left after a drain, with nothing left: as intended."""
        left = self.waiting + self.in_flight + self.deferred
        return self.state == "gone" and self.draining and not left


class Totals(Row):
    """The totals of the cluster; figures of `silent` nodes count, those of gone nodes do not.

    Attributes:
        nodes_up: number of nodes that are not gone and whose disk has no trouble.
    """

    nodes: int
    nodes_up: int
    topics: int
    channels: int
    waiting: int
    in_flight: int
    deferred: int
    clients: int
    messages: int
    in_rate: float | None
    byte_rate: float | None
    out_rate: float | None
    requeue_rate: float | None
    timeout_rate: float | None
    lag_seconds: float | None


class Lookupd(Row):
    """An nsqlookupd.

    Attributes:
        address: as it was configured.
        error: why it does not answer; "" if it does.
        nodes: addresses of the nsqds that it lists, sorted.
    """

    address: str
    error: str
    nodes: tuple[str, ...] = ()


class Notice(Row):
    """Trouble that needs attention.

    Attributes:
        key: stays the same while the trouble lasts.
        level: `bad` (messages are in danger or are not being delivered), `warn`, `note`.
        sentence: describes the trouble.
        link: path of the page that shows it, below the base path.
    """

    key: str
    level: Level
    sentence: str
    link: str


class ClientGroup(Struct, forbid_unknown_fields=True):
    """Consumer connections of one kind, grouped by host and user agent.

    Attributes:
        connections: number of connections.
        client_ids: some of their client ids, at most `detail.IDS_MAX`.
        addresses: some of the connections, as `NODE/ADDRESS`, at most `detail.IDS_MAX`.
        connected_at: when the oldest one connected.
        nodes: number of nodes that they are connected to.
        finished, requeued, messages: counters, summed.
    """

    topic: str
    channel: str
    hostname: str
    user_agent: str
    connections: int = 0
    nodes: int = 0
    client_ids: tuple[str, ...] = ()
    in_flight: int = 0
    ready: int = 0
    finished: int = 0
    requeued: int = 0
    messages: int = 0
    connected_at: int = 0
    attributes: tuple[str, ...] = ()
    zone: str = ""
    region: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What filters search."""
        return f"{self.hostname} {self.user_agent} {self.topic}/{self.channel}"
