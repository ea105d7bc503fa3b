"""Made-up `/stats` answers of nodes, and snapshots of them."""

from __future__ import annotations

import json
from typing import Any

from sparq.cluster.figures import read
from sparq.cluster.fleet import Node
from sparq.cluster.rows import ChannelRow, NodeStats
from sparq.nsqadmin.watch.rows import Lookupd, NodeState
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot, Observed, SnapshotBuilder

CHANNEL = {
    "depth": 0,
    "backend_depth": 0,
    "in_flight_count": 0,
    "deferred_count": 0,
    "message_count": 0,
    "requeue_count": 0,
    "timeout_count": 0,
    "client_count": 0,
    "clients": None,
    "paused": False,
    "e2e_processing_latency": {"count": 0, "percentiles": None},
}
SPARQS_FIGURES = {
    "finish_count": 0,
    "ready_count": 0,
    "range_reader": None,
    "oldest_waiting_seconds": None,
    "range_query": None,
    "range_commit_seconds": None,
}
FULL_NAMES = {
    "in_flight": "in_flight_count",
    "deferred": "deferred_count",
    "messages": "message_count",
    "requeued": "requeue_count",
    "timed_out": "timeout_count",
    "clients": "client_count",
    "finished": "finish_count",
    "ready": "ready_count",
    "oldest": "oldest_waiting_seconds",
    "bytes": "message_bytes",
}


def with_full_names(figures: dict[str, Any]) -> dict[str, Any]:
    """Replace short names of figures by NSQ's names."""
    return {FULL_NAMES.get(name, name): value for name, value in figures.items()}


def channel(name: str, *, is_go: bool = False, **figures: Any) -> dict[str, Any]:
    """A channel in `/stats`; figures that are not given are 0."""
    own = {} if is_go else SPARQS_FIGURES
    return {"channel_name": name, **CHANNEL, **own, **with_full_names(figures)}


def topic(name: str, *channels: dict[str, Any], **figures: Any) -> dict[str, Any]:
    """A topic in `/stats`."""
    counts = {"depth": 0, "backend_depth": 0, "message_count": 0, "message_bytes": 0}
    return {
        "topic_name": name,
        "channels": [*channels],
        **counts,
        "paused": False,
        **with_full_names(figures),
    }


def stats(*topics: dict[str, Any], is_go: bool = False, **changes: Any) -> dict[str, Any]:
    """A node's `/stats` answer with the start time 100."""
    own = {} if is_go else {"sparq_version": "0.1.0"}
    head = {"version": "1.3.0", "health": "OK", "start_time": 100}
    return {**head, "topics": [*topics], "producers": None, **own, **changes}


def listed(address: str, **changes: Any) -> Node:
    """A node as it is listed by nsqlookupds."""
    host, _, port = address.rpartition(":")
    fields = {"hostname": host, "version": "1.3.0", "remote_addresses": None, **changes}
    return Node(address, address, host, http_port=int(port), tcp_port=int(port) - 1, **fields)


class Cluster:
    """A cluster with a manual clock, for a series of snapshots.

    Attributes:
        now: seconds of both the wall clock and the monotonic clock.
    """

    def __init__(self) -> None:
        self.builder = SnapshotBuilder()
        self.now = 1_000_000.0
        self._seen: dict[str, Observed] = {}

    def answers(self, address: str, answer: dict[str, Any] | None, **changes: Any) -> None:
        """Let a node answer now; None: it does not answer and has the given state."""
        before = self._seen.get(address)
        latest, base = (None, None) if before is None else (before.stats, before.base)
        if answer is not None:
            base = latest
            latest = NodeStats(read(json.dumps(answer).encode()), self.now)
        state: NodeState = changes.pop("state", "up")
        since_at = changes.pop("since_at", self.now)
        extra = {name: changes.pop(name) for name in ("error", "lookupds") if name in changes}
        self._seen[address] = Observed(
            listed(address, **changes), state, since_at, self.now, stats=latest, base=base, **extra
        )

    def snapshot(
        self, *lookupds: Lookupd, refused: dict[str, str] | None = None
    ) -> ClusterSnapshot:
        """Make a snapshot of the cluster."""
        seen = list(self._seen.values())
        return self.builder.build(seen, lookupds, refused, time=self.now, now=self.now)


def snapshot(*answers: dict[str, Any]) -> ClusterSnapshot:
    """A snapshot of one answer each of the nodes a:4151, b:4151, ..."""
    cluster = Cluster()
    for name, answer in zip("abcdefgh", answers, strict=False):
        cluster.answers(f"{name}:4151", answer)
    return cluster.snapshot()


def row_of(found: ClusterSnapshot, topic: str = "t", channel: str = "c") -> ChannelRow:
    """The row of a channel that the snapshot has."""
    row = found.channels.find(topic, channel)
    assert row is not None
    return row


def after_two_answers(
    before: dict[str, Any], after: dict[str, Any], seconds: float = 10.0
) -> ClusterSnapshot:
    """A snapshot of a node after two answers."""
    cluster = Cluster()
    cluster.answers("a:4151", before)
    cluster.snapshot()
    cluster.now += seconds
    cluster.answers("a:4151", after)
    return cluster.snapshot()
