"""Topics and channels: the lists, and a page for each topic and channel.

Lists come from the watch's last snapshot. The page of a topic or channel also fetches its latencies
and consumers, once for all viewers, and, when it is opened, the settings made by policies.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sparq.cluster.cluster_stats import LATENCY, Document
from sparq.cluster.figures import DELIVERY, STATES
from sparq.nsqadmin.pages import words
from sparq.nsqadmin.pages.cluster import charts_of
from sparq.nsqadmin.pages.grids import CHANNELS, CLIENTS, TOPICS, grid
from sparq.nsqadmin.pages.page_request import PageRequest, PageView
from sparq.nsqadmin.pages.policies import settings
from sparq.nsqadmin.watch.attention import channel_link

OF_ONE_TOPIC: Final = (CHANNELS[0]._replace(label="Name"), *CHANNELS[1:])


async def topics(request: PageRequest) -> PageView:
    """All topics, or with `?view=channels` all channels, a page at a time."""
    of_channels = request.query.get("view") == "channels"
    state = request.query.get("state", "")
    snapshot = request.snapshot
    unplaced = []
    if of_channels:
        found = grid(request, CHANNELS, snapshot.channels, default="name", state=state)
    else:
        found = grid(request, TOPICS, snapshot.topics, default="name")
        if snapshot.lookupds:
            unplaced = await request.services.watch.unplaced()
    chips = [(word, request.here(state=word, offset=""), state == word) for word in STATES]
    facts = {
        "list": found,
        "unplaced": [name for name in unplaced if found.filter.lower() in name.lower()],
        "of_channels": of_channels,
        "states": [("all", request.here(state="", offset=""), not state), *chips],
        "may_create": request.rights["may_operate"],
        "query": {
            name: request.query.get(name, "")
            for name in ("view", "sort", "state", "limit", "filter")
        },
    }
    return PageView("topics.html", "Channels" if of_channels else "Topics", facts)


async def topic(request: PageRequest) -> PageView:
    """One topic: its figures, channels and nodes."""
    name, snapshot = request.parameters["topic"], request.snapshot
    row = snapshot.topics.find(name)
    facts: dict[str, Any] = {"row": row, "name": name, "has_log": snapshot.has_log}
    facts |= request.rights
    if row is None:
        return PageView("topic.html", name, facts, status=404)
    watch = request.services.watch
    detail, held = await asyncio.gather(watch.detail(name), settings(request, name))
    facts |= {
        **charts_of(request, "topic", name),
        "channels": grid(request, OF_ONE_TOPIC, snapshot.channels, default="name", topic=name),
        "nodes": snapshot.topic_nodes(name),
        "latencies": latencies(detail.topic),
        **held,
    }
    return PageView("topic.html", name, facts)


async def channel(request: PageRequest) -> PageView:
    """One channel: its figures, consumers and nodes."""
    of, name = request.parameters["topic"], request.parameters["channel"]
    snapshot, title = request.snapshot, f"{of}/{name}"
    row = snapshot.channels.find(of, name)
    facts: dict[str, Any] = {"row": row, "topic": of, "name": name, "has_log": snapshot.has_log}
    facts |= request.rights
    if row is None:
        return PageView("channel.html", title, facts, status=404)
    watch = request.services.watch
    detail, held = await asyncio.gather(watch.detail(of, name), settings(request, of, name))
    facts |= {
        **charts_of(request, "channel", of, name),
        "notices": snapshot.notices_at(channel_link(of, name)),
        "clients": grid(request, CLIENTS, detail.clients, default="-connections"),
        "nodes": snapshot.channel_nodes(of, name),
        "latencies": latencies(detail.channel),
        "delivery": delivery(detail.channel),
        **held,
    }
    return PageView("channel.html", title, facts)


def latencies(stats: Document | None) -> list[tuple[str, str]]:
    """Rows about the end-to-end latency; empty if it is not measured."""
    return [
        (f"End to end, {each['quantile']:.4g} quantile", words.latency(each["average"]))
        for each in (stats[LATENCY]["percentiles"] if stats else None) or ()
    ]


def delivery(stats: Document | None) -> list[tuple[str, str]]:
    """How many messages went to consumers in the same zone, in the same region, and elsewhere."""
    counts = [stats.get(name, 0) for name in DELIVERY] if stats else []
    total = sum(counts)
    if not total or total == counts[-1]:
        return []  # no nsqd has a zone or region configured
    labels = ("in the same zone", "in the same region", "elsewhere")
    return [
        (f"Delivered {label}", f"{words.grouped(n)} ({100 * n / total:.0f} %)")
        for label, n in zip(labels, counts, strict=True)
    ]
