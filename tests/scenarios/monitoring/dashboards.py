"""The queries of a Grafana dashboard, compared with the metrics that a program exposes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[3]
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus itself adds to what it scrapes."""

SELECTOR = re.compile(r"\b((?:nsqd|nsqlookupd|nsqadmin|sparq|process|python)_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


def documented(prefix: str) -> set[str]:
    """Return the metrics that docs/monitoring.md names, of those with this prefix."""
    text = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    return set(re.findall(rf"`({prefix}_\w+)`", text))


def samples_of(exposition: bytes) -> dict[str, set[str]]:
    """Return the names of the samples, with the labels of each."""
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def metrics_of(samples: dict[str, set[str]], prefix: str) -> set[str]:
    """Return the metrics of the samples, of those with this prefix."""
    return {re.sub(r"_(bucket|sum|count)$", "", n) for n in samples if n.startswith(f"{prefix}_")}


def expressions(name: str) -> list[tuple[str, str]]:
    """Return every query of a dashboard with its legend."""
    dashboard: dict[str, Any] = json.loads((ROOT / f"dashboards/{name}.json").read_text())
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


def check_queries(name: str, samples: dict[str, set[str]]) -> None:
    """Assert that a dashboard queries only the metrics and labels of these samples."""
    for expression, legend in expressions(name):
        names = {name for name, _ in SELECTOR.findall(expression)}
        assert names, expression
        assert names <= samples.keys(), expression
        known = set().union(*(samples[name] for name in names)) | OF_PROMETHEUS
        assert labels_named(expression, legend) <= known, expression
