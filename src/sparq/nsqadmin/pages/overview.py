"""The first page: what needs attention, in words, and the cluster's figures; and the counter.

All of it is made of the watch's last picture and of its history: looking asks no daemon anything.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sparq.nsqadmin.pages.charts import Chart, Line, chart, spark
from sparq.nsqadmin.pages.grids import NODES, TOPICS, Column, grid
from sparq.nsqadmin.pages.look import Look, View
from sparq.nsqadmin.watch import paging
from sparq.nsqadmin.watch.history import Series
from sparq.nsqadmin.watch.paging import Page
from sparq.nsqadmin.watch.rows import Channel

RANKED = 8
RATES = (("in", "in_rate"), ("out", "out_rate"))
COUNTED_NODES = (NODES[0], Column("messages", "Messages"), Column("in_rate", "In/s", "rate"))
COUNTED_TOPICS = (TOPICS[0], Column("messages", "Messages"), Column("in_rate", "In/s", "rate"))


async def overview(look: Look) -> View:
    """The cluster at a glance."""
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
    """How many messages were published, as it grows."""
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
    """The two charts that all pages of figures have: rates, and what waits."""
    values, unknown = series.values, [None] * len(series.times)
    # Of a topic there is no rate of finishing: each of its channels has one.
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
    """The first channels by a figure: row, its part of the largest in percent, its last hour."""
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
