"""Pages about consumers' connections: those of a channel, and one with what nsqd knows about it.

1. Pages ask the nodes themselves, only while they are viewed. For one connection only its node is
   asked, with `/stats?client=`; Go's nsqd ignores `client` and lists all clients of the channel.
2. Go's nsqd cannot close a connection: its page has no button for it, and says so.
3. Texts that clients send about themselves are cut to one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from msgspec import structs

from sparq.client.reasons import one_line
from sparq.cluster.figures import Client, NsqdFigures
from sparq.cluster.nodes import Node
from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.grids import GridColumn, grid
from sparq.nsqadmin.pages.page_request import PageRequest, PageView
from sparq.nsqadmin.watch import paging

STATES: Final = {0: "not subscribed", 3: "subscribed", 4: "closing its subscription"}
COLUMNS: Final = (
    GridColumn("remote_address", "Connection", "connection", ascending=True),
    GridColumn("hostname", "Host", "text", "", 2, ascending=True),
    GridColumn("user_agent", "Program", "text", "", 3, ascending=True),
    GridColumn("node", "Node", "text", "", 3, ascending=True),
    GridColumn("ready_count", "Ready", "count", "messages accepted at a time (RDY)"),
    GridColumn("in_flight_count", "In flight", "count", "delivered to it, not finished yet"),
    GridColumn("finish_count", "Finished", "count", "", 2),
    GridColumn("requeue_count", "Requeued", "count", "", 3),
    GridColumn("connect_ts", "Connected", "ago", "", 2),
)


class ConsumerConnection(Client, gc=False):
    """One connection; `node` is the address of its nsqd."""

    node: str = ""


def read(node: str, figures: NsqdFigures, topic: str, channel: str) -> Iterator[ConsumerConnection]:
    """The connections to a channel in an nsqd's figures."""
    found = figures.channel(topic, channel)
    for client in (found.clients if found else None) or ():
        told: dict[str, Any] = structs.asdict(client)
        told |= {name: one_line(one) for name, one in told.items() if isinstance(one, str)}
        yield ConsumerConnection(**told, node=node)


async def connections(request: PageRequest) -> PageView:
    """The connections to a channel, at all nodes, optionally only those of a host and program."""
    topic, channel = _named(request)
    if request.snapshot.topics.find(topic) is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    there = [row.address for row, _ in request.snapshot.topic_nodes(topic) if row.state != "gone"]
    fleet = request.services.fleet
    answers, errors = await fleet.each(
        _nodes(request, *there), lambda n: fleet.node_stats(n.at, topic, channel, clients=True)
    )
    wanted = {name: request.query.get(name, "") for name in ("hostname", "user_agent")}
    rows = [
        one
        for address, figures in answers.items()
        for one in read(address, figures, topic, channel)
        if all(value in ("", getattr(one, name)) for name, value in wanted.items())
    ]
    texts = [f"{one.remote_address} {one.hostname} {one.client_id} {one.node}" for one in rows]
    facts = {
        "topic": topic,
        "channel": channel,
        "wanted": [value for value in wanted.values() if value],
        "query": {**wanted, "topic": topic, "channel": channel},
        "list": grid(request, COLUMNS, partial(paging.page_of, rows, texts), default="hostname"),
        "warnings": [f"{node} did not answer: {why}." for node, why in errors.items()],
    }
    return PageView("connections.html", f"Connections of {topic}/{channel}", facts, is_live=False)


async def connection(request: PageRequest) -> PageView:
    """One connection; with status 404 once it is closed."""
    topic, channel = _named(request)
    address, client = request.query.get("node", ""), request.query.get("client", "")
    row = request.snapshot.node(address)
    if row is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    fleet = request.services.fleet
    answers, errors = await fleet.each(
        _nodes(request, address),
        lambda n: fleet.node_stats(n.at, topic, channel, clients=True, client=client),
    )
    if errors:
        raise HttpError(502, f"UPSTREAM_ERROR: {address}: {errors[address]}")
    found = read(address, answers[address], topic, channel)
    one = next((one for one in found if one.remote_address == client), None)
    facts = {
        "topic": topic,
        "channel": channel,
        "client": client,
        "node": row,
        "one": one,
        "layers": _layers(one) if one is not None else {},
        "may_close": request.rights["may_operate"] and row.is_sparq and client,
    }
    return PageView("connection.html", f"Connection {client}", facts, 404 if one is None else 200)


def _nodes(request: PageRequest, *addresses: str) -> list[Node]:
    """The nodes with these addresses."""
    observed = request.snapshot.observed
    return [seen.node for seen in observed if seen.node.address in addresses]


def _named(request: PageRequest) -> tuple[str, str]:
    topic, channel = request.query.get("topic", ""), request.query.get("channel", "")
    if not topic or not channel:
        raise HttpError(400, "Connections are those of a channel: start from its page.")
    return topic, channel


def _layers(one: ConsumerConnection) -> dict[str, str]:
    """Its state, TLS and compression in words, as far as they are known."""
    known = [text for text in (one.tls_version, one.tls_cipher_suite) if text]
    return {
        "State": STATES.get(one.state, str(one.state)),
        "TLS": ", ".join(known) or ("yes" if one.tls else "none"),
        "Compression": "deflate" if one.deflate else "snappy" if one.snappy else "none",
    }
