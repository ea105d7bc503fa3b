"""A watch with short intervals, and waiting for a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sparq.cluster.fleet import Fleet
from sparq.cluster.upstream import Upstream
from sparq.nsqadmin.watch.snapshot import ClusterSnapshot
from sparq.nsqadmin.watch.watch import ClusterWatch


@asynccontextmanager
async def running_watch(
    *, lookupds: tuple[str, ...] = (), nsqds: tuple[str, ...] = (), **changes: Any
) -> AsyncIterator[ClusterWatch]:
    """Start a watch with rounds every 50 ms."""
    async with Upstream(connect_seconds=2, request_seconds=changes.pop("request", 5)) as upstream:
        fleet = Fleet(upstream, lookupds=lookupds, nsqds=nsqds)
        pace = {"interval_seconds": 0.05, "idle_seconds": 0.05, **changes}
        async with ClusterWatch(fleet, **pace) as watch:
            yield watch


async def snapshot_where(
    watch: ClusterWatch, condition: Callable[[ClusterSnapshot], Any], seconds: float = 10
) -> ClusterSnapshot:
    """Wait for the first snapshot for which a condition holds."""
    async with asyncio.timeout(seconds):
        snapshot = await watch.current()
        while not condition(snapshot):
            snapshot = await watch.changed(snapshot.number)
    return snapshot


def has_state(address: str, state: str) -> Callable[[ClusterSnapshot], bool]:
    """Return a condition: the node is in the state."""

    def look(snapshot: ClusterSnapshot) -> bool:
        node = snapshot.node(address)
        return node is not None and node.state == state

    return look
