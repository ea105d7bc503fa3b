"""The Grafana dashboards use only metrics that the daemons expose to Prometheus."""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from sparq.protocol.commands import pub, sub
from tests.nsqd.daemon import Consumer, start, stop
from tests.support.servers import AdminServer, spawn_nsqd, spawn_nsqlookupd
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
DASHBOARDS: dict[str, Any] = {
    name: json.loads((ROOT / f"dashboards/{name}.json").read_text())
    for name in ("nsqd", "nsqlookupd", "nsqadmin")
}
MONITORING = ROOT / "docs/monitoring.md"
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus itself adds to what it scrapes."""

SELECTOR = re.compile(r"\b((?:nsqd|nsqlookupd|nsqadmin|process|python)_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def expressions(name: str) -> list[tuple[str, str]]:
    """Return every query of a dashboard with its legend."""
    dashboard = DASHBOARDS[name]
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    targets = [target for panel in panels for target in panel["targets"]]
    found = [(target["expr"], target["legendFormat"]) for target in targets]
    variables = dashboard["templating"]["list"]
    return found + [(v["definition"], "") for v in variables if v["type"] == "query"]


def labels_named(expression: str, legend: str) -> set[str]:
    """Return the labels that a query and its legend use."""
    inside = ",".join(labels for _, labels in SELECTOR.findall(expression))
    found = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))
    found |= set(re.findall(r"\{\{(\w+)\}\}", legend))
    for grouped in GROUPED.findall(expression):
        found |= {label.strip() for label in grouped.split(",")}
    if variable := re.fullmatch(r"label_values\(.*,\s*(\w+)\)", expression):
        found.add(variable[1])
    return found


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


def samples_of(exposition: bytes) -> dict[str, set[str]]:
    """Return the names of the samples, with the labels of each."""
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def check_queries(name: str, samples: dict[str, set[str]]) -> None:
    for expression, legend in expressions(name):
        names = [name for name, _ in SELECTOR.findall(expression)]
        assert names, expression
        for found in names:
            assert found in samples, expression
            unknown = labels_named(expression, legend) - samples[found] - OF_PROMETHEUS
            assert (expression, unknown) == (expression, set())


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
    samples = await scraped(tmp_path)
    text = MONITORING.read_text()
    named = set(re.findall(r"`(nsqd_\w+)`", text))
    own = {re.sub(r"_(bucket|sum|count)$", "", n) for n in samples if n.startswith("nsqd_")}
    own.add("nsqd_channel_deliveries_by_topology_total")
    # Not exposed while no message waits, or without a range reader.
    own |= {f"nsqd_channel_{name}_seconds" for name in ("oldest_waiting", "clear", "range_commit")}

    own |= {"nsqd_refused_requests_total", "nsqd_tokens"}  # only with a token
    assert named == own, "docs/monitoring.md: the tables of metrics"
