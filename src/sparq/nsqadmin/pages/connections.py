"""Pages about consumers' connections: those of a channel, and one with what nsqd knows about it.

1. Pages ask the nodes themselves, only while they are viewed. For one connection only its node is
   asked, with `/stats?client=`; Go's nsqd ignores `client` and lists all clients of the channel.
2. Go's nsqd cannot close a connection: its page has no button for it, and says so.
3. Texts that clients send about themselves are cut to one line.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from msgspec import structs

from sparq.cluster.figures import Client
from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.grids import GridColumn, grid
from sparq.nsqadmin.pages.page_request import PageRequest, PageView
from sparq.protocol.names import one_line

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
    topic, channel = request.query.get("topic", ""), request.query.get("channel", "")
    if not topic or not channel:
        raise HttpError(400, "Connections are those of a channel: start from its page.")
    fleet = request.services.fleet
    nodes = [seen.node for seen in request.snapshot.observed if seen.node.address in addresses]
    answers, errors = await fleet.each(
        nodes, lambda n: fleet.node_stats(n.at, topic, channel, clients=True, client=client)
    )
    found = []
    for node, figures in answers.items():
        for *of, one in figures.clients():
            if of != [topic, channel]:
                continue
            told: dict[str, Any] = structs.asdict(one)
            told |= {name: one_line(text) for name, text in told.items() if isinstance(text, str)}
            found.append(ConsumerConnection(**told, node=node))
    return found, errors


async def connections(request: PageRequest) -> PageView:
    """The connections to a channel, at all nodes, optionally only those of a host and program."""
    topic, channel = request.query.get("topic", ""), request.query.get("channel", "")
    there = [row.address for row, _ in request.snapshot.topic_nodes(topic) if row.state != "gone"]
    found, errors = await _connections(request, there)
    if request.snapshot.topics.find(topic) is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    wanted = {name: request.query.get(name, "") for name in ("hostname", "user_agent")}
    rows = [
        one
        for one in found
        if all(value in ("", getattr(one, name)) for name, value in wanted.items())
    ]
    facts = {
        "topic": topic,
        "channel": channel,
        "wanted": [value for value in wanted.values() if value],
        "query": {**wanted, "topic": topic, "channel": channel},
        "list": grid(request, COLUMNS, rows, default="hostname"),
        "warnings": [f"{node} did not answer: {why}." for node, why in errors.items()],
    }
    return PageView("connections.html", f"Connections of {topic}/{channel}", facts, is_live=False)


async def connection(request: PageRequest) -> PageView:
    """One connection; with status 404 once it is closed."""
    topic, channel = request.query.get("topic", ""), request.query.get("channel", "")
    address, client = request.query.get("node", ""), request.query.get("client", "")
    found, errors = await _connections(request, (address,), client)
    row = request.snapshot.node(address)
    if row is None:
        raise HttpError(404, "NODE_NOT_FOUND")
    if errors:
        raise HttpError(502, f"UPSTREAM_ERROR: {address}: {errors[address]}")
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


def _layers(one: ConsumerConnection) -> dict[str, str]:
    """Its state, TLS and compression in words, as far as they are known."""
    known = [text for text in (one.tls_version, one.tls_cipher_suite) if text]
    return {
        "State": STATES.get(one.state, str(one.state)),
        "TLS": ", ".join(known) or ("yes" if one.tls else "none"),
        "Compression": "deflate" if one.deflate else "snappy" if one.snappy else "none",
    }
