"""Publish times of messages, and previews of seeks."""

from __future__ import annotations

import pytest

from sparq.cluster.messages import ns_of
from sparq.nsqadmin.messages import Refused, seek_preview, spread, text_of, times
from sparq.protocol.commands import sub
from tests.nsqadmin.messages.conftest import Cluster, fill
from tests.nsqd.daemon import Consumer


async def test_a_seek_preview_moves_no_channel(cluster: Cluster) -> None:
    """A preview has the number of messages delivered again, by node, and moves no channel."""
    await fill(cluster, 10)
    consumer = await Consumer.identified(cluster.one, sub("t", "c"))
    await consumer.messages(5)
    await consumer.close()

    preview = await seek_preview(cluster.fleet, "t", "c", "earliest")

    assert (5, 10, False) == (preview.again, preview.waiting, preview.older_are_gone)
    again = {each["node"]: each["again"] for each in preview.nodes}
    assert dict(zip(cluster.addresses, (5, 0), strict=True)) == again
    assert 0 == (await cluster.one.channel("t", "c"))["depth"]
    with pytest.raises(Refused, match="choose a node"):
        await seek_preview(cluster.fleet, "t", "c", "12345")
    with pytest.raises(Refused, match="INVALID_ARG_TO"):
        await seek_preview(cluster.fleet, "t", "c", "yesterday")


async def test_times_count_messages_of_all_nodes(cluster: Cluster) -> None:
    """The counts of the buckets add up to all messages of both nodes."""
    await fill(cluster, 30)

    found = await times(cluster.fleet, "t", "c", buckets=10)

    assert (30, 10) == (sum(one.count for one in found.buckets), len(found.buckets))
    assert set(cluster.addresses) == set(found.cursors)
    assert (found.begin or "") < (found.to or "")
    none = await times(cluster.fleet, "t", buckets=10, nodes=())
    assert {} == none.cursors


def test_times_are_written_with_nanoseconds() -> None:
    """Times are written with nanoseconds, or without a fraction for whole seconds."""
    for text in ("2026-11-23T12:00:00Z", "2026-11-23T12:00:00.000000001Z"):
        assert text == text_of(ns_of(text))
    assert 1_500_000_000 == ns_of("1970-01-01T00:00:01.5Z")


def test_counts_are_spread_evenly() -> None:
    """Counts are spread over buckets; rounding keeps the sum, and no count is negative."""
    assert [5, 5, 0, 0] == spread([(0, 20, 10)], 0, 40, 4)
    assert [3, 0, 0, 7] == spread([(0, 1, 3), (39, 40, 7)], 0, 40, 4)
    assert [0, 1, 1, 1] == spread([(10, 40, 3)], 0, 40, 4)
    odd = spread([(at * 7, at * 7 + 7, at % 5) for at in range(100)], 0, 700, 33)
    assert sum(at % 5 for at in range(100)) == sum(odd)
    assert min(odd) >= 0
