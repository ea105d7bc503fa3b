"""The command line of `sparq admin`: words and flags in any order, and the environment."""

from __future__ import annotations

from tests.tools.admin.conftest import Cluster, Run


def test_positions_may_begin_with_a_dash(cluster: Cluster, admin: Run) -> None:
    """`-1h` is parsed as a position, not a flag; each nsqd refuses an invalid position."""
    cluster.recreate("orders", "c", messages=1, dead=False)

    assert 0 == admin("seek", "orders", "c", "-1h").status
    ran = admin("seek", "orders", "c", "yesterday")
    assert 1 == ran.status
    assert "not moved" in ran.out
    assert "INVALID_ARG_TO" in ran.out
