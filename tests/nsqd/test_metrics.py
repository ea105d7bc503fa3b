"""`/metrics`, read with Prometheus' parser."""

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from sparq.broker.stats import ChannelStats, TopicStats
from sparq.nsqd import metrics
from sparq.protocol.commands import pub, rdy, sub
from tests.nsqd.daemon import Consumer, Daemon, start, stop
from tests.support.waiting import until

NOT_METRICS = {
    "topic": {"topic_name", "channels", "e2e_processing_latency", "log"},
    "channel": {
        *("channel_name", "clients", "e2e_processing_latency", "cursor"),
        *("range_reader", "range_query"),
    },
}
INDEXES = {"first_index", "end_index"}
"""First and end index of a log: numbers of 54 bits, which Prometheus' floats cannot hold."""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(nsqd: Daemon) -> tuple[Samples, dict[str, str]]:
    """Read /metrics: each sample by name and sorted labels, and each family's type."""
    status, headers, body = await nsqd.raw("GET /metrics HTTP/1.1", b"\r\n")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(body.decode()))
    assert len({family.name for family in families}) == len(families)
    samples = [sample for family in families for sample in family.samples]
    found: Samples = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    assert len(found) == len(samples)
    return found, {family.name: family.type for family in families}


def sample_value(samples: Samples, name: str, **labels: str) -> float:
    return samples[(name, tuple(sorted(labels.items())))]


async def test_an_empty_nsqd_has_metrics_of_build_and_process(nsqd: Daemon) -> None:
    """Without topics, /metrics has figures of the build, health, disk and process."""
    samples, types = await scrape(nsqd)

    (build,) = [dict(labels) for name, labels in samples if name == "nsqd_build_info"]
    assert build["version"] == "1.3.0"
    assert set(build) == {"version", "sparq_version", "python_version"}
    assert (sample_value(samples, "nsqd_healthy"), sample_value(samples, "nsqd_topics")) == (1, 0)
    assert sample_value(samples, "nsqd_data_path_free_bytes") > 0
    assert sample_value(samples, "process_resident_memory_bytes") > 1 << 24
    assert "python_gc_collections" in types
    assert "nsqd_topic_depth" not in types


async def test_figures_of_topics_channels_and_clients(nsqd: Daemon) -> None:
    """The metrics have the figures of /stats, with topic and channel as labels."""
    producer = await Consumer.identified(nsqd, pub("t", b"hello"), pub("t", b"y"), pub("t", b"z"))
    consumer = await Consumer.identified(nsqd, sub("t", "c"))
    await consumer.messages(1)
    consumer.send(rdy(1))
    kind, _ = await consumer.frame()
    await nsqd.post("/topic/pause?topic=t")
    await nsqd.post("/pub?topic=t", b"12")
    await nsqd.post("/topic/create?topic=e%23ephemeral")

    async def is_finished() -> bool:
        return bool((await nsqd.channel("t", "c"))["finish_count"] == 1)

    await until(is_finished)
    samples, types = await scrape(nsqd)
    topic = {"topic": "t"}
    channel = {"topic": "t", "channel": "c"}

    assert kind == 2
    for name, value in {
        "messages_total": 4,
        "message_bytes_total": 9,
        "depth": 1,
        "paused": 1,
        "log_messages": 4,
        "unsynced_bytes": 0,
    }.items():
        assert (name, sample_value(samples, f"nsqd_topic_{name}", **topic)) == (name, value)
    for name, value in {
        "messages_total": 3,
        "finished_total": 1,
        "depth": 1,
        "in_flight": 1,
        "clients": 1,
        "ready": 1,
        "paused": 0,
    }.items():
        assert (name, sample_value(samples, f"nsqd_channel_{name}", **channel)) == (name, value)
    assert sample_value(samples, "nsqd_topic_log_bytes", **topic) > 200
    assert sample_value(samples, "nsqd_topic_depth", topic="e#ephemeral") == 0
    assert sample_value(samples, "nsqd_connections", state="init") == 1
    assert sample_value(samples, "nsqd_connections", state="subscribed") == 1
    assert sample_value(samples, "nsqd_connections_using", feature="producer") == 1
    assert (types["nsqd_topic_messages"], types["nsqd_topic_depth"]) == ("counter", "gauge")
    await producer.close()
    await consumer.close()


async def test_latencies_are_histograms(nsqd: Daemon) -> None:
    """Commits, syncs and deliveries have histograms with cumulative buckets, sum and count."""
    before, _ = await scrape(nsqd)
    consumer = await Consumer.identified(nsqd, pub("t", b"a"), sub("t", "c"))
    await consumer.messages(1)
    samples, types = await scrape(nsqd)
    await consumer.close()

    for what in ("commit_duration", "fsync_duration", "delivery_latency"):
        name = f"nsqd_{what}_seconds"
        buckets = [value for (n, _), value in samples.items() if n == f"{name}_bucket"]
        assert types[name] == "histogram"
        assert buckets == sorted(buckets)
        assert (
            buckets[-1]
            == sample_value(samples, f"{name}_count")
            > sample_value(before, f"{name}_count")
        )
        assert sample_value(samples, f"{name}_sum") > sample_value(before, f"{name}_sum")


async def test_quantiles_of_the_time_from_publish_to_fin(tmp_path: Path) -> None:
    """The configured quantiles are shown in seconds by topic and channel, and in /stats."""
    nsqd = await start(tmp_path, e2e_processing_latency_percentiles=(1.0, 0.5))
    consumer = await Consumer.identified(nsqd, pub("t", b"a"), sub("t", "c"))
    await consumer.messages(1)

    async def is_measured() -> bool:
        return bool((await nsqd.channel("t", "c"))["e2e_processing_latency"]["count"] == 1)

    await until(is_measured)
    samples, _ = await scrape(nsqd)
    latency = (await nsqd.topic("t"))["e2e_processing_latency"]
    text = (await nsqd.ask("GET", "/stats"))[1].decode()
    await consumer.close()
    await stop(nsqd)

    name = "nsqd_channel_e2e_processing_latency"
    assert sample_value(samples, f"{name}_samples", topic="t", channel="c") == 1
    assert 0 < sample_value(samples, f"{name}_seconds", topic="t", channel="c", quantile="0.5") < 60
    assert (
        sample_value(samples, "nsqd_topic_e2e_processing_latency_seconds", topic="t", quantile="1")
        > 0
    )
    assert [item["quantile"] for item in latency["percentiles"]] == [1, 0.5]
    assert text.count("ms, ") + text.count("us, ") + text.count("s, ") >= 2


def test_every_stats_field_is_a_metric() -> None:
    """Each field of TopicStats and ChannelStats is a metric, or is listed as an exception."""
    for kind, shown, figures in (
        ("topic", metrics._TOPIC, TopicStats),
        ("channel", metrics._CHANNEL + _reach_metrics(), ChannelStats),
    ):
        fields: Any = figures.__dataclass_fields__
        assert set(fields) - NOT_METRICS[kind] - INDEXES == {entry.figure for entry in shown}


def _reach_metrics() -> tuple[metrics.MetricForm, ...]:
    return tuple(metrics.MetricForm(figure, "", "", "") for _, figure in metrics._REACHES)
