"""Daemons that tests of several tools share; each test uses its own topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import NsqdServer, Server, spawn_nsqd, spawn_nsqlookupd


@pytest.fixture(scope="session")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One nsqlookupd."""
    with spawn_nsqlookupd(tmp_path_factory.mktemp("lookup")) as server:
        yield server


@pytest.fixture(scope="session")
def nsqds(
    tmp_path_factory: pytest.TempPathFactory, lookupd: Server
) -> Iterator[tuple[NsqdServer, NsqdServer]]:
    """Two nsqds; the first one counts messages beyond three as on disk."""
    folder = tmp_path_factory.mktemp("nsqds")
    with (
        spawn_nsqd(folder, "--mem-queue-size=3", lookupds=(lookupd,), name="first") as first,
        spawn_nsqd(folder, lookupds=(lookupd,), name="second") as second,
    ):
        yield first, second


@pytest.fixture(scope="session")
def nsqd(nsqds: tuple[NsqdServer, NsqdServer]) -> NsqdServer:
    """The first nsqd, for tests that need only one."""
    return nsqds[0]
