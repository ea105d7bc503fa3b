"""Fixtures for tests that run daemons in their own process.

A folder's `conftest.py` imports those that its tests need, and lists them in `__all__`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.nsqd.daemon import Daemon, running, start, stop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], Any]]:
    """Run the folder's tests on the daemons' loop: uvloop's transports are not asyncio's."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
async def nsqds_are_stopped() -> AsyncIterator[None]:
    """Stop the nsqds that a failed test left running: uvloop waits for them when it closes."""
    yield
    while running:
        await stop(running[-1])


@pytest.fixture
async def nsqd(tmp_path: Path) -> AsyncIterator[Daemon]:
    """Run an nsqd with small limits."""
    daemon = await start(tmp_path, max_msg_size=100, max_body_size=1000, id=5, topology_zone="z")
    yield daemon
    await stop(daemon)


@pytest.fixture
def log_levels_are_restored() -> Iterator[None]:
    """Undo what a test's SIGHUP does to the log levels of this process."""
    loggers = [logging.getLogger(), logging.getLogger("asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
