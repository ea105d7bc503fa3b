"""What several tests of nsqd share."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.nsqd.daemon import Daemon, running, start, stop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], Any]]:
    """The loop that nsqd runs on: uvloop's transports are not asyncio's."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
async def _stopped() -> AsyncIterator[None]:
    """What a test that failed has left running is stopped: uvloop waits for it on closing."""
    yield
    while running:
        await stop(running[-1])


@pytest.fixture
async def nsqd(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A running nsqd with small limits."""
    daemon = await start(tmp_path, max_msg_size=100, max_body_size=1000, id=5, topology_zone="z")
    yield daemon
    await stop(daemon)
