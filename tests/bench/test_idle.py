"""The benchmark of idle connections with 200: its figures are complete and within bounds."""

from pathlib import Path

import uvloop
from bench.idle import measure, report

from tests.support.servers import spawn_nsqd


def test_two_hundred_idle_connections_are_answered(tmp_path: Path) -> None:
    """All connections are answered and get heartbeats; each costs less than 30 KiB."""
    with spawn_nsqd(tmp_path) as server:
        found = uvloop.run(measure(server, 200, interval_ms=1000, rounds=2))

    assert 200 == found.connections
    assert 30 > found.kib_each
    # Early by the time that the OK takes at most; how late depends on the machine.
    assert -100 < found.late_ms[0] <= found.late_ms[1] <= found.late_ms[2]
    assert found.alone > 0
    assert found.beside > 0
    assert "200 idle connections" in report(found)
