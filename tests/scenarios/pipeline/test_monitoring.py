"""Dashboard and documentation have exactly the metrics that the pipeline exposes."""

import pytest
from prometheus_client import generate_latest

from sparq.daemon.prometheus_text import process_registry
from sparq.pipeline.monitor import COUNTS, NEWEST_PUBLISHED, QueryMetrics
from tests.pipeline.spark_progress import STATE, event, progress
from tests.scenarios.monitoring.dashboards import (
    check_queries,
    documented,
    metrics_of,
    samples_of,
)


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
    return samples_of(generate_latest(registry))


def test_every_dashboard_query_uses_existing_metrics_and_labels(samples):
    """Each metric in a dashboard query is exposed; each label belongs to it or to Prometheus."""
    check_queries("pipeline", samples)


def test_every_metric_is_documented(samples):
    """docs/monitoring.md names every metric of the pipeline, and no others."""
    assert documented("sparq_query") == metrics_of(samples, "sparq_query")
