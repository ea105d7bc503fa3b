"""One row of each list: a channel, a topic, a node, an nsqlookupd, a notice, a group of clients.

1. Rates are per second; None means unknown: fewer than two answers of each nsqd since its start.
2. Seconds are ages or durations, `..._at` is seconds since 1970.
3. Sums are over the nodes that answer; a node that is gone keeps its last figures in its own row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ChannelState: TypeAlias = Literal["ok", "behind", "stuck", "no consumers", "paused"]
NodeState: TypeAlias = Literal["up", "silent", "unregistered", "gone"]
Level: TypeAlias = Literal["bad", "warn", "note"]
LEVELS: tuple[Level, ...] = ("bad", "warn", "note")


@dataclass(frozen=True, slots=True)
class Reader:
    """The Spark query, or another range reader, that holds a channel.

    Attributes:
        address: its connection's, as nsqd sees it.
        query: what it calls itself; "" if it did not say.
        commit_seconds: age of its last commit; None: none yet, or unknown.
    """

    address: str
    query: str = ""
    commit_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel over all nodes.

    Attributes:
        state: what to call it in one word (`merge.channel_states` has the rules).
        depth: messages that wait; in flight and deferred ones are not among them.
        messages, requeued, timed_out: counters since each nsqd's start, summed.
        ready: the sum of its clients' RDY; None with a node of Go's, which does not say.
        in_rate: messages per second that come in.
        out_rate: messages per second that consumers finish.
        lag_seconds: age of the oldest message that waits; inf: nothing is being finished.
        lag_is_exact: all nodes said the age; otherwise it is depth by the rate of finishing.
        clear_seconds: until nothing waits if rates stay; inf: never, since as many come in.
        growth: by how many messages per second the depth has grown over the last minute.
        unfinished_seconds: for how long messages have waited without one being finished.
        nodes: number of nodes that have it.
    """

    topic: str
    channel: str
    state: ChannelState
    depth: int
    memory_depth: int
    backend_depth: int
    in_flight: int
    deferred: int
    messages: int
    requeued: int
    timed_out: int
    clients: int
    ready: int | None
    paused: bool
    in_rate: float | None
    out_rate: float | None
    requeue_rate: float | None
    timeout_rate: float | None
    lag_seconds: float | None
    lag_is_exact: bool
    clear_seconds: float | None
    growth: float | None
    unfinished_seconds: float
    nodes: int
    reader: Reader | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic over all nodes.

    Attributes:
        depth: messages of the topic itself, which no channel has yet.
        waiting: depth of the topic and of all its channels.
        messages, message_bytes: counters since each nsqd's start, summed.
        in_rate, byte_rate: published per second.
        out_rate: finished per second, over all channels.
        lag_seconds: that of its slowest channel.
        nodes: number of nodes that have it.
    """

    topic: str
    depth: int
    memory_depth: int
    backend_depth: int
    waiting: int
    in_flight: int
    deferred: int
    messages: int
    message_bytes: int
    clients: int
    channels: int
    nodes: int
    paused: bool
    in_rate: float | None
    byte_rate: float | None
    out_rate: float | None
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class Node:
    """One nsqd.

    Attributes:
        address: `broadcast_address:http_port`, by which it is known everywhere here.
        state: up; silent (no answer yet to the last question, figures are the last ones);
            unregistered (answers, but no nsqlookupd lists it); gone (refuses, or does not answer).
        since_at: since when it is in this state.
        answered_at: when it answered the last time; None: never.
        error: why it did not answer; "".
        is_sparq: whether it serves messages, search and replay over HTTP (Go's does not).
        health: `OK`, or what its disk refuses.
        is_short: it refuses publishes for want of space on its disk.
        draining: it refuses publishes as it is to be left.
        lookupds: the nsqlookupds that list it.
        waiting: messages that wait there, in topics and channels.
        tombstoned: its topics that a nsqlookupd hides.
        out_of_date: its version is below the highest of the cluster.
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


@dataclass(frozen=True, slots=True)
class Totals:
    """The cluster in one row; `silent` nodes count, those that are gone do not."""

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


@dataclass(frozen=True, slots=True)
class Lookupd:
    """An nsqlookupd.

    Attributes:
        address: as it was given.
        error: why it does not answer; "".
        nodes: addresses of the nsqds that it lists.
    """

    address: str
    error: str
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that needs attention.

    Attributes:
        key: the same as long as it is the same thing.
        level: `bad` (messages are in danger or nobody gets them), `warn`, `note`.
        sentence: what is the matter, in words.
        link: the page that shows it, below the base path.
    """

    key: str
    level: Level
    sentence: str
    link: str


@dataclass(frozen=True, slots=True)
class ClientGroup:
    """Connections of one kind, folded by host and user agent.

    Attributes:
        connections: number of them.
        client_ids: some of their ids, at most `detail.IDS_MAX`.
        connected_at: when the oldest connected.
        nodes: number of nodes that they are connected to.
        finished, requeued, messages: counters, summed.
    """

    topic: str
    channel: str
    hostname: str
    user_agent: str
    connections: int
    nodes: int
    client_ids: tuple[str, ...]
    in_flight: int
    ready: int
    finished: int
    requeued: int
    messages: int
    connected_at: int
    attributes: tuple[str, ...]
    zone: str = ""
    region: str = ""
