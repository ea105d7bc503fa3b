"""One snapshot of everything, for HTTP and whoever else shows figures.

Field names are the keys of NSQ's `/stats` (reference: http.md 1.1) in NSQ's order; what sparq adds
stands behind them. Text and JSON forms are made from these by the HTTP room.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparq.broker.options import SECOND_NS

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.channel import Channel
    from sparq.broker.session import Session
    from sparq.broker.topic import Topic


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


def snapshot(
    broker: Broker, topic_name: str | None, channel_name: str | None, *, include_clients: bool
) -> BrokerStats:
    """The figures of all topics, or of those that the names select (NSQ's filters)."""
    topics: list[TopicStats] = []
    for name, topic in sorted(broker.topics.items()):
        if topic_name is not None and name != topic_name:
            continue
        if channel_name is not None and channel_name not in topic.channels:
            continue
        topics.append(_topic(topic, channel_name, include_clients=include_clients))
    filtered = topic_name is not None or channel_name is not None
    producers: list[ClientStats] | None = None
    if include_clients and (topics or not filtered):
        sessions = broker.sessions.values()
        producers = [client(s, topic_name) for s in sessions if s.pub_counts]
    nothing_found = filtered and not topics
    return BrokerStats(broker.health(), None if nothing_found else topics, producers)


def _topic(topic: Topic, channel_name: str | None, *, include_clients: bool) -> TopicStats:
    log, depth = topic.stream.log, topic.depth()
    queue = topic.options.mem_queue_size
    return TopicStats(
        topic_name=topic.name,
        channels=[
            _channel(channel, queue, include_clients=include_clients)
            for name, channel in sorted(topic.channels.items())
            if channel_name in (None, name)
        ],
        depth=depth,
        backend_depth=max(0, depth - queue),
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        paused=topic.paused,
        e2e_processing_latency=Latency(),
        log=log.log_id.hex(),
        first_index=str(log.first_index),
        end_index=str(topic.stream.readable_end()),
        log_messages=log.end_ordinal - log.first_ordinal,
        log_bytes=sum(segment.size_bytes for segment in log.segments()),
        unsynced_messages=log.unsynced_count,
        damaged_messages=sum(damage.messages for damage in log.damage),
    )


def _channel(channel: Channel, queue: int, *, include_clients: bool) -> ChannelStats:
    depth = channel.depth()
    sessions = channel.sessions.values()
    return ChannelStats(
        channel_name=channel.name,
        depth=depth,
        backend_depth=max(0, depth - queue),
        in_flight_count=channel.in_flight.count,
        deferred_count=channel.deferred_count(),
        message_count=channel.message_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=len(channel.sessions),
        clients=[client(s, None) for s in sessions] if include_clients else None,
        paused=channel.paused,
        e2e_processing_latency=Latency(),
        range_reader=channel.hold.session.remote_address if channel.hold is not None else None,
        cursor=str(channel.cursor),
    )


def client(session: Session, topic_name: str | None) -> ClientStats:
    """One connection's figures; of its publishes those to one topic, if it is named."""
    counts = [
        PubCount(topic, count)
        for topic, count in session.pub_counts.items()
        if topic_name in (None, topic)
    ]
    return ClientStats(
        client_id=session.client_id,
        hostname=session.hostname,
        version="V2",
        remote_address=session.remote_address,
        state=session.state,
        ready_count=session.ready_count,
        in_flight_count=session.in_flight_count,
        message_count=session.message_count,
        finish_count=session.finish_count,
        requeue_count=session.requeue_count,
        connect_ts=session.connect_wall_ns // SECOND_NS,
        sample_rate=session.sample_rate,
        deflate=False,
        snappy=False,
        user_agent=session.user_agent,
        topology_zone=session.topology_zone,
        topology_region=session.topology_region,
        pub_counts=counts or None,
        tls=False,
        tls_cipher_suite="",
        tls_version="",
        tls_negotiated_protocol="",
        tls_negotiated_protocol_is_mutual=False,
    )
