"""A cluster of two nsqds in the test process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparq.cluster.fleet import Fleet
from sparq.cluster.upstream import Upstream
from tests.nsqadmin.nsqds import two_nsqds
from tests.nsqd.daemon import Daemon


@dataclass
class Cluster:
    """Two nsqds and the Fleet that has their addresses."""

    one: Daemon
    two: Daemon
    fleet: Fleet

    @property
    def addresses(self) -> list[str]:
        """The HTTP addresses of the nsqds."""
        return [f"127.0.0.1:{each.http.port}" for each in (self.one, self.two)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two nsqds with the same node id, which is allowed, with topic `t` and channel `c`."""
    async with AsyncExitStack() as stack:
        nsqds = await stack.enter_async_context(two_nsqds(tmp_path, id=5))
        upstream = await stack.enter_async_context(Upstream())
        fleet = Fleet(upstream, nsqds=[f"127.0.0.1:{nsqd.http.port}" for nsqd in nsqds])
        yield Cluster(*nsqds, fleet)
