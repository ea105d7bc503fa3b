"""One snapshot of everything, for HTTP and whoever else shows figures.

Field names are the keys of NSQ's `/stats` (reference: http.md 1.1) in NSQ's order; what sparq adds
stands behind them. Text and JSON forms are made from these by the HTTP room.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Latency:
    """End-to-end latency percentiles; none are configured, so NSQ's empty form."""

    count: int = 0
    percentiles: list[dict[str, float]] | None = None


@dataclass(slots=True)
class PubCount:
    """How many messages a client has published to a topic."""

    topic: str
    count: int


@dataclass(slots=True)
class ClientStats:
    """One connection."""

    client_id: str
    hostname: str
    version: str
    remote_address: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    user_agent: str
    topology_zone: str
    topology_region: str
    pub_counts: list[PubCount] | None
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool


@dataclass(slots=True)
class ChannelStats:
    """One channel; depth as decision 17 has it."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientStats] | None
    paused: bool
    e2e_processing_latency: Latency
    range_reader: str | None
    cursor: str


@dataclass(slots=True)
class TopicStats:
    """One topic; depth is what its channels may not see yet (from P to the log's end)."""

    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: Latency
    log: str
    first_index: str
    end_index: str
    log_messages: int
    log_bytes: int
    unsynced_messages: int
    damaged_messages: int


@dataclass(slots=True)
class BrokerStats:
    """The whole; `topics` is None where a filter found none, as NSQ has it."""

    health: str
    topics: list[TopicStats] | None
    producers: list[ClientStats] | None = field(default=None)
