"""Replay on a chart: where a channel goes on, chosen by time, index or count.

Before anything is moved the page shows what would come of it: how many messages would come again
at each node, how many would wait then, and whether older ones are gone.
"""

from __future__ import annotations

from typing import Any, Final

from sparq.daemon.http import HttpError
from sparq.nsqadmin.messages.asking import Refused
from sparq.nsqadmin.messages.replay import Preview, seek_preview
from sparq.nsqadmin.messages.times import SECOND_NS, Times, text_of, times
from sparq.nsqadmin.pages.charts import Line, chart
from sparq.nsqadmin.pages.look import Look, View
from sparq.nsqadmin.pages.messages import warnings

BUCKETS: Final = 120


async def replay(look: Look) -> View:
    """The page of a channel's replay.

    Raises:
        HttpError: there is no such topic or channel, or its nodes are Go's.
    """
    topic, channel = look.query.get("topic", ""), look.query.get("channel", "")
    to, node = look.query.get("to", ""), look.query.get("node", "")
    if not topic or not channel:
        raise HttpError(400, "A replay needs a topic and a channel: begin at a channel's page.")
    try:
        found = await times(look.desk.fleet, topic, channel, buckets=BUCKETS)
    except Refused as refused:
        raise HttpError(refused.status, refused.code) from None
    preview, trouble = await _preview(look, topic, channel, to, node) if to else (None, "")
    facts: dict[str, Any] = {
        "topic": topic,
        "channel": channel,
        "to": to,
        "node": node,
        "nodes": [each.address for each, _ in look.picture.channel_nodes(topic, channel)],
        "preview": preview,
        "trouble": trouble,
        "chart": _chart(found),
        "begin": text_of(found.from_ns) if found.from_ns else "",
        "total": sum(found.counts),
        "place": _place(found),
        "warnings": warnings(found.answers),
        "row": look.picture.channel(topic, channel),
        **look.rights,
    }
    return View("replay.html", f"Replay {topic}/{channel}", facts, is_live=False)


async def _preview(
    look: Look, topic: str, channel: str, to: str, node: str
) -> tuple[Preview | None, str]:
    try:
        nodes = [node] if node else []
        return await seek_preview(look.desk.fleet, topic, channel, to, nodes), ""
    except Refused as refused:
        return None, refused.code


def _chart(found: Times) -> Any:
    """Messages by the time when they were published; None without any."""
    if found.from_ns is None or found.to_ns is None:
        return None
    width = (found.to_ns - found.from_ns) / max(1, len(found.counts))
    begins = [(found.from_ns + at * width) / SECOND_NS for at in range(len(found.counts))]
    counts: list[float | None] = [float(count) for count in found.counts]
    return chart(
        "times",
        "Messages by the time they were published",
        begins,
        [Line("messages", counts)],
        bars=True,
    )


def _place(found: Times) -> int:
    """The bucket where the channel goes on, by the node that is furthest behind."""
    if not found.cursors or found.from_ns is None or found.to_ns is None:
        return max(0, len(found.counts) - 1)
    part = (min(found.cursors.values()) - found.from_ns) / max(1, found.to_ns - found.from_ns)
    return max(0, min(len(found.counts) - 1, int(part * len(found.counts))))
