"""What a running nsqd leaves to the garbage collector to go through."""

from __future__ import annotations

from pathlib import Path

from tests.support.servers import spawn_nsqd

OBJECTS_MAX = 2000
"""There are some 200 after a start, and 20,000 where a module's are among them."""


def test_a_full_collection_does_not_go_through_what_stays(tmp_path: Path) -> None:
    """Modules, also those of HTTP, which are loaded last: it would hold all threads up for them."""
    with spawn_nsqd(tmp_path) as nsqd:
        _, told = nsqd.request("GET", "/debug/pprof/heap")
    counts = [int(line.split()[0]) for line in told.decode().splitlines()[1:]]
    assert 10 < sum(counts) < OBJECTS_MAX
