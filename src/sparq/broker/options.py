"""Broker options: limits, sizes and the sync policy, with NSQ's defaults.

1. Every limit that a client or a disk can reach is named here, with its origin.
2. Times are in nanoseconds here, and in milliseconds where the protocol uses milliseconds.
3. Limits on what clients may create (topics, channels per topic, bytes per topic) default to 0, no
   limit; NSQ has none of them. Existing topics, channels and bytes stay, even if a limit is then
   set below them; only new ones are refused. A publish refused by a limit does not close its
   connection; nor does one refused because the disk is full.
4. A topic's bytes count in whole files, as long as some channel needs them. Files that all channels
   have finished do not count: they are about to be deleted, or are kept only for retention or until
   a range reader's next commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sparq.options.declare import group, option
from sparq.options.limits import IdentifyLimits
from sparq.options.units import MILLISECOND, SECOND
from sparq.protocol.layout import ATTEMPTS_MAX

# The largest int64, so that arrays of deadlines can hold it.
NEVER: Final = (1 << 63) - 1
"""A time or an index that is never reached."""

FILES_OF_FULL_TOPIC = 4
"""A topic of limited size has about this many files at least, so that space is freed gradually."""

FILE_BYTES_MIN = 64 << 10
"""Each file has a few KiB of overhead; smaller files would hold little else."""


class Refusal(Exception):
    """A publish, topic or channel is refused; the text says why.

    Attributes:
        code: the error code of an administrator's request.
        fatal: whether a publish that is refused ends its connection.
    """

    code = "INTERNAL_ERROR"
    fatal = False


class LimitReached(Refusal):
    """A limit refuses one more of something; the text says which limit."""

    code = "LIMIT_REACHED"


def check_limit(count: int, most: int, what: str) -> None:
    """Refuse one more when there are `count` already; raises LimitReached."""
    if 0 < most <= count:
        raise LimitReached(f"the limit of {most} {what} is reached")


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a topic or a channel: flags set them for all, policies for some.

    Attributes:
        max_channels, max_topic_bytes: topic limits, see above.
        max_topic_messages, drop_oldest: see `bounds`.
        max_publish_rate, max_client_publish_rate: see `publishing`.
        max_channel_consumers: channel limit.
        max_channel_lag_bytes, max_channel_lag_time_ns: channel limits; the oldest are voided.
        max_attempts, message_ttl_ns: channel settings; see `dead_letters` and `delivery`.
    """

    max_channels: int = option(0, "maximum number of channels per topic (0: unlimited)", least=0)
    max_topic_bytes: int = option(
        0,
        "maximum bytes of a topic's log that its channels have not finished (0: unlimited)",
        least=0,
    )
    max_topic_messages: int = option(
        0,
        "maximum number of unfinished messages of any one channel of a topic (0: unlimited)",
        least=0,
    )
    max_publish_rate: int = option(
        0,
        "maximum publish rate per topic, messages per second; faster publishes are held back for up"
        " to one second, then refused (0: unlimited)",
        least=0,
    )
    max_client_publish_rate: int = option(
        0,
        "maximum publish rate per topic of any one client, messages per second (0: unlimited)",
        least=0,
    )
    drop_oldest: bool = option(
        False,
        "when a topic is full, drop and count its oldest unread messages instead of refusing"
        " publishes",
    )
    retention_bytes: int = option(
        0,
        "bytes of each log to keep for replay after all channels have finished them (0: none)",
        least=0,
    )
    retention_time_ns: int = option(
        0,
        "how long after publish to keep messages for replay, even if all channels have finished"
        " them (0: not kept)",
        least=0,
    )
    max_channel_consumers: int = option(
        0, "maximum number of consumers per channel (0: unlimited)", least=0
    )
    max_channel_lag_bytes: int = option(
        0,
        "maximum unread bytes per channel; beyond this, its oldest unread messages are dropped and"
        " counted (0: unlimited)",
        least=0,
    )
    max_channel_lag_time_ns: int = option(
        0,
        "maximum age of a channel's unread messages; older ones are dropped and counted (0:"
        " unlimited)",
        least=0,
    )
    max_attempts: int = option(
        0,
        "maximum deliveries of a message per channel; after that it is moved to the dead-letter"
        " topic NAME.dead (0: unlimited)",
        least=0,
        most=ATTEMPTS_MAX,
    )
    message_ttl_ns: int = option(
        0,
        "maximum age of a message at delivery; older ones are finished undelivered and counted"
        " (0: unlimited)",
        least=0,
    )


TOPIC_SETTINGS: Final = (
    *("max_channels", "max_topic_bytes", "max_topic_messages", "drop_oldest"),
    *("max_publish_rate", "max_client_publish_rate"),
    *("retention_bytes", "retention_time_ns"),
)
"""The settings that apply only to topics."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """A broker's options: the flags of nsqd, and values that nsqd or a test sets.

    Attributes:
        limits: what clients may request and send (also the parser's limits).
        mem_queue_size: also, where there is a log, `backend_depth` is `depth` beyond this.
        max_topics: a limit, see above.
        settings: default settings of topics and channels; policies override them.
        node_id: the default node id (0..1023) of a data path that has none yet.
        auth_required: whether clients must send AUTH before they publish or consume.
        topology_aware: whether clients in this nsqd's zone come first, then those in its region.
        has_lookupd: whether a new topic waits for `channels_known` before it flows.
        lookup_wait_ns: maximum time that it waits.
        ephemeral_bytes_max: bound in bytes of one ephemeral topic.
        commit_bytes, commit_count: a batch is closed at these sizes.
        output_bytes_max: maximum output queued for one session.
        topics_synced_together: with at least this many topics, a start syncs their data with one
            sync of their file system, which also waits for other programs' writes to it.
        cache_bytes: size of the shared cache of verified blocks.
    """

    limits: IdentifyLimits = group(IdentifyLimits)
    mem_queue_size: int = option(
        10_000, "maximum number of messages in a queue without a log (#ephemeral)", least=0
    )
    max_bytes_per_file: int = option(
        100 << 20, "size in bytes at which a log starts a new file", least=1
    )
    # NSQ: 2500. Here an OK means "on disk" by default.
    sync_every: int = option(1, "sync to disk after N messages (1: before each OK)", least=1)
    sync_timeout_ns: int = option(
        2 * SECOND,
        "sync to disk at least this often while there is unsynced data",
        least=MILLISECOND,
    )
    requeue_on_disconnect: bool = option(
        False, "requeue a dropped connection's messages at once instead of at their timeout"
    )
    max_topics: int = option(0, "maximum number of topics (0: unlimited)", least=0)
    topology_region: str = option("", "region reported to clients and nsqlookupd")
    topology_zone: str = option("", "zone reported to clients and nsqlookupd")
    e2e_percentiles: tuple[float, ...] = option(
        (),
        "quantiles, each in (0, 1], of the time from publish to FIN, for /stats",
        name="e2e-processing-latency-percentile",
        key="e2e_processing_latency_percentiles",
    )
    e2e_window_ns: int = option(
        600 * SECOND,
        "time window of these quantiles",
        name="e2e-processing-latency-window-time",
        least=MILLISECOND,
    )
    settings: QueueSettings = group(QueueSettings)
    node_id: int = 0
    auth_required: bool = False
    topology_aware: bool = False
    has_lookupd: bool = False
    lookup_wait_ns: int = 5 * SECOND
    ephemeral_bytes_max: int = 64 << 20
    commit_bytes: int = 256 << 10
    commit_count: int = 4096
    output_bytes_max: int = 1 << 20
    topics_synced_together: int = 64
    cache_bytes: int = 64 << 20


def file_bytes(max_bytes_per_file: int, max_topic_bytes: int) -> int:
    """The size at which a log begins a new file; smaller if the topic's size is limited."""
    if max_topic_bytes <= 0:
        return max_bytes_per_file
    part = max(FILE_BYTES_MIN, max_topic_bytes // FILES_OF_FULL_TOPIC)
    return min(max_bytes_per_file, part)
