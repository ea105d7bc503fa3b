"""`/metrics`: nsqd's figures for Prometheus (docs/monitoring.md lists them).

1. Each number of `/stats`, except indexes, is a series per topic or channel. For clients there are
   only sums: a series per connection would end with the connection, and Prometheus would keep it
   for weeks.
2. Counters end in `_total`, times are in seconds, sizes in bytes; counters start at 0 when nsqd
   starts.
3. Topics are processed one by one, so that the event loop can run in between
   (`stats_format.encoded`).
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import generate_latest

from sparq.broker.stats import ChannelStats, TopicStats
from sparq.daemon.prometheus_text import Family, access_families, labels, process_registry
from sparq.nsqd.open_files import COMMITS, SYNCS
from sparq.nsqd.stats_format import StatsRequest, rows
from sparq.options.units import SECOND
from sparq.protocol import NSQ_VERSION, SPARQ_VERSION

if TYPE_CHECKING:
    from sparq.broker.broker import Broker
    from sparq.nsqd.server import Nsqd
    from sparq.protocol.instant import Instant

REGISTRY: Final = process_registry()
"""Prometheus' figures about the process."""


class MetricForm(NamedTuple):
    """How a figure of `broker/stats.py` is shown as a metric."""

    figure: str
    name: str
    kind: str
    text: str


_TOPIC = (
    MetricForm("message_count", "messages_total", "counter", "Messages published"),
    MetricForm(
        "message_bytes", "message_bytes_total", "counter", "Bytes of published message bodies"
    ),
    MetricForm("depth", "depth", "gauge", "Messages not yet visible to any channel"),
    MetricForm(
        "backend_depth", "backend_depth", "gauge", "Part of the depth beyond --mem-queue-size"
    ),
    MetricForm("paused", "paused", "gauge", "1 while the topic is paused"),
    MetricForm("log_messages", "log_messages", "gauge", "Messages in the log"),
    MetricForm("log_bytes", "log_bytes", "gauge", "Bytes of the log on disk"),
    MetricForm(
        "unsynced_messages", "unsynced_messages", "gauge", "Messages written but not synced"
    ),
    MetricForm("unsynced_bytes", "unsynced_bytes", "gauge", "Bytes written but not synced"),
    MetricForm("damaged_messages", "damaged_messages", "gauge", "Messages found to be unreadable"),
    MetricForm(
        "refused_count",
        "refused_total",
        "counter",
        "Messages refused: the topic was full or they came too fast",
    ),
    MetricForm("held_count", "held_total", "counter", "Messages delayed: they came too fast"),
    MetricForm(
        "given_up_count",
        "given_up_total",
        "counter",
        "Messages dropped from a full topic before any channel could see them",
    ),
)
_CHANNEL = (
    MetricForm("message_count", "messages_total", "counter", "Messages added to the channel"),
    MetricForm("finish_count", "finished_total", "counter", "Messages finished by consumers"),
    MetricForm("requeue_count", "requeued_total", "counter", "Messages requeued by consumers"),
    MetricForm("timeout_count", "timed_out_total", "counter", "Messages that timed out in flight"),
    MetricForm("voided_count", "voided_total", "counter", "Unread messages dropped by a limit"),
    MetricForm(
        "expired_count", "expired_total", "counter", "Messages that expired before delivery"
    ),
    MetricForm(
        "dead_letter_count",
        "dead_letters_total",
        "counter",
        "Messages moved to the dead-letter topic",
    ),
    MetricForm("redriven_count", "redriven_total", "counter", "Dead letters sent back"),
    MetricForm("depth", "depth", "gauge", "Messages waiting for delivery"),
    MetricForm(
        "backend_depth", "backend_depth", "gauge", "Part of the depth beyond --mem-queue-size"
    ),
    MetricForm("in_flight_count", "in_flight", "gauge", "Messages in flight to consumers"),
    MetricForm("deferred_count", "deferred", "gauge", "Deferred messages"),
    MetricForm("client_count", "clients", "gauge", "Connected consumers"),
    MetricForm("ready_count", "ready", "gauge", "Sum of the consumers' RDY counts"),
    MetricForm("paused", "paused", "gauge", "1 while the channel is paused"),
    MetricForm(
        "oldest_waiting_seconds",
        "oldest_waiting_seconds",
        "gauge",
        "Lag: age of the oldest waiting message",
    ),
    MetricForm(
        "clear_seconds", "clear_seconds", "gauge", "Time until the depth is 0 at its present rate"
    ),
    MetricForm(
        "range_commit_seconds",
        "range_commit_seconds",
        "gauge",
        "Time since the last commit of a range reader",
    ),
)
_REACHES = (
    ("zone", "zone_local_msg_count"),
    ("region", "region_local_msg_count"),
    ("global", "global_msg_count"),
)
_STATES = {0: "init", 3: "subscribed", 4: "closing"}


class _Table:
    """The metric families of all topics, or of all channels."""

    def __init__(self, prefix: str, shown: tuple[MetricForm, ...]) -> None:
        self._by_figure = {s.figure: Family(f"{prefix}_{s.name}", s.kind, s.text) for s in shown}
        name = f"{prefix}_e2e_processing_latency"
        self._quantiles = Family(
            f"{name}_seconds", "gauge", "Time from publish to FIN, by configured quantile"
        )
        self._samples = Family(
            f"{name}_samples", "gauge", "FINs that the latency quantiles are computed from"
        )
        self.families = (*self._by_figure.values(), self._quantiles, self._samples)

    def add(self, figures: TopicStats | ChannelStats, **names: str) -> None:
        """Add the figures of one topic or channel."""
        labelled = labels(**names)
        for figure, family in self._by_figure.items():
            if (value := getattr(figures, figure)) is not None:
                family.add(value, labelled)
        latency = figures.e2e_processing_latency
        if latency.percentiles is None:
            return
        self._samples.add(latency.count, labelled)
        for item in latency.percentiles:
            quantile = labels(**names, quantile=f"{item['quantile']:g}")
            self._quantiles.add(item["value"] / SECOND, quantile)


def pieces(nsqd: Nsqd, start_ns: int, now: Instant) -> Iterator[str]:
    """Yield the exposition; empty pieces in between let the event loop run."""
    broker = nsqd.broker
    topics, channels = _Table("nsqd_topic", _TOPIC), _Table("nsqd_channel", _CHANNEL)
    reaches = Family(
        "nsqd_channel_deliveries_by_topology_total",
        "counter",
        "Deliveries by location of the consumer: nsqd's zone, its region, or elsewhere",
    )
    channel_count, topic = 0, ""
    for figures in rows(broker, StatsRequest(), now):
        if isinstance(figures, TopicStats):
            topic = figures.topic_name
            topics.add(figures, topic=topic)
        elif isinstance(figures, ChannelStats):
            channel_count += 1
            names = {"topic": topic, "channel": figures.channel_name}
            channels.add(figures, **names)
            for reach, figure in _REACHES:
                if count := getattr(figures, figure):
                    reaches.add(count, labels(**names, reach=reach))
        yield ""
    # Last, after all topics: Prometheus requires a family's series to be together.
    for family in (
        *_of_broker(nsqd, start_ns, channel_count),
        *_of_clients(broker),
        *topics.families,
        *channels.families,
        reaches,
        *access_families(nsqd.access, "nsqd"),
        *_histograms(broker),
    ):
        yield family.text()
    yield generate_latest(REGISTRY).decode()


def _histograms(broker: Broker) -> Iterator[Family]:
    waited = broker.turn.waited
    family = Family(
        "nsqd_delivery_latency_seconds",
        "histogram",
        "Time from publish to first delivery; messages sent together count as the oldest of them",
    )
    bounds = (bound_ns / SECOND for bound_ns in waited.bounds_ns)
    family.add_histogram(bounds, waited.counts, waited.total_ns / SECOND)
    yield family
    for counts in (COMMITS, SYNCS):
        family = Family(counts.name, "histogram", counts.text)
        family.add_histogram(counts.bounds, counts.counts, counts.total)
        yield family


def _of_broker(nsqd: Nsqd, start_ns: int, channel_count: int) -> Iterator[Family]:
    broker, drains, policies = nsqd.broker, nsqd.broker.drains, nsqd.broker.policies
    versions = labels(
        version=NSQ_VERSION,
        sparq_version=SPARQ_VERSION,
        python_version=platform.python_version(),
    )
    sources = {
        labels(source="configured"): len(policies.configured),
        labels(source="run_time"): len(policies.chosen),
    }
    reserve, in_reserve = broker.fin_reserve(), "reserved for FINs on a full disk"
    figures: list[tuple[str, str, float | Mapping[str, float]]] = [
        ("build_info", "Versions of the running program; always 1", {versions: 1}),
        ("start_time_seconds", "Start time of nsqd in seconds since 1970", start_ns / SECOND),
        ("healthy", "0 while the disk refuses writes, otherwise 1", broker.health() == "OK"),
        ("topics", "Topics", len(broker.topics)),
        ("channels", "Channels of all topics", channel_count),
        (
            "uncommitted_bytes",
            "Bytes of publishes not yet written to disk",
            broker.turn.backlog_bytes,
        ),
        ("data_path_free_bytes", "Free bytes on the disk of the data path", broker.free_bytes()),
        ("memory_objects", "Memory blocks allocated by Python", sys.getallocatedblocks()),
        ("policies", "Policies in force, by source (configuration or run time)", sources),
        ("draining", "1 while this nsqd is draining", drains.now.node is not None),
        ("draining_topics", "Topics that are draining", len(drains.now.topics)),
        (
            "drain_refused_total",
            "Messages refused because nsqd or their topic is draining",
            drains.refused_count,
        ),
    ]
    if reserve is not None:
        figures += [
            ("reserve_bytes", f"Bytes {in_reserve}", reserve.reserve_bytes),
            ("reserve_target_bytes", f"Bytes that should be {in_reserve}", reserve.target_bytes),
            (
                "reserve_finishes",
                "FINs that fit into the reserve before a checkpoint has to make room",
                reserve.finishes,
            ),
        ]
    for name, text, value in figures:
        kind = "counter" if name.endswith("_total") else "gauge"
        samples = value if isinstance(value, Mapping) else {"": value}
        yield Family(f"nsqd_{name}", kind, text, samples)


def _of_clients(broker: Broker) -> Iterator[Family]:
    states = dict.fromkeys(_STATES.values(), 0)
    features = dict.fromkeys(("tls", "deflate", "snappy", "authed", "sampled", "producer"), 0)
    for session in broker.sessions.values():
        states[_STATES[session.state]] += 1
        features["tls"] += session.tls is not None
        features["deflate"] += session.deflate
        features["snappy"] += session.snappy
        features["authed"] += session.authed
        features["sampled"] += session.sample_rate > 0
        features["producer"] += bool(session.pub_counts)
    for name, text, label, counts in (
        ("connections", "by state", "state", states),
        ("connections_using", "by feature in use", "feature", features),
    ):
        samples = {labels(**{label: value}): count for value, count in counts.items()}
        yield Family(f"nsqd_{name}", "gauge", f"Connected clients, {text}", samples)
