"""These tests run nsqd in the test process, on the test's event loop."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.nsqd.daemon import Daemon, start, stop
from tests.support.in_process import nsqds_are_stopped, pytest_asyncio_loop_factories

__all__ = ["nsqds_are_stopped", "pytest_asyncio_loop_factories"]


@pytest.fixture(params=["tcp", "unix"])
async def start_nsqd(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[..., Awaitable[Daemon]]]:
    """Return a function that starts an nsqd with options, on a TCP port or on a unix socket."""
    address = {"tcp_address": str(tmp_path / "s")} if request.param == "unix" else {}
    started = []

    async def starter(**options: Any) -> Daemon:
        started.append(await start(tmp_path, **address, **options))
        return started[-1]

    yield starter
    for daemon in started:
        await stop(daemon)


@pytest.fixture
async def nsqd(start_nsqd: Callable[..., Awaitable[Daemon]]) -> Daemon:
    """An nsqd with the small limits of NSQ's own tests."""
    return await start_nsqd(id=5, max_msg_size=100, max_body_size=1000, max_rdy_count=50)
