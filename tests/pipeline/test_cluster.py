"""The cluster of a run: real processes, brought back when they die, ended when the run ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from sparq.pipeline.cluster import ClusterError, LocalCluster, is_free
from sparq.pipeline.publisher import publish


def test_it_starts_restarts_and_ends(tmp_path: Path) -> None:
    """A killed nsqd comes back on its ports with its data; at the end nothing is left running."""
    cluster = LocalCluster(tmp_path / "run", tmp_path / "data")
    cluster.start()
    try:
        first = cluster.nsqds[0]
        asyncio.run(
            publish(
                [b"click"] * 10,
                [first.tcp],
                "clicks",
                acknowledged=tmp_path / "acknowledged",
                resent=tmp_path / "resent",
            )
        )
        assert first.process is not None
        first.request("POST", "/channel/create?topic=clicks&channel=archive")
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(10)

        assert cluster.restart_dead() == ["nsqd-1"]
        assert cluster.depths("clicks") == {"nsqd-1": {"archive": 10}}
        state = json.loads((tmp_path / "run" / "cluster.json").read_text())
        assert state["nsqd-1"]["starts"] == 2
        second = cluster.nsqds[1].process
        assert second is not None
        assert state["nsqd-2"]["pid"] == second.pid
    finally:
        cluster.stop()
    assert all(is_free(member.tcp_port) for member in cluster.members)


def test_a_member_that_cannot_start_is_named(tmp_path: Path) -> None:
    """The error says which, and where its log is; what had started is ended."""
    cluster = LocalCluster(tmp_path / "run", tmp_path / "data")
    cluster.nsqds[1].flags.append("--no-such-flag")

    with pytest.raises(ClusterError, match=r"nsqd-2 ended .*nsqd-2\.log"):
        cluster.start()

    assert all(is_free(member.tcp_port) for member in cluster.members)
