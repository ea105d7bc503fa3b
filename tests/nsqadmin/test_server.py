"""nsqadmin's `/metrics`: the checks of promtool, and correct figures."""

from __future__ import annotations

import re
import urllib.request
from asyncio import to_thread
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.nsqadmin.access.cluster import Cluster, cluster

NAME = re.compile(r"[a-z][a-z0-9_]*")
NSQADMIN_METRICS = {
    "nsqadmin_build_info": "gauge",
    "nsqadmin_upstream_requests": "counter",
    "nsqadmin_upstream_failures": "counter",
    "nsqadmin_watch_rounds": "counter",
}


def fetch(running: Cluster) -> tuple[str, str]:
    with urllib.request.urlopen(f"{running.url}/metrics", timeout=30) as answer:
        return str(answer.headers["Content-Type"]), answer.read().decode()


def counted(running: Cluster) -> dict[str, int]:
    """The current counts of nsqadmin."""
    upstream, watch = running.admin.services.fleet.upstream, running.admin.services.watch
    return {
        "upstream_requests": upstream.calls,
        "upstream_failures": upstream.failures,
        "watch_rounds": watch.rounds,
    }


def value(families: list[Metric], name: str) -> float:
    (found,) = (s.value for family in families for s in family.samples if s.name == name)
    return float(found)


async def test_metrics_count_requests_failures_and_rounds(tmp_path: Path) -> None:
    """The metrics count requests to daemons, failed ones, and watch rounds."""
    async with cluster(tmp_path) as running:
        before = list(text_string_to_metric_families((await to_thread(fetch, running))[1]))
        assert 200 == await running.ask("GET", "/api/topics/t", {})
        await running.lookupd.stop()
        await running.ask("GET", "/api/topics/t", {})
        await running.admin.services.watch.fresh()
        least = counted(running)
        after = list(text_string_to_metric_families((await to_thread(fetch, running))[1]))
        most = counted(running)

    for name, low in least.items():
        found = value(after, f"nsqadmin_{name}_total")
        assert value(before, f"nsqadmin_{name}_total") < low <= found <= most[name], name
