"""When the messages of a topic were published, and what a seek to a time would do.

1. Times have the nodes' format, RFC 3339 with nanoseconds. Each node counts messages in time spans
   of its own; the counts are spread over equal buckets for the whole cluster, so that a chart has
   one line. Indexes are left out: only a time is a place that all nodes have.
2. The effect of a seek is queried from every node before the seek is done. A node that does not
   know `dry_run` would really seek, so `/stats` of each node is checked first: sparq's nsqd reports
   `sparq_version` there since it knows `dry_run`.
3. An index belongs to one log: a seek to an index must name the node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from sparq.cluster import figures
from sparq.cluster.fleet import Fleet
from sparq.cluster.nodes import Node
from sparq.cluster.upstream import NO_ROUTE, UpstreamError
from sparq.nsqadmin.messages.asking import Answers, Refused, nodes_of, query_all
from sparq.options.units import SECOND

BUCKETS: Final = 120
BUCKETS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Times:
    """Numbers of messages by the time of their publish, over all nodes.

    Attributes:
        from_ns, to_ns: range of the buckets, ns since 1970; None if there are no messages.
        counts: messages in each bucket; all buckets have the same width.
        cursors: by node, publish time of the channel's next message (ns).
        answers: which nodes could not answer, and why.
    """

    from_ns: int | None
    to_ns: int | None
    counts: list[int]
    cursors: dict[str, int]
    answers: Answers

    def document(self) -> dict[str, Any]:
        """Convert to JSON values."""
        if self.from_ns is None or self.to_ns is None:
            return {"from": None, "to": None, "buckets": [], "cursors": {}}
        width = (self.to_ns - self.from_ns) / max(1, len(self.counts))
        return {
            "from": text_of(self.from_ns),
            "to": text_of(self.to_ns),
            "buckets": [
                {"time": text_of(self.from_ns + round(at * width)), "count": count}
                for at, count in enumerate(self.counts)
            ],
            "cursors": {node: text_of(cursor) for node, cursor in self.cursors.items()},
        }


def ns_of(text: str) -> int:
    """Parse `2026-11-23T12:00:00.123456789Z` into nanoseconds since 1970.

    Raises:
        ValueError: the text is no such time.
    """
    # The fraction is read by hand: datetime has microseconds only.
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return int(moment.timestamp()) * SECOND + int(fraction.ljust(9, "0")[:9] or 0)


def text_of(ns: int) -> str:
    """Format a time as text; whole seconds have no fraction."""
    seconds, rest = divmod(ns, SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest:09d}Z" if rest else f"{text}Z"


async def times(
    fleet: Fleet,
    topic: str,
    channel: str = "",
    *,
    buckets: int = BUCKETS,
    nodes: Iterable[str] = (),
) -> Times:
    """Count the messages of a topic by publish time, as far back as the logs reach.

    Raises:
        Refused: the topic or channel does not exist, or no node could answer.
    """
    chosen, answers = await nodes_of(fleet, topic, nodes)
    query = {"topic": topic, "channel": channel, "buckets": str(buckets)}
    await query_all(chosen, answers, lambda node: fleet.get(node, "/topic/times", **query))
    spans, cursors = [], {}
    for node, answer in answers.found.items():
        try:
            spans += _spans(answer)
            if answer.get("cursor_time"):
                cursors[node] = ns_of(answer["cursor_time"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            answers.errors[node] = "unreadable times"
    if not spans:
        return Times(None, None, [], cursors, answers)
    begin, end = min(span[0] for span in spans), max(span[1] for span in spans)
    end = max(end, begin + buckets)
    return Times(begin, end, spread(spans, begin, end, buckets), cursors, answers)


def _spans(answer: dict[str, Any]) -> list[tuple[int, int, int]]:
    """A node's buckets as (begin, end, count), in ns since 1970."""
    buckets = answer["buckets"]
    if not buckets:
        return []
    begins = [ns_of(bucket["time"]) for bucket in buckets]
    ends = [*begins[1:], max(ns_of(answer["to"]), begins[-1] + 1)]
    counts = [int(bucket["count"]) for bucket in buckets]
    return list(zip(begins, ends, counts, strict=True))


def spread(spans: Iterable[tuple[int, int, int]], begin: int, end: int, buckets: int) -> list[int]:
    """Spread (begin, end, count) spans over equal buckets, as if messages were evenly spaced.

    Rounding does not change the sum of the counts.
    """
    counts = np.zeros(buckets)
    width = (end - begin) / buckets
    for first, last, count in spans:
        low, high = (first - begin) / width, (last - begin) / width
        at, until = int(low), max(int(low) + 1, min(buckets, math.ceil(high)))
        edges = np.clip(np.arange(at, until + 1), low, max(high, low + 1e-9))
        shares = np.diff(edges)
        total = shares.sum()
        if total <= 0:
            shares, total = np.eye(1, until - at)[0], 1.0
        counts[at:until] += (count * shares / total)[: buckets - at]
    # Round the running sum, not each bucket: otherwise the buckets' errors would add up.
    whole = np.round(np.cumsum(counts))
    return [int(each) for each in np.diff(whole, prepend=0.0)]


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect that a seek would have, or had.

    Attributes:
        again: messages that would be delivered again, over all nodes.
        waiting: messages that would wait after the seek.
        skipped: unfinished messages, deferred ones included, that would not be delivered any more.
        older_are_gone: whether some node no longer has messages as old as requested.
        nodes: each node's own answer (docs/http.md, "Replay").
        answers: which nodes could not answer, and why.
    """

    again: int
    waiting: int
    skipped: int
    older_are_gone: bool
    nodes: dict[str, dict[str, Any]]
    answers: Answers

    def document(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "again": self.again,
            "waiting": self.waiting,
            "skipped": self.skipped,
            "older_are_gone": self.older_are_gone,
            "nodes": [{"node": node, **landing} for node, landing in sorted(self.nodes.items())],
        }


async def seek_preview(
    fleet: Fleet, topic: str, channel: str, to: str, nodes: Iterable[str] = ()
) -> Preview:
    """Query what a seek of a channel would do at all nodes, or some; nothing is moved.

    Raises:
        Refused: the channel or place does not exist, or the nodes are Go's.
    """
    chosen, answers = await nodes_of(fleet, topic, nodes)
    check_place(to, len(chosen))

    async def ask(node: Node) -> Any:
        if (await fleet.node_stats(node.at, topic, channel)).sparq_version is None:
            raise UpstreamError(
                node.address, "this is Go's nsqd, which cannot replay", 404, NO_ROUTE
            )
        wanted = {"topic": topic, "channel": channel, "to": to, "dry_run": "true"}
        landing = await fleet.post(node, "/channel/seek", **wanted)
        figures.seek_result(landing)
        return landing

    await query_all(chosen, answers, ask)
    landings = answers.found
    return Preview(
        sum(answer["again"] for answer in landings.values()),
        sum(answer["waiting"] for answer in landings.values()),
        sum(answer["skipped"] for answer in landings.values()),
        any(answer.get("older_are_gone") is True for answer in landings.values()),
        landings,
        answers,
    )


def check_place(to: str, nodes: int) -> None:
    """Refuse an empty place, and an index unless the seek is for one node (rule 3)."""
    if not to:
        raise Refused("MISSING_ARG_TO")
    if to.isdigit() and nodes != 1:
        raise Refused("INVALID_ARG_TO: an index is valid for one node only: choose a node")
