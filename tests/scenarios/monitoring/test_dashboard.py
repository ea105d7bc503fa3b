"""The Grafana dashboards use only metrics that the daemons expose to Prometheus."""

from pathlib import Path

from sparq.protocol.commands import pub, sub
from tests.nsqd.daemon import Consumer, start, stop
from tests.scenarios.monitoring.dashboards import (
    check_queries,
    documented,
    metrics_of,
    samples_of,
)
from tests.support.servers import AdminServer, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import until


async def scraped(folder: Path) -> dict[str, set[str]]:
    """Return the sample names of a busy nsqd, with the labels of each."""
    nsqd = await start(folder, e2e_processing_latency_percentiles=(0.99,))
    consumer = await Consumer.identified(nsqd, pub("t", b"x"), sub("t", "c"))
    await consumer.messages(1)

    async def is_finished() -> bool:
        return bool((await nsqd.channel("t", "c"))["finish_count"])

    await until(is_finished)
    await nsqd.ask("POST", "/channel/create?topic=t&channel=waits")
    await nsqd.ask("POST", "/pub?topic=t", b"x")
    status, body = await nsqd.ask("GET", "/metrics")
    await consumer.close()
    await stop(nsqd)
    assert status == 200
    return samples_of(body)


async def test_every_query_uses_existing_metrics_and_labels(tmp_path: Path) -> None:
    """Every metric in a query is exposed; every label belongs to the metric or to Prometheus."""
    check_queries("nsqd", await scraped(tmp_path))


def test_queries_of_nsqlookupd_and_nsqadmin_use_existing_metrics(tmp_path: Path) -> None:
    """The dashboards of nsqlookupd and nsqadmin query only what these expose."""
    tokens = tmp_path / "tokens"
    tokens.write_text("anybody read -\n")
    tokens.chmod(0o600)
    with spawn_nsqlookupd(tmp_path, f"--token-file={tokens}") as lookupd:
        assert 401 == lookupd.request("POST", "/topic/create?topic=t")[0]
        with spawn_nsqd(tmp_path) as nsqd:
            places = (f"--nsqd-http-address={nsqd.http}",)
            with AdminServer("sparq.nsqadmin", tmp_path, places) as admin:
                admin.start()
                shown = samples_of(admin.request("GET", "/metrics")[1])
        known = samples_of(lookupd.request("GET", "/metrics")[1])
    known["nsqlookupd_topic_producers"] = {"topic"}  # no nsqd has registered one

    check_queries("nsqlookupd", known)
    check_queries("nsqadmin", shown)


async def test_every_metric_is_documented(tmp_path: Path) -> None:
    """docs/monitoring.md names every nsqd_* metric that is exposed, and no others."""
    own = metrics_of(await scraped(tmp_path), "nsqd")
    own.add("nsqd_channel_deliveries_by_topology_total")
    # Not exposed while no message waits, or without a range reader.
    own |= {f"nsqd_channel_{name}_seconds" for name in ("oldest_waiting", "clear", "range_commit")}

    own |= {"nsqd_refused_requests_total", "nsqd_tokens"}  # only with a token
    assert documented("nsqd") == own, "docs/monitoring.md: the tables of metrics"
