"""Statistics of topics, channels and clients, for HTTP, statsd and Prometheus.

Field names are the keys of NSQ's `/stats` (docs/http.md, "/stats as NSQ has it"), in NSQ's order;
sparq's own fields follow them. The text and JSON forms are made from these in `sparq.nsqd`.

`of_topic`, `of_channel` and `of_client` each handle one object, so that a caller that reports
thousands may pause in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sparq.broker.counts import ChannelCounts, TopicCounts
from sparq.broker.latency import OFF, Latency, merged
from sparq.broker.session import TlsFacts, V2Session
from sparq.options.units import SECOND

SEARCH_STEPS_MAX: Final = 64
"""Maximum number of gaps that are skipped in the search for the cursor's next message."""

_OF_TOPIC_COUNTS: Final = [one.name for one in fields(TopicCounts) if one.name[0] != "_"]
_OF_CHANNEL_COUNTS: Final = [one.name for one in fields(ChannelCounts) if one.name[0] != "_"]
_OF_SESSION: Final = (
    *("client_id", "hostname", "remote_address", "state", "ready_count", "in_flight_count"),
    *("message_count", "finish_count", "requeue_count", "sample_rate", "deflate", "snappy"),
    *("user_agent", "authed", "auth_identity", "auth_identity_url"),
    *("topology_zone", "topology_region"),
)
"""Attributes of topics, channels and sessions that are figures of the same name."""
if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.broker.channel import Channel
    from sparq.broker.topic import Topic
    from sparq.protocol.instant import Instant


Named = TypeVar("Named")


def _copied(source: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


@dataclass(slots=True)
class PubCount:
    """How many messages a client has published to a topic."""

    topic: str
    count: int


@dataclass(slots=True)
class ClientStats:
    """One client connection."""

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
    authed: bool
    auth_identity: str
    auth_identity_url: str
    topology_zone: str
    topology_region: str
    pub_counts: list[PubCount] | None
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    tls_negotiated_protocol: str
    tls_negotiated_protocol_is_mutual: bool
    tls_common_name: str


@dataclass(slots=True)
class ChannelStats:
    """One channel.

    Its depth is that of `Channel.depth`. `ready_count` is the sum over its clients.
    `clear_seconds` comes from `Channel.outlook`, and `range_query` from `Channel.range_reader`.
    """

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    zone_local_msg_count: int
    region_local_msg_count: int
    global_msg_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientStats] | None
    paused: bool
    e2e_processing_latency: Latency
    range_reader: str | None
    cursor: str
    finish_count: int
    ready_count: int
    voided_count: int
    oldest_waiting_seconds: float | None
    clear_seconds: float | None
    range_query: str | None
    range_commit_seconds: float | None
    expired_count: int
    dead_letter_count: int
    redriven_count: int


@dataclass(slots=True)
class TopicStats:
    """One topic.

    Its depth is the number of messages that its channels may not see yet: those from P, the end of
    what channels see, to the end of the log.
    """

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
    unsynced_bytes: int
    damaged_messages: int
    refused_count: int
    given_up_count: int
    held_count: int


def selected(broker: Broker, topic_name: str | None) -> list[Topic] | None:
    """All topics by name, or the named one; None: no topic has that name."""
    return _selected(broker.topics, topic_name)


def channels_of(topic: Topic, channel_name: str | None) -> list[Channel]:
    """A topic's channels by name, or the named one; empty: no channel has that name."""
    return _selected(topic.channels, channel_name) or []


def _selected(by_name: Mapping[str, Named], name: str | None) -> list[Named] | None:
    if name is None:
        return [by_name[each] for each in sorted(by_name)]
    return [by_name[name]] if name in by_name else None


def of_topic(topic: Topic, now: Instant) -> TopicStats:
    """A topic's own statistics; `channels` is left empty."""
    log, depth = topic.stream.log, topic.depth()
    return TopicStats(
        topic_name=topic.name,
        channels=[],
        depth=depth,
        backend_depth=max(0, depth - topic.options.mem_queue_size),
        **_copied(topic.counts, _OF_TOPIC_COUNTS),
        paused=topic.paused,
        e2e_processing_latency=latency_of(topic, now),
        log=log.log_id.hex(),
        first_index=str(log.first_index),
        end_index=str(topic.stream.log.written_end),
        log_messages=log.end_ordinal - log.first_ordinal,
        log_bytes=log.size_bytes,
        unsynced_messages=log.unsynced.count,
        unsynced_bytes=log.unsynced.size_bytes,
        damaged_messages=sum(damage.messages for damage in log.damage),
    )


def latency_of(topic: Topic, now: Instant) -> Latency:
    """Publish-to-FIN latency of recently finished messages, over all channels of a topic.

    A topic without channels has no percentiles, as in Go.
    """
    quantiles = topic.options.e2e_percentiles
    if not quantiles or not topic.channels:
        return OFF
    windows = [c.latencies for c in topic.channels.values() if c.latencies is not None]
    return merged(windows, quantiles, now.mono_ns)


def of_channel(channel: Channel, mem_queue_size: int, now: Instant) -> ChannelStats:
    """A channel's statistics; `clients` is left out."""
    depth, reader = channel.depth(), channel.range_reader
    window, committed_ns = channel.latencies, channel.committed_mono_ns
    since_commit_ns = None if reader is None or committed_ns is None else now.mono_ns - committed_ns
    inspection = channel.stream.log.inspection
    waiting_ns = channel.outlook.oldest_waiting_ns(oldest_waiting(channel), inspection, now)
    return ChannelStats(
        channel_name=channel.name,
        depth=depth,
        backend_depth=max(0, depth - mem_queue_size),
        in_flight_count=channel.in_flight.count,
        deferred_count=channel.deferred_count(),
        message_count=channel.message_count,
        **_copied(channel.counts, _OF_CHANNEL_COUNTS),
        client_count=len(channel.sessions),
        clients=None,
        paused=channel.paused,
        e2e_processing_latency=(
            OFF if window is None else merged([window], window.quantiles, now.mono_ns)
        ),
        range_reader=reader.remote_address if reader is not None else None,
        cursor=str(channel.cursor),
        ready_count=sum(session.ready_count for session in channel.sessions.values()),
        oldest_waiting_seconds=_seconds(waiting_ns),
        clear_seconds=_seconds(channel.outlook.clear_ns(depth, now)),
        range_query=reader.user_agent if reader is not None else None,
        range_commit_seconds=_seconds(since_commit_ns),
    )


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / SECOND, 3)


def of_client(session: V2Session, topic_name: str | None) -> ClientStats:
    """One connection's statistics; with `topic_name`, only its publishes to that topic."""
    counts = [
        PubCount(topic, count)
        for topic, count in session.pub_counts.items()
        if topic_name in (None, topic)
    ]
    tls = session.tls or TlsFacts()
    return ClientStats(
        **_copied(session, _OF_SESSION),
        version="V2",
        connect_ts=session.connect_wall_ns // SECOND,
        pub_counts=counts or None,
        tls=session.tls is not None,
        **{f"tls_{name}": value for name, value in tls._asdict().items()},
    )


def oldest_waiting(channel: Channel) -> int | None:
    """The index of the oldest waiting message; None: none waits, or it takes too long to find."""
    again = min((int(at.min()) for at, _ in channel.requeued.chunks()), default=None)
    fresh = _oldest_fresh(channel) if channel.fresh_count() > 0 else None
    if fresh is None or again is None:
        return again if fresh is None else fresh
    return min(fresh, again)


def _oldest_fresh(channel: Channel) -> int | None:
    """The first message that the cursor will deliver; None: none, or not found in time."""
    log, due, end = channel.stream.log, channel.stream.due, channel.stream.end
    index = channel.cursor
    for _ in range(SEARCH_STEPS_MAX):
        began = index
        if not channel.range_epoch:
            index = due.next_unskipped(channel.skips.end_at(index))
        # Bounded by SEARCH_STEPS_MAX: deferred publishes, skips and gaps may alternate.
        index = log.next_stored(index)
        if index >= end:
            return None
        if index == began:
            return index
    return None
