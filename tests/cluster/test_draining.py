"""cluster.draining: a drain is started, observed and ended at one nsqd."""

from typing import Any

import pytest

from sparq.cluster import draining
from sparq.cluster.draining import DrainProgress
from sparq.cluster.figures import checked
from sparq.cluster.fleet import Fleet, UnknownNode
from sparq.cluster.upstream import Upstream, UpstreamError
from tests.cluster.peers import NSQD, answer, peer


def test_a_status_is_read() -> None:
    """What an nsqd omits is 0 or empty; `held_up` has what no consumer can process."""
    left = [
        {"topic": "t", "channel": "c", "depth": 4, "in_flight": 2, "held_up": "paused"},
        {"topic": "t", "channel": None, "deferred": 1, "held_up": None},
    ]
    document = {"draining": True, "by": "ops", "since": None, "depth": 5, "in_flight": 2}
    found = checked({**document, "empty": True, "left": left}, DrainProgress)

    assert [("c", 6, "paused"), ("", 1, "")] == [
        (one.channel, one.messages, one.held_up) for one in found.left
    ]
    assert ["t/c", "t"] == [one.name for one in found.left]
    assert found.left[:1] == found.held_up
    assert (True, False, True) == (found.draining, found.exit, found.empty)
    assert ("ops", 7, 0) == (found.by, found.messages, found.topics)


@pytest.mark.parametrize("figure", [-1, 10**30, 1.5, "3", None, True, float("inf")])
def test_a_number_that_no_nsqd_can_have_is_named(figure: Any) -> None:
    """It is not counted as 0: a node with messages left would seem to be empty."""
    with pytest.raises(ValueError, match="depth"):
        checked({"draining": True, "depth": figure}, DrainProgress)
    with pytest.raises(ValueError, match="in_flight"):
        checked({"draining": True, "left": [{"topic": "t", "in_flight": figure}]}, DrainProgress)


@pytest.mark.parametrize(
    "document",
    [
        *([], "text", None, {}, {"draining": 1}, {"draining": True, "by": "o\n"}),
        *({"draining": True, "left": [one]} for one in ({"topic": "no topic"}, {"topic": 3}, "t")),
        {"draining": True, "left": [{"topic": "t"}] * 1001},
    ],
)
async def test_an_answer_that_is_no_drain_status_raises(upstream: Upstream, document: Any) -> None:
    """An answer that is no drain status raises an error."""
    async with peer({**NSQD, "/drain": answer(document)}) as nsqd:
        fleet = Fleet(upstream, nsqds=[nsqd.address])
        with pytest.raises(UpstreamError, match="unreadable answer"):
            await draining.progress(fleet, await fleet.node(nsqd.address))


async def test_a_drain_begins_and_ends_at_one_node(upstream: Upstream) -> None:
    """A drain is started and ended only at the given node; an unknown node raises UnknownNode."""
    document = {**NSQD, "/drain": answer({"draining": False})}
    async with peer(document) as one, peer(document) as other:
        fleet = Fleet(upstream, nsqds=[one.address, other.address])
        reports = [
            await draining.begin(fleet, one.address),
            await draining.begin(fleet, one.address, leave=True),
            await draining.end(fleet, one.address),
        ]
        progress = await draining.progress(fleet, await fleet.node(one.address))
        with pytest.raises(UnknownNode):
            await draining.begin(fleet, "127.0.0.1:1")

    asked = ["POST /drain", "POST /drain?exit=true", "DELETE /drain", "GET /drain"]
    assert asked == [line for line in one.asked if "/drain" in line]
    assert not [line for line in other.asked if "/drain" in line]
    assert DrainProgress(draining=False) == progress
    for report in reports:
        assert ("done", [("drain", one.address)]) == (
            report.result,
            [(step.step, step.address) for step in report.done],
        )
