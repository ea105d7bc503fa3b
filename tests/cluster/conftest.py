"""A cluster of two nsqlookupds and two nsqds; each test uses its own topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from sparq.cluster.upstream import Upstream
from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd


@pytest.fixture(scope="session")
def lookupds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Two nsqlookupds."""
    folder = tmp_path_factory.mktemp("lookups")
    with (
        spawn_nsqlookupd(folder, name="one") as one,
        spawn_nsqlookupd(folder, name="two") as two,
    ):
        yield one, two


@pytest.fixture(scope="session")
def nsqds(
    tmp_path_factory: pytest.TempPathFactory, lookupds: tuple[Server, Server]
) -> Iterator[tuple[NsqdServer, NsqdServer]]:
    """Two nsqds that register with both nsqlookupds."""
    folder = tmp_path_factory.mktemp("nsqds")
    with (
        spawn_nsqd(folder, lookupds=lookupds, name="first") as first,
        spawn_nsqd(folder, lookupds=lookupds, name="second") as second,
    ):
        yield first, second


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """The client for the daemons' HTTP APIs."""
    async with Upstream(connect_seconds=2.0, request_seconds=5.0) as calling:
        yield calling
