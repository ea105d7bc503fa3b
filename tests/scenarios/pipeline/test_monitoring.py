"""Dashboard, alerts and documentation use exactly the metrics that the pipeline exposes."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparq.daemon.prometheus_text import process_registry
from sparq.pipeline.monitor import COUNTS, NEWEST_PUBLISHED, QueryMetrics
from tests.pipeline.spark_progress import STATE, event, progress

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "dashboards/pipeline.json").read_text(encoding="utf-8"))
RULES = ROOT / "deploy/prometheus/pipeline.rules.yml"
CASES = Path(__file__).with_name("alerts.yml")
MONITORING = ROOT / "docs/monitoring.md"
OF_PROMETHEUS = {"instance", "job", "up"}
"""Labels and the metric that Prometheus itself adds."""

SELECTOR = re.compile(r"\b((?:sparq|process)_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
RULE = re.compile(r"- alert: (\w+)\n(.*?)(?=\n\n|\Z)", re.S)


@pytest.fixture(scope="module")
def samples():
    """The sample names of a pipeline whose metrics all have values, with the labels of each."""
    registry = process_registry()
    metrics = QueryMetrics(registry)
    began = "2026-11-22T12:00:00.000Z"
    metrics.onQueryStarted(event(id="id", runId="run", name="metrics", timestamp=began))
    observed = {"r": {NEWEST_PUBLISHED: 1.0, **dict.fromkeys(COUNTS, 1)}}
    figures = progress("id", observedMetrics=observed, stateOperators=[STATE])
    metrics.onQueryProgress(event(progress=figures))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions():
    """Return every query of the dashboard with its legend."""
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    targets = [target for panel in panels for target in panel["targets"]]
    variables = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return [(target["expr"], target["legendFormat"]) for target in targets] + [
        (variable["definition"], "") for variable in variables
    ]


def rules():
    """Return expression, severity and annotations of each alert, by name."""
    found = {}
    for name, body in RULE.findall(RULES.read_text(encoding="utf-8")):
        (expression,) = re.findall(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", body, re.S)
        severity = re.findall(r"severity: (\w+)", body)
        told = re.findall(r"^ +(summary|action): .+", body, re.M)
        found[name] = (" ".join(expression.split()), severity, told)
    return found


def labels_named(expression, legend=""):
    """Return the labels that a query and its legend use."""
    inside = ",".join(labels for _, labels in SELECTOR.findall(expression))
    found = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))
    found |= set(re.findall(r"\{\{(\w+)\}\}", legend))
    for grouped in GROUPED.findall(expression):
        found |= {label.strip() for label in grouped.split(",")}
    if variable := re.fullmatch(r"label_values\(.*,\s*(\w+)\)", expression):
        found.add(variable[1])
    return found


def missing(samples, expression, legend=""):
    """Return the metrics and labels that an expression uses and the pipeline does not expose."""
    names = {name for name, _ in SELECTOR.findall(expression)}
    known = set().union(*(samples.get(name, set()) for name in names)) | OF_PROMETHEUS
    return sorted(names - samples.keys()), sorted(labels_named(expression, legend) - known)


def test_every_dashboard_query_uses_existing_metrics_and_labels(samples):
    """Each metric in a dashboard query is exposed; each label belongs to it or to Prometheus."""
    in_file = json.dumps(DASHBOARD).count('"expr":')
    assert in_file == sum("label_values(" not in one for one, _ in expressions()) > 30
    for expression, legend in expressions():
        assert SELECTOR.search(expression), expression
        assert (expression, ([], [])) == (expression, missing(samples, expression, legend))


def test_every_alert_uses_existing_metrics(samples):
    """Each alert uses only exposed metrics, and has a severity, a summary and an action."""
    assert len(rules()) > 10
    for name, (expression, severity, told) in rules().items():
        assert (name, ([], [])) == (name, missing(samples, expression))
        assert severity in (["page"], ["ticket"]), name
        assert ["summary", "action"] == told, name


def test_every_metric_is_documented(samples):
    """docs/monitoring.md names every metric of the pipeline, and no others."""
    named = set(re.findall(r"`(sparq_query_\w+)`", MONITORING.read_text(encoding="utf-8")))
    own = {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples if "sparq" in name}

    assert named == own


def test_every_alert_has_a_test_case():
    """alerts.yml has a test case for each alert."""
    assert set(rules()) == set(re.findall(r"Sparq\w+", CASES.read_text(encoding="utf-8")))


def test_alerts_fire_as_expected(tmp_path):
    """promtool accepts the rules, and each alert fires exactly as alerts.yml expects."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool")
    cases = tmp_path / CASES.name
    text = CASES.read_text(encoding="utf-8")
    cases.write_text(text.replace("[RULES]", f"[{RULES}]"), encoding="utf-8")
    for command in (("check", "rules", RULES), ("test", "rules", cases)):
        done = subprocess.run(
            [promtool, *command], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
