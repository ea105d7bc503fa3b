"""cluster.policies: policies are read from all nsqds, and set to the same at all of them."""

from typing import Any

import pytest

from sparq.cluster import policies
from sparq.cluster.fleet import Fleet
from sparq.cluster.upstream import Upstream
from tests.cluster.peers import NSQD, answer, peer


async def test_policies_are_read_from_each_node(upstream: Upstream) -> None:
    """An answer of another form is that node's error."""
    setting = {"value": 3, "source": "policies", "number": 1}
    good = {**NSQD, "/policies": answer({"settings": {"max_channels": setting}})}
    bad = {**NSQD, "/policies": answer(["nonsense"])}
    async with peer(good) as one, peer(bad) as two:
        fleet = Fleet(upstream, nsqds=[one.address, two.address])
        found = await policies.query(fleet, "t", "c")

    assert {one.address: {"max_channels": setting}} == found.nodes
    assert [two.address] == [*found.errors]
    assert "unreadable answer: " in found.errors[two.address]
    assert "GET /policies?topic=t&channel=c" in one.asked


async def test_policies_are_set_and_dropped_at_every_node(upstream: Upstream) -> None:
    """``send`` calls every node; Go's nsqd, without policies, is an error."""
    async with peer({**NSQD, "/policies": answer({})}) as ours, peer(NSQD) as go:
        fleet = Fleet(upstream, nsqds=[ours.address, go.address])
        put = await policies.send(fleet, b"[[policy]]", dry_run=True)
        head = ours.heads[-1]
        dropped = await policies.send(fleet, None)

    asked = ["PUT /policies?dry_run=true", "DELETE /policies"]
    assert asked == [line for line in ours.asked if "/policies" in line]
    assert "Content-Type: application/toml" in head
    for report in (put, dropped):
        assert [ours.address] == [one.address for one in report.done]
        assert [go.address] == [one.address for one in report.errors]
        assert "404 Not Found" in report.text


@pytest.mark.parametrize("changed", [-1, 10**30, "3", 1.5, True, None])
async def test_an_impossible_number_of_changes_is_that_nodes_error(
    upstream: Upstream, changed: Any
) -> None:
    """It is not counted as 0: the question before a drop would leave it out."""
    good = {**NSQD, "/policies": answer({"changed": 2})}
    async with peer(good) as one, peer({**NSQD, "/policies": answer({"changed": changed})}) as two:
        fleet = Fleet(upstream, nsqds=[one.address, two.address])
        report = await policies.send(fleet, None, dry_run=True)
    assert [one.address] == [each.address for each in report.done]
    (failed,) = report.errors
    assert (two.address, "unreadable answer: ") == (failed.address, failed.error[:19])
