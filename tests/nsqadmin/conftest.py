"""Fixtures for the clusters that tests share, sparq's and Go's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from sparq.nsqadmin.watch.watch import ClusterWatch
from tests.nsqadmin.cluster import GO, Admin, Cluster, admin, cluster_of


@pytest.fixture(scope="session")
def sparq_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nsqlookupds and two nsqds of sparq's."""
    with cluster_of(tmp_path_factory.mktemp("sparq_cluster"), is_sparqs=True) as found:
        yield found


@pytest.fixture(scope="session", params=["sparq", "go"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """The cluster of sparq's daemons, then one of Go's if their paths are given."""
    if request.param == "sparq":
        yield request.getfixturevalue("sparq_cluster")
        return
    if not all(os.environ.get(name) for name in GO.values()):
        pytest.skip("needs NSQD_GO and NSQLOOKUPD_GO, the paths of Go's programs")
    with cluster_of(tmp_path_factory.mktemp("go"), is_sparqs=False) as found:
        yield found


@pytest.fixture(params=["lookupd", "nsqd"])
async def either(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[Admin]:
    """An nsqadmin that finds the nodes by nsqlookupds, then one with a list of nsqds."""
    async with admin(**cluster.modes()[request.param]) as found:
        yield found


@pytest.fixture
async def by_lookupd(cluster: Cluster) -> AsyncIterator[Admin]:
    """An nsqadmin that finds the nodes by nsqlookupds."""
    async with admin(**cluster.modes()["lookupd"]) as found:
        yield found


@pytest.fixture
async def direct(cluster: Cluster) -> AsyncIterator[Admin]:
    """An nsqadmin with a list of nsqds."""
    async with admin(**cluster.modes()["nsqd"]) as found:
        yield found


@pytest.fixture
async def admin_without_watch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Admin]:
    """An nsqadmin whose watch makes no requests: it makes only those that a test causes."""

    async def no_round(_watch: ClusterWatch) -> None:
        pass

    monkeypatch.setattr(ClusterWatch, "_round", no_round)
    async with admin(**cluster.modes()["lookupd"]) as found:
        yield found
