"""Pages about the whole cluster: overview, counter, nodes, nsqlookupds, audit log.

The overview shows the cluster's figures and, in words, what needs attention. Both come from the
watch's last snapshot and its history: viewing the page queries no daemon.
"""

from __future__ import annotations

import json
import math
from typing import Any

from sparq.cluster.rows import ChannelRow
from sparq.daemon.access.audit import FILTERS
from sparq.daemon.access.audit_file import OUTCOMES
from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.charts import Chart, Line, chart, spark
from sparq.nsqadmin.pages.grids import CHANNELS, NODES, TOPICS, GridColumn, grid
from sparq.nsqadmin.pages.page_request import PageRequest, PageView
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.attention import node_link

RANKED = 8
ENTRIES = 100
TOMBSTONES_MAX = 1000
COUNTED = (GridColumn("messages", "Messages"), GridColumn("in_rate", "In/s", "rate"))


async def overview(request: PageRequest) -> PageView:
    """The overview of the cluster."""
    snapshot = request.snapshot
    facts = {
        "totals": snapshot.totals,
        **charts_of(request, "cluster"),
        "deepest": ranked(request, "depth"),
        "slowest": ranked(request, "lag_seconds"),
        "nodes": grid(request, NODES, snapshot.nodes, default="address"),
        "errors": [f"{address}: {why}" for address, why in snapshot.errors.items()],
    }
    return PageView("overview.html", "Overview", facts)


async def counter(request: PageRequest) -> PageView:
    """The number of published messages, as it grows."""
    snapshot, nodes, topics = request.snapshot, (NODES[0], *COUNTED), (TOPICS[0], *COUNTED)
    facts = {
        "totals": snapshot.totals,
        "nodes": grid(request, nodes, snapshot.nodes, default="-messages"),
        "topics": grid(request, topics, snapshot.topics, default="-in_rate", prefix="t"),
    }
    return PageView("counter.html", "Counter", facts)


def charts_of(request: PageRequest, *of: str) -> dict[str, Chart]:
    """The charts of a subject of the history: rates and waiting messages."""
    series = request.services.watch.history.series("cluster" if of == ("cluster",) else of)
    values, unknown = series.values, [None] * len(series.times)
    # A topic has no finish rate: each of its channels has one.
    rates = [
        Line(label, values.get(key, unknown), "/s")
        for label, key in (("in", "in_rate"), ("out", "out_rate"))
        if key in values or not values
    ]
    waiting = [Line("waiting", values.get("depth", unknown))]
    return {
        "rates": chart("rates", "Messages a second", series.times, rates),
        "waiting": chart("waiting", "Waiting messages", series.times, waiting),
    }


def ranked(request: PageRequest, key: str) -> list[tuple[ChannelRow, int, str]]:
    """The top channels by a figure: row, percent of the largest figure, path of the last hour."""
    rows = paging.page(request.snapshot.channels, sort=f"-{key}", limit=RANKED).rows
    figures = [(row, getattr(row, key)) for row in rows]
    most = max((value for _, value in figures if value and math.isfinite(value)), default=0) or 1
    found = []
    for row, value in figures:
        if value:
            past = request.services.watch.history.spark(("channel", row.topic, row.channel))
            part = round(100 * min(1.0, value / most))
            found.append((row, part, spark(past.times, past.values["depth"])))
    return found


async def nodes(request: PageRequest) -> PageView:
    """All nsqds and nsqlookupds."""
    snapshot = request.snapshot
    links = [node_link(node.address) for node in snapshot.nodes]
    facts = {
        "list": grid(request, NODES, snapshot.nodes, default="address"),
        "notices": snapshot.notices_at("/nodes", "/nodes?sort=version", *links),
        "query": {"sort": request.query.get("sort", "")},
    }
    return PageView("nodes.html", "Nodes", facts)


async def node(request: PageRequest) -> PageView:
    """One nsqd.

    Raises:
        HttpError: 404 if the cluster has no such node.
    """
    address, snapshot = request.parameters["node"], request.snapshot
    found = snapshot.node(address)
    if found is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    at = snapshot.at_node(address)
    facts = {
        "node": found,
        **charts_of(request, "node", address),
        "topics": grid(request, TOPICS, at.topics, default="-waiting"),
        "channels": grid(request, CHANNELS, at.channels, default="-depth", prefix="c"),
        "notices": snapshot.notices_at(node_link(address)),
        "tombstones": [key[0] for key in at.topics.keys[:TOMBSTONES_MAX]],
        **request.rights,
    }
    return PageView("node.html", found.hostname or address, facts)


async def lookup(request: PageRequest) -> PageView:
    """The page of nsqlookupds, with the topics that no nsqd has."""
    found = await request.services.fleet.without_producers()
    facts = {"inactive": sorted(found.value.items()), "trouble": found.text, **request.rights}
    return PageView("lookup.html", "Lookup", facts)


async def audit(request: PageRequest) -> PageView:
    """The audit log, newest entries first."""
    filters = {name: request.query.get(name, "") for name in FILTERS}
    found = await request.services.audit.page(request.query.get("before", ""), ENTRIES, filters)
    facts = {
        "entries": [(entry, _arguments(entry)) for entry in found.entries],
        "next": request.here(before=found.next) if found.next else "",
        "first": request.here(before="") if request.query.get("before") else "",
        "filters": filters,
        "outcomes": OUTCOMES,
        "is_kept": request.services.audit.is_kept,
    }
    return PageView("audit.html", "Audit", facts, is_live=False)


def _arguments(entry: dict[str, Any]) -> str:
    """The arguments of an audit entry, apart from topic and channel, in one line."""
    found = entry.get("arguments") or ""
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
