"""`/metrics` of nsqadmin: what it costs its daemons (docs/monitoring.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import generate_latest

from sparq.daemon.exposition import CONTENT_TYPE, Family, labels, process_registry
from sparq.daemon.http import Content
from sparq.program.version import sparq_version
from sparq.protocol.identify import NSQ_VERSION

if TYPE_CHECKING:
    from sparq.nsqadmin.desk import Desk

REGISTRY: Final = process_registry()


def exposition(desk: Desk) -> Content:
    """The text that Prometheus reads."""
    build = Family("nsqadmin_build_info", "gauge", "What runs: always 1")
    build.add(1, labels(version=NSQ_VERSION, sparq_version=sparq_version()))
    calls = Family("nsqadmin_upstream_requests_total", "counter", "Requests to nsqds, nsqlookupds")
    calls.add(desk.upstream.calls)
    failures = Family("nsqadmin_upstream_failures_total", "counter", "Of these, those that failed")
    failures.add(desk.upstream.failures)
    rounds = Family("nsqadmin_watch_rounds_total", "counter", "Looks at all figures of the cluster")
    rounds.add(desk.watch.rounds)
    text = "".join(family.text() for family in (build, calls, failures, rounds))
    return Content(text.encode() + generate_latest(REGISTRY), CONTENT_TYPE)
