"""What is said of a channel in a word: each word, and which of two counts."""

from __future__ import annotations

from typing import Any

import pytest

from sparq.tools.overview import OverviewRow


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("ok", {"clients": 1}),
        ("ok", {"clients": 1, "depth": 5, "out_rate": 1.0}),
        ("ok", {"clients": 1, "depth": 5, "out_rate": 0.0, "idle_seconds": 9.9}),
        ("ok", {"clients": 1, "deferred": 5, "out_rate": 0.0, "idle_seconds": 99.0}),
        ("no consumers", {}),
        ("no consumers", {"depth": 5, "out_rate": 0.0, "idle_seconds": 99.0}),
        ("stuck", {"clients": 1, "depth": 5, "out_rate": 0.0, "idle_seconds": 10.0}),
        ("stuck", {"clients": 1, "in_flight": 5, "out_rate": 0.0, "idle_seconds": 10.0}),
        ("stuck", {"clients": 1, "depth": 5, "idle_seconds": 0.1, "patience_seconds": 0.0}),
        ("behind", {"clients": 1, "depth": 600, "out_rate": 10.0}),
        ("ok", {"clients": 1, "depth": 599, "out_rate": 10.0}),
        ("behind", {"clients": 1, "depth": 1, "out_rate": 10.0, "oldest_seconds": 60.0}),
        ("ok", {"readers": 1, "depth": 5, "out_rate": 0.0, "idle_seconds": 119.0}),
        ("stuck", {"readers": 1, "depth": 5, "out_rate": 0.0, "idle_seconds": 120.0}),
        ("paused", {"is_paused": True, "depth": 5, "idle_seconds": 99.0}),
        ("nsqd gone", {"nsqds": 0, "is_paused": True}),
        ("nsqd gone", {"gone": ("a:1",), "clients": 1}),
        ("no consumers, nsqd gone", {"gone": ("a:1",), "depth": 9, "stranded": 9}),
    ],
)
def test_a_channel_has_a_word(words: str, facts: dict[str, Any]) -> None:
    """As the table of the module has it."""
    assert words == OverviewRow("t", "c", **facts).state.words


def test_a_topic_has_a_word() -> None:
    """A topic without a channel keeps its messages for the first one."""
    assert "no channel" == OverviewRow("t").state.words
    assert "ok" == OverviewRow("t", has_channels=True).state.words
    assert "paused" == OverviewRow("t", is_paused=True).state.words


def test_the_worst_comes_first() -> None:
    """Rows are sorted by how bad it is; a node that is gone makes each state worse."""
    stuck = OverviewRow("t", "a", clients=1, depth=1, idle_seconds=60.0)
    gone, partly = OverviewRow("t", "b", nsqds=0), OverviewRow("t", "c", clients=1, gone=("a:1",))
    rows = [OverviewRow("t", "d", clients=1), partly, OverviewRow("t", "e"), gone, stuck]

    ordered = sorted(rows, key=lambda row: row.state, reverse=True)
    assert ["b", "a", "e", "c", "d"] == [row.channel for row in ordered]
