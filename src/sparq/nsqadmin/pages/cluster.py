"""Pages about the whole cluster: overview, counter, nodes, nsqlookupds, audit log.

The overview shows the cluster's figures and, in words, what needs attention. Both come from the
watch's last snapshot and its history: viewing the page queries no daemon.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from sparq.daemon.access.audit import FILTERS
from sparq.daemon.access.audit_file import OUTCOMES
from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.charts import Chart, Line, chart, spark
from sparq.nsqadmin.pages.grids import CHANNELS, NODES, TOPICS, GridColumn, grid
from sparq.nsqadmin.pages.page_request import PageRequest, PageView
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.attention import node_link
from sparq.nsqadmin.watch.history import Series
from sparq.nsqadmin.watch.paging import ListPage
from sparq.nsqadmin.watch.rows import ChannelRow

RANKED = 8
ENTRIES = 100
TOMBSTONES_MAX = 1000
RATES = (("in", "in_rate"), ("out", "out_rate"))
COUNTED_NODES = (
    NODES[0],
    GridColumn("messages", "Messages"),
    GridColumn("in_rate", "In/s", "rate"),
)
COUNTED_TOPICS = (
    TOPICS[0],
    GridColumn("messages", "Messages"),
    GridColumn("in_rate", "In/s", "rate"),
)


async def overview(request: PageRequest) -> PageView:
    """The overview of the cluster."""
    snapshot = request.snapshot
    rates, waiting = charts_of(request.services.watch.history.series("cluster"))
    facts = {
        "totals": snapshot.totals,
        "rates": rates,
        "waiting": waiting,
        "deepest": ranked(request, "depth"),
        "slowest": ranked(request, "lag_seconds"),
        "nodes": grid(
            request, NODES, partial(paging.page_of_nodes, snapshot.nodes), default="address"
        ),
        "errors": [f"{address}: {why}" for address, why in snapshot.errors.items()],
    }
    return PageView("overview.html", "Overview", facts)


async def counter(request: PageRequest) -> PageView:
    """The number of published messages, as it grows."""
    snapshot = request.snapshot
    nodes = grid(
        request, COUNTED_NODES, partial(paging.page_of_nodes, snapshot.nodes), default="-messages"
    )
    topics = grid(
        request,
        COUNTED_TOPICS,
        partial(paging.page, snapshot.topics),
        default="-in_rate",
        prefix="t",
    )
    facts = {"totals": snapshot.totals, "nodes": nodes, "topics": topics}
    return PageView("counter.html", "Counter", facts)


def charts_of(series: Series) -> tuple[Chart, Chart]:
    """The two charts of every page with figures: rates and waiting messages."""
    values, unknown = series.values, [None] * len(series.times)
    # A topic has no finish rate: each of its channels has one.
    known = [(label, key) for label, key in RATES if key in values or not values]
    rates = chart(
        "rates",
        "Messages a second",
        series.times,
        [Line(label, values.get(key, unknown), "/s") for label, key in known],
    )
    waiting = chart(
        "waiting",
        "Waiting messages",
        series.times,
        [Line("waiting", values.get("depth", unknown))],
    )
    return rates, waiting


def ranked(request: PageRequest, key: str) -> list[tuple[ChannelRow, int, str]]:
    """The top channels by a figure: row, percent of the largest figure, path of the last hour."""
    found: ListPage[ChannelRow] = paging.page(
        request.snapshot.channels, sort=f"-{key}", limit=RANKED
    )
    figures: list[tuple[ChannelRow, Any]] = [(row, getattr(row, key)) for row in found.rows]
    most = max((value for _, value in figures if value and value != float("inf")), default=0) or 1
    history = request.services.watch.history
    return [
        (
            row,
            round(100 * min(1.0, value / most)),
            _spark(history.spark(("channel", row.topic, row.channel))),
        )
        for row, value in figures
        if value
    ]


def _spark(series: Series) -> str:
    return spark(series.times, series.values["depth"])


async def nodes(request: PageRequest) -> PageView:
    """All nsqds and nsqlookupds."""
    snapshot = request.snapshot
    fetch = partial(paging.page_of_nodes, snapshot.nodes)
    links = {node_link(node.address) for node in snapshot.nodes} | {"/nodes", "/nodes?sort=version"}
    facts = {
        "list": grid(request, NODES, fetch, default="address"),
        "notices": [notice for notice in snapshot.notices if notice.link in links],
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
    topics, channels = snapshot.at_node(address)
    rates, waiting = charts_of(request.services.watch.history.series(("node", address)))
    own = node_link(address)
    facts = {
        "node": found,
        "rates": rates,
        "waiting": waiting,
        "topics": grid(request, TOPICS, partial(paging.page, topics), default="-waiting"),
        "channels": grid(
            request, CHANNELS, partial(paging.page, channels), default="-depth", prefix="c"
        ),
        "notices": [notice for notice in snapshot.notices if notice.link == own],
        "tombstones": [key[0] for key in topics.keys[:TOMBSTONES_MAX]],
        **request.rights,
    }
    return PageView("node.html", found.hostname or address, facts)


async def lookup(request: PageRequest) -> PageView:
    """The page of nsqlookupds, with the topics that no nsqd has."""
    inactive: list[tuple[str, list[str]]] = []
    trouble = ""
    if request.snapshot.lookupds:
        found = await request.services.fleet.without_producers()
        inactive = sorted(found.value.items())
        trouble = found.text
    facts = {"inactive": inactive, "trouble": trouble, **request.rights}
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
    arguments = entry.get("arguments")
    if not arguments:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
