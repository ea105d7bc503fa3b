"""The restart benchmark with small backlogs: their contents, and the figures of each start."""

from pathlib import Path

import pytest
from bench.backlog import CHANNEL, TOPIC, Backlog
from bench.restart import restarts

from bench import backlog
from tests.support.servers import spawn_nsqd


@pytest.mark.parametrize(
    ("wanted", "depth", "deferred"),
    [
        (Backlog(500), 500, 0),
        (Backlog(500, per_batch=30), 500, 0),
        (Backlog(500, per_batch=30, deferred_every=100), 0, 5),
        (Backlog(500, per_batch=30, requeued=50), 500, 0),
    ],
)
def test_a_backlog_has_the_requested_messages(
    tmp_path: Path, wanted: Backlog, depth: int, deferred: int
) -> None:
    """An nsqd that is started with a backlog has the requested depth and deferred count."""
    (tmp_path / "nsqd").mkdir()
    backlog.make(tmp_path / "nsqd", wanted)
    with spawn_nsqd(tmp_path) as server:
        channel = server.channel(TOPIC, CHANNEL)

    assert (depth, deferred) == (channel["depth"], channel["deferred_count"])


def test_three_starts_are_measured(tmp_path: Path) -> None:
    """One start follows the making of the backlog, one a clean stop, one a kill -9."""
    found = restarts(tmp_path / "nsqd", Backlog(300, per_batch=7), "few", rest_seconds=0.1)

    assert ["few, made", "few, clean stop", "few, kill -9"] == [start.name for start in found]
    assert all(0 < start.ready_seconds <= start.delivery_seconds for start in found)
    assert all(0 < start.memory_mib <= start.peak_mib for start in found)
