"""Pages with figures: overview, counter, topics, channels, consumers, nodes, nsqlookupds, audit.

1. Figures come from the watch's last snapshot and its history: viewing a page queries no daemon.
   The page of a topic or channel also fetches its latencies and consumers, once for all viewers,
   and, when it is opened, the settings made by policies.
2. Pages of connections ask the nodes themselves. For one connection only its node is asked, with
   `/stats?client=`; Go's nsqd ignores `client` and lists all clients of the channel, and cannot
   close a connection: its page has no button for it, and says so.
3. The server sorts, filters and pages lists (`cluster.rows`): a browser gets 50 rows out of ten
   thousand. The whole state of a list is in the URL.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from msgspec import structs

from sparq.cluster.figures import STATES, Client
from sparq.cluster.rows import LIMIT_MAX, ChannelRow, page_of
from sparq.daemon.access.audit import FILTERS, OUTCOMES
from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.charts import Chart, Line, chart, spark
from sparq.nsqadmin.pages.policies import settings
from sparq.nsqadmin.pages.rendering import PageRequest, PageView
from sparq.nsqadmin.watch.attention import channel_link, node_link
from sparq.protocol.names import one_line

RANKED: Final = 8
ENTRIES: Final = 100
ROWS: Final = 50
OFFSET_MAX: Final = 10_000_000

# Lists


@dataclass(frozen=True)
class Grid:
    """A page of a list (`rows.ListPage`), for the macro `grid`.

    Attributes:
        prefix: of the parameters' names, for a page with several lists.
    """

    request: PageRequest
    prefix: str
    sort: str
    filter: str
    rows: Sequence[Any]
    total: int
    offset: int
    limit: int

    def link(self, **changes: object) -> str:
        """Build a link to the same list with other parameters."""
        return self.request.here(**{f"{self.prefix}{name}": v for name, v in changes.items()})


def grid(
    request: PageRequest, rows: Sequence[Any], *, default: str, prefix: str = "", **of: Any
) -> Grid:
    """Build the page of a list that the query asks for.

    Args:
        default: the sort order if the query has none.
        prefix: prefix of the parameters' names, for a page with several lists.
        of: `topic` or `state`: only such channels.

    Raises:
        HttpError: 400 if the query asks for a column or page that cannot exist.
    """
    sort = request.query.get(f"{prefix}sort") or default
    wanted = request.query.get(f"{prefix}filter", "")
    offset = request.number(f"{prefix}offset", 0, 0, OFFSET_MAX)
    limit = request.number(f"{prefix}limit", ROWS, 1, LIMIT_MAX)
    try:
        page = page_of(rows, sort=sort, filter=wanted, offset=offset, limit=limit, **of)
    except ValueError as error:
        raise HttpError(400, str(error)) from None
    return Grid(request, prefix, sort, wanted, *page)


# The cluster, its nodes, topics and channels


def charts_of(request: PageRequest, *of: str) -> tuple[Chart, Chart]:
    """The charts of a subject of the history: rates, and waiting messages."""
    series = request.services.watch.history.series(*of)
    values, unknown = series.values, [None] * len(series.times)
    # A topic has no finish rate: each of its channels has one.
    rates = [
        Line(label, values.get(key, unknown), "/s")
        for label, key in (("in", "in_rate"), ("out", "out_rate"))
        if key in values or not values
    ]
    waiting = [Line("waiting", values.get("depth", unknown))]
    return (
        chart("rates", "Messages a second", series.times, rates),
        chart("waiting", "Waiting messages", series.times, waiting),
    )


def ranked(request: PageRequest, key: str) -> list[tuple[ChannelRow, int, str]]:
    """The top channels by a figure: row, percent of the largest figure, path of the last hour."""
    rows = page_of(request.snapshot.channels, sort=f"-{key}", limit=RANKED).rows
    figures = [(row, getattr(row, key)) for row in rows if getattr(row, key)]
    most = max((value for _, value in figures if math.isfinite(value)), default=1)
    history, found = request.services.watch.history, []
    for row, value in figures:
        past = history.spark(row.topic, row.channel)
        path = spark(past.times, past.values["depth"])
        found.append((row, round(100 * min(1.0, value / most)), path))
    return found


async def lookup(request: PageRequest) -> PageView:
    """The page of nsqlookupds, with the topics that no nsqd has."""
    found = await request.services.fleet.without_producers()
    facts = {"inactive": sorted(found.value.items()), "trouble": found.text}
    return PageView("lookup.html", "Lookup", facts)


async def audit(request: PageRequest) -> PageView:
    """The audit log, newest entries first."""
    filters, log = {name: request[name] for name in FILTERS}, request.services.audit
    found = await log.page(request["before"], ENTRIES, filters)
    entries = []
    for entry in found.entries:
        told = entry.get("arguments") or ""
        line = told if isinstance(told, str) else json.dumps(told, ensure_ascii=False)
        entries.append((entry, line))
    facts = {
        "entries": entries,
        "next": request.here(before=found.next) if found.next else "",
        "first": request.here(before="") if request["before"] else "",
        "filters": filters,
        "outcomes": OUTCOMES,
        "is_kept": log.is_kept,
    }
    return PageView("audit.html", "Audit", facts, is_live=False)


async def plain(template: str, title: str, request: PageRequest) -> PageView:
    """A page that shows only the snapshot and its history."""
    return view(request, template, title)


def view(request: PageRequest, template: str, title: str, **facts: Any) -> PageView:
    """A live page; its template builds lists and charts itself."""
    builders = {
        "grid": partial(grid, request),
        "charts": partial(charts_of, request),
        "ranked": partial(ranked, request),
    }
    return PageView(template, title, {**builders, **facts})


async def nodes(request: PageRequest) -> PageView:
    """All nsqds and nsqlookupds."""
    snapshot = request.snapshot
    links = [node_link(node.address) for node in snapshot.nodes]
    notices = snapshot.notices_at("/nodes", "/nodes?sort=version", *links)
    return view(request, "nodes.html", "Nodes", notices=notices)


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
    facts = {"node": found, "at": at, "notices": snapshot.notices_at(node_link(address))}
    return view(request, "node.html", found.hostname or address, **facts)


async def topics(request: PageRequest) -> PageView:
    """All topics, or with `?view=channels` all channels, a page at a time."""
    watch, snapshot, filters = request.services.watch, request.snapshot, request["filter"].lower()
    if request["view"] == "channels":
        return view(request, "topics.html", "Channels", unplaced=[], states=("", *STATES))
    unplaced = await watch.unplaced() if snapshot.lookupds else []
    unplaced = [name for name in unplaced if filters in name.lower()]
    return view(request, "topics.html", "Topics", unplaced=unplaced)


async def topic(request: PageRequest) -> PageView:
    """One topic: its figures, channels and nodes."""
    name, snapshot = request.parameters["topic"], request.snapshot
    row = snapshot.topics.find(name)
    if row is None:
        return view(request, "topic.html", name, row=None)._replace(status=404)
    detail, held = await asyncio.gather(
        request.services.watch.detail(name), settings(request, name)
    )
    nodes = snapshot.topic_nodes(name)
    return view(request, "topic.html", name, row=row, nodes=nodes, stats=detail.stats, **held)


async def channel(request: PageRequest) -> PageView:
    """One channel: its figures, consumers and nodes."""
    of, name = request.parameters["topic"], request.parameters["channel"]
    snapshot, title = request.snapshot, f"{of}/{name}"
    row = snapshot.channels.find(of, name)
    if row is None:
        return view(request, "channel.html", title, row=None)._replace(status=404)
    detail, held = await asyncio.gather(
        request.services.watch.detail(of, name), settings(request, of, name)
    )
    nodes = snapshot.channel_nodes(of, name)
    facts = {"row": row, "nodes": nodes, "detail": detail, **held}
    facts["notices"] = snapshot.notices_at(channel_link(of, name))
    return view(request, "channel.html", title, **facts)


# Connections


class ConsumerConnection(Client, gc=False):
    """One connection; `node` is the address of its nsqd."""

    node: str = ""

    @property
    def text(self) -> str:
        """What filters search."""
        return f"{self.remote_address} {self.hostname} {self.client_id} {self.node}"


async def _connections(
    request: PageRequest, addresses: Collection[str], client: str = ""
) -> tuple[list[ConsumerConnection], dict[str, str]]:
    """The connections to a channel at these nodes, and why nodes did not answer.

    Raises:
        HttpError: 400 if the query names no channel.
    """
    topic, channel, fleet = request["topic"], request["channel"], request.services.fleet
    if not topic or not channel:
        raise HttpError(400, "Connections are those of a channel: start from its page.")
    nodes = [seen.node for seen in request.snapshot.observed if seen.node.address in addresses]
    answers, errors = await fleet.each(
        nodes, lambda n: fleet.node_stats(n.at, topic, channel, clients=True, client=client)
    )
    found = []
    for node, figures in answers.items():
        for *of, one in figures.clients():
            told: dict[str, Any] = structs.asdict(one) if of == [topic, channel] else {}
            # Texts that clients send about themselves.
            told |= {name: one_line(text) for name, text in told.items() if isinstance(text, str)}
            found += [ConsumerConnection(**told, node=node)] if told else []
    return found, errors


async def connections(request: PageRequest) -> PageView:
    """The connections to a channel, at all nodes, optionally only those of a host and program."""
    topic, channel = request["topic"], request["channel"]
    there = [row.address for row, _ in request.snapshot.topic_nodes(topic) if row.state != "gone"]
    found, errors = await _connections(request, there)
    if request.snapshot.topics.find(topic) is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    host, agent = request["hostname"], request["user_agent"]
    rows = [one for one in found if host in ("", one.hostname) and agent in ("", one.user_agent)]
    title = f"Connections of {topic}/{channel}"
    found_page = view(request, "connections.html", title, rows=rows, errors=errors)
    return found_page._replace(is_live=False)


async def connection(request: PageRequest) -> PageView:
    """One connection; with status 404 once it is closed."""
    address, client = request["node"], request["client"]
    found, errors = await _connections(request, (address,), client)
    row = request.snapshot.node(address)
    if row is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    if errors:
        raise HttpError(502, f"UPSTREAM_ERROR: {address}: {errors[address]}")
    one = next((one for one in found if one.remote_address == client), None)
    facts = {"client": client, "node": row, "one": one}
    return PageView("connection.html", f"Connection {client}", facts, 404 if one is None else 200)
