"""Topics and channels: the lists, and a page for each topic and channel.

Lists come from the watch's last snapshot. The page of a topic or channel also fetches its latencies
and consumers, once for all viewers, and, when it is opened, the settings made by policies.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any, Final

from sparq.cluster.cluster_stats import E2eLatency
from sparq.cluster.figures import STATES
from sparq.nsqadmin.pages import words
from sparq.nsqadmin.pages.cluster import charts_of
from sparq.nsqadmin.pages.grids import CHANNELS, CLIENTS, TOPICS, grid
from sparq.nsqadmin.pages.page_request import PageRequest, PageView
from sparq.nsqadmin.pages.policies import settings
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.attention import channel_link

OF_ONE_TOPIC: Final = (CHANNELS[0]._replace(label="Name"), *CHANNELS[1:])


async def topics(request: PageRequest) -> PageView:
    """All topics, or with `?view=channels` all channels, a page at a time."""
    of_channels = request.query.get("view") == "channels"
    state = request.query.get("state", "")
    snapshot = request.snapshot
    if of_channels:
        fetch = partial(paging.page, snapshot.channels, state=state)
        found = grid(request, CHANNELS, fetch, default="name")
    else:
        found = grid(request, TOPICS, partial(paging.page, snapshot.topics), default="name")
    unplaced = []
    if snapshot.lookupds and not of_channels:
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
    facts: dict[str, Any] = {
        "row": row,
        "name": name,
        "has_log": snapshot.has_log,
        **request.rights,
    }
    if row is None:
        return PageView("topic.html", name, facts, status=404)
    watch = request.services.watch
    detail, holding = await asyncio.gather(watch.detail(name), settings(request, name))
    rates, waiting = charts_of(watch.history.series(("topic", name)))
    fetch = partial(paging.page, snapshot.channels, topic=name)
    facts |= {
        "rates": rates,
        "waiting": waiting,
        "channels": grid(request, OF_ONE_TOPIC, fetch, default="name"),
        "nodes": snapshot.topic_nodes(name),
        "latencies": latencies(detail.topic.latency),
        **holding,
    }
    return PageView("topic.html", name, facts)


async def channel(request: PageRequest) -> PageView:
    """One channel: its figures, consumers and nodes."""
    of, name, snapshot = (
        request.parameters["topic"],
        request.parameters["channel"],
        request.snapshot,
    )
    row, title = snapshot.channels.find(of, name), f"{of}/{name}"
    facts: dict[str, Any] = {"row": row, "topic": of, "name": name, **request.rights}
    facts["has_log"] = snapshot.has_log
    if row is None:
        return PageView("channel.html", title, facts, status=404)
    watch = request.services.watch
    detail, holding = await asyncio.gather(watch.detail(of, name), settings(request, of, name))
    rates, waiting = charts_of(watch.history.series(("channel", of, name)))
    own = channel_link(of, name)
    fetch = partial(paging.page_of_clients, detail.clients)
    facts |= {
        "rates": rates,
        "waiting": waiting,
        "notices": [notice for notice in snapshot.notices if notice.link == own],
        "clients": grid(request, CLIENTS, fetch, default="-connections"),
        "nodes": snapshot.channel_nodes(of, name),
        "latencies": latencies(detail.channel.latency) if detail.channel else [],
        "delivery": _delivery(detail.channel),
        **holding,
    }
    return PageView("channel.html", title, facts)


def latencies(latency: E2eLatency | None) -> list[tuple[str, str]]:
    """Rows about the end-to-end latency; empty if it is not measured."""
    if latency is None:
        return []
    found = []
    for each in latency.percentiles:
        quantile = float(each.get("quantile", 0))
        value = float(each.get("average", each.get("value", math.nan)))
        if not math.isnan(value):
            found.append((f"End to end, {quantile:.4g} quantile", words.latency(value)))
    return found


def _delivery(channel: Any) -> list[tuple[str, str]]:
    """How many messages went to consumers in the same zone, in the same region, and elsewhere."""
    if channel is None:
        return []
    counts = channel.counts
    parts = [
        (label, counts.get(key, 0))
        for label, key in (
            ("Delivered in the same zone", "zone_local_msg_count"),
            ("Delivered in the same region", "region_local_msg_count"),
            ("Delivered elsewhere", "global_msg_count"),
        )
    ]
    total = sum(count for _, count in parts)
    if not total or total == parts[2][1]:
        return []  # no nsqd has a zone or region configured
    return [(label, f"{words.grouped(n)} ({100 * n / total:.0f} %)") for label, n in parts]
