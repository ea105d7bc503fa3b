"""The Grafana dashboard uses only metrics that nsqd exposes to Prometheus."""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from sparq.protocol.commands import pub, sub
from tests.nsqd.daemon import Consumer, start, stop
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "dashboards/nsqd.json").read_text())
MONITORING = ROOT / "docs/monitoring.md"
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus itself adds to what it scrapes."""

SELECTOR = re.compile(r"\b((?:nsqd|process|python)_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def expressions() -> list[tuple[str, str]]:
    """Return every query of the dashboard with its legend."""
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    targets = [target for panel in panels for target in panel["targets"]]
    found = [(target["expr"], target["legendFormat"]) for target in targets]
    variables = DASHBOARD["templating"]["list"]
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
    status, body = await nsqd.ask("GET", "/metrics")
    await consumer.close()
    await stop(nsqd)
    assert status == 200
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


async def test_every_query_uses_existing_metrics_and_labels(tmp_path: Path) -> None:
    """Every metric in a query is exposed; every label belongs to the metric or to Prometheus."""
    samples = await scraped(tmp_path)
    assert len(expressions()) > 30

    for expression, legend in expressions():
        names = [name for name, _ in SELECTOR.findall(expression)]
        assert names, expression
        for name in names:
            assert name in samples, expression
            unknown = labels_named(expression, legend) - samples[name] - OF_PROMETHEUS
            assert (expression, unknown) == (expression, set())


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


def test_panels_do_not_overlap() -> None:
    """Panels fit into 24 columns, do not overlap, and have unique ids."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
