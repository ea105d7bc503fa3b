"""What several tests of nsqd share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.nsqd.daemon import Daemon, start, stop


@pytest.fixture
async def nsqd(tmp_path: Path) -> AsyncIterator[Daemon]:
    """A running nsqd with small limits."""
    daemon = await start(
        tmp_path, max_msg_size=100, max_body_size=1000, node_id=5, topology_zone="z"
    )
    yield daemon
    await stop(daemon)
