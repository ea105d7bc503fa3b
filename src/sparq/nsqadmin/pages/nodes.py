"""The nodes: the list, and a page of each; and what nsqlookupds know beyond them."""

from __future__ import annotations

from functools import partial

from sparq.daemon.http import HttpError
from sparq.nsqadmin.pages.grids import CHANNELS, NODES, TOPICS, grid
from sparq.nsqadmin.pages.look import Look, View
from sparq.nsqadmin.pages.overview import charts_of
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.attention import node_link

TOMBSTONES_MAX = 1000


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
        HttpError: 404, it is none of the cluster's.
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
    """What nsqlookupds know, and topics that no nsqd has."""
    inactive: list[tuple[str, list[str]]] = []
    trouble = ""
    if look.picture.lookupds:
        found = await look.desk.fleet.without_producers()
        inactive = sorted(found.value.items())
        trouble = found.text
    facts = {"inactive": inactive, "trouble": trouble, **look.rights}
    return View("lookup.html", "Lookup", facts)
