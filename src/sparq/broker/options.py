"""What a broker may be told: limits, sizes and sync policy, with NSQ's defaults.

1. Every limit that a client or a disk can reach is named here, with where it comes from.
2. Times are in nanoseconds here and in milliseconds where the protocol says them so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sparq.protocol.identify import Limits

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
NEVER: Final = (1 << 63) - 1
"""The time, or the index, of what does not come."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """A broker's options; flag names of nsqd (reference: flags.md) where nsqd has them.

    Attributes:
        limits: what clients may ask for and send (also the parser's limits).
        node_id: the default node id (0..1023) of a data path that has none yet (decision 33).
        sync_every: messages of one topic after which it is synced; 1 syncs before each OK.
        sync_timeout_ns: what is unsynced (also finishes) is synced at the latest after this.
        mem_queue_size: bound of ephemeral queues; splits `depth` from `backend_depth` elsewhere.
        ephemeral_bytes_max: bound in bytes of one ephemeral topic (decision 16).
        requeue_on_disconnect: a dropped connection's messages are ready again at once.
        max_channel_consumers: how many clients may consume one channel; 0: any number.
        max_topics, max_channels, max_topic_bytes: bounds on what clients make, channels and bytes
            those of one topic (see `broker.limits`); 0: none.
        auth_required: whether clients must say AUTH before they publish or consume.
        topology_aware: whether clients of this nsqd's zone come first, then those of its region.
        topology_region, topology_zone: where this nsqd is.
        has_lookupd: whether a new topic waits for `channels_known` before it flows (decision 8).
        lookup_wait_ns: how long it waits at most.
        commit_bytes, commit_count: a batch is closed at these sizes (decision 20).
        output_bytes_max: what one session may have waiting to be sent (decision 13).
        e2e_percentiles: quantiles (0, 1] of the time from publish to FIN; none: not measured.
        e2e_window_ns: what span of time they cover.
        topics_synced_together: with so many topics, what a start finds is synced by one sync of
            their file system, which also waits for what other programs have written to it.
        cache_bytes: the shared cache of verified blocks (decision 21).
        retention_bytes, retention_time_ns: what a log keeps though no channel needs it; 0: nothing.
        max_channel_lag_bytes, max_channel_lag_time_ns: how far a channel may fall behind before
            its oldest unread messages are voided (decision 32); 0: any far.
    """

    limits: Limits = field(default_factory=Limits)
    node_id: int = 0
    max_bytes_per_file: int = 100 << 20
    sync_every: int = 1
    sync_timeout_ns: int = 2 * SECOND_NS
    mem_queue_size: int = 10_000
    ephemeral_bytes_max: int = 64 << 20
    requeue_on_disconnect: bool = False
    max_channel_consumers: int = 0
    max_topics: int = 0
    max_channels: int = 0
    max_topic_bytes: int = 0
    auth_required: bool = False
    topology_aware: bool = False
    topology_region: str = ""
    topology_zone: str = ""
    has_lookupd: bool = False
    lookup_wait_ns: int = 5 * SECOND_NS
    commit_bytes: int = 256 << 10
    commit_count: int = 4096
    output_bytes_max: int = 1 << 20
    e2e_percentiles: tuple[float, ...] = ()
    e2e_window_ns: int = 600 * SECOND_NS
    topics_synced_together: int = 64
    cache_bytes: int = 64 << 20
    retention_bytes: int = 0
    retention_time_ns: int = 0
    max_channel_lag_bytes: int = 0
    max_channel_lag_time_ns: int = 0
