"""Pages about the whole cluster: overview, counter, nodes, nsqlookupds, audit log.

The overview shows the cluster's figures and, in words, what needs attention. Both come from the
watch's last picture and its history: viewing the page queries no daemon.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from sparq.daemon.access.audit import FILTERS
from sparq.daemon.access.audit_file import OUTCOMES
from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.charts import Chart, Line, chart, spark
from sparq.nsqadmin.pages.grids import CHANNELS, NODES, TOPICS, Column, grid
from sparq.nsqadmin.pages.look import Look, View
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.attention import node_link
from sparq.nsqadmin.watch.history import Series
from sparq.nsqadmin.watch.paging import Page
from sparq.nsqadmin.watch.rows import Channel

RANKED = 8
ENTRIES = 100
TOMBSTONES_MAX = 1000
RATES = (("in", "in_rate"), ("out", "out_rate"))
COUNTED_NODES = (NODES[0], Column("messages", "Messages"), Column("in_rate", "In/s", "rate"))
COUNTED_TOPICS = (TOPICS[0], Column("messages", "Messages"), Column("in_rate", "In/s", "rate"))


async def overview(look: Look) -> View:
    """The overview of the cluster."""
    picture = look.picture
    rates, waiting = charts_of(look.desk.watch.history.series("cluster"))
    facts = {
        "totals": picture.totals,
        "rates": rates,
        "waiting": waiting,
        "deepest": ranked(look, "depth"),
        "slowest": ranked(look, "lag_seconds"),
        "nodes": grid(look, NODES, partial(paging.page_of_nodes, picture.nodes), default="address"),
        "errors": [f"{address}: {why}" for address, why in picture.errors.items()],
    }
    return View("overview.html", "Overview", facts)


async def counter(look: Look) -> View:
    """The number of published messages, as it grows."""
    picture = look.picture
    nodes = grid(
        look, COUNTED_NODES, partial(paging.page_of_nodes, picture.nodes), default="-messages"
    )
    topics = grid(
        look, COUNTED_TOPICS, partial(paging.page, picture.topics), default="-in_rate", prefix="t"
    )
    facts = {"totals": picture.totals, "nodes": nodes, "topics": topics}
    return View("counter.html", "Counter", facts)


def charts_of(series: Series) -> tuple[Chart, Chart]:
    """The two charts of every page with figures: rates and waiting messages."""
    values, unknown = series.values, [None] * len(series.times)
    # A topic has no finish rate: each of its channels has one.
    known = [(label, key) for label, key in RATES if key in values or not values]
    rates = chart(
        "rates",
        "Messages a second over the last hour",
        series.times,
        [Line(label, values.get(key, unknown), "/s") for label, key in known],
    )
    waiting = chart(
        "waiting",
        "Waiting messages over the last hour",
        series.times,
        [Line("waiting", values.get("depth", unknown))],
    )
    return rates, waiting


def ranked(look: Look, key: str) -> list[tuple[Channel, int, str]]:
    """The top channels by a figure: row, percent of the largest figure, points of the last hour."""
    found: Page[Channel] = paging.page(look.picture.channels, sort=f"-{key}", limit=RANKED)
    figures: list[tuple[Channel, Any]] = [(row, getattr(row, key)) for row in found.rows]
    most = max((value for _, value in figures if value and value != float("inf")), default=0) or 1
    history = look.desk.watch.history
    return [
        (
            row,
            round(100 * min(1.0, value / most)),
            spark(history.spark(("channel", row.topic, row.channel))),
        )
        for row, value in figures
        if value
    ]


async def nodes(look: Look) -> View:
    """All nsqds and nsqlookupds."""
    picture = look.picture
    fetch = partial(paging.page_of_nodes, picture.nodes)
    links = {node_link(node.address) for node in picture.nodes} | {"/nodes", "/nodes?sort=version"}
    facts = {
        "list": grid(look, NODES, fetch, default="address"),
        "notices": [notice for notice in picture.notices if notice.link in links],
        "query": {"sort": look.query.get("sort", "")},
    }
    return View("nodes.html", "Nodes", facts)


async def node(look: Look) -> View:
    """One nsqd.

    Raises:
        HttpError: 404 if the cluster has no such node.
    """
    address, picture = look.parameters["node"], look.picture
    found = picture.node(address)
    if found is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    topics, channels = picture.at_node(address)
    rates, waiting = charts_of(look.desk.watch.history.series(("node", address)))
    own = node_link(address)
    facts = {
        "node": found,
        "rates": rates,
        "waiting": waiting,
        "topics": grid(look, TOPICS, partial(paging.page, topics), default="-waiting"),
        "channels": grid(
            look, CHANNELS, partial(paging.page, channels), default="-depth", prefix="c"
        ),
        "notices": [notice for notice in picture.notices if notice.link == own],
        "tombstones": [key[0] for key in topics.keys[:TOMBSTONES_MAX]],
        **look.rights,
    }
    return View("node.html", found.hostname or address, facts)


async def lookup(look: Look) -> View:
    """The page of nsqlookupds, with the topics that no nsqd has."""
    inactive: list[tuple[str, list[str]]] = []
    trouble = ""
    if look.picture.lookupds:
        found = await look.desk.fleet.without_producers()
        inactive = sorted(found.value.items())
        trouble = found.text
    facts = {"inactive": inactive, "trouble": trouble, **look.rights}
    return View("lookup.html", "Lookup", facts)


async def audit(look: Look) -> View:
    """The audit log, newest entries first."""
    filters = {name: look.query.get(name, "") for name in FILTERS}
    found = await look.desk.audit.page(look.query.get("before", ""), ENTRIES, filters)
    facts = {
        "entries": [(entry, _arguments(entry)) for entry in found.entries],
        "next": look.here(before=found.next) if found.next else "",
        "first": look.here(before="") if look.query.get("before") else "",
        "filters": filters,
        "outcomes": OUTCOMES,
        "is_kept": look.desk.audit.is_kept,
    }
    return View("audit.html", "Audit", facts, is_live=False)


def _arguments(entry: dict[str, Any]) -> str:
    """The arguments of an audit entry, apart from topic and channel, in one line."""
    arguments = entry.get("arguments")
    if not arguments:
        return ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
