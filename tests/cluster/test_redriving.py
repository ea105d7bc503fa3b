"""cluster.redriving: dead letters are sent back in steps, counted, and not above the rate."""

import time
from typing import Any

from sparq.cluster.fleet import Fleet
from sparq.cluster.redriving import STEP, RedriveProgress, redrive
from sparq.cluster.upstream import Upstream
from tests.cluster.peers import NSQD, Peer, answer, peer

QUERY = {"topic": "t.dead", "channel": "c"}


async def redriven(
    upstream: Upstream, nsqd: Peer, answers: list[dict[str, Any]], total: int, rate: float = 0
) -> list[tuple[int, int, int]]:
    """Redrive while nsqd gives these answers; return (done, refused, left) after each request."""
    fleet = Fleet(upstream, nsqds=[nsqd.address])
    nsqd.answers |= {STEP: answer(answers[0])}
    seen: list[tuple[int, int, int]] = []
    async for progress in redrive(fleet, await fleet.node(nsqd.address), QUERY, total, rate):
        seen.append((progress.done, progress.refused.total(), progress.left))
        nsqd.answers |= {STEP: answer(answers[min(len(seen), len(answers) - 1)])}
    return seen


def steps(nsqd: Peer) -> list[str]:
    """Return the parameters of each redrive request, from `count` on."""
    return [line.partition("channel=c&")[2] for line in nsqd.asked if STEP in line]


async def test_each_request_starts_after_the_last_ones_next(upstream: Upstream) -> None:
    """Each request starts after the last one's `next`; refused dead letters are skipped."""
    first = {"done": ["a", "b"], "refused": [{"why": "no such topic"}], "next": "b"}
    async with peer(NSQD) as nsqd:
        seen = await redriven(upstream, nsqd, [first, {"done": ["d"], "next": "d"}], 4)

    assert [(2, 1, 1), (3, 1, 0)] == seen
    assert ["count=4", "count=1&after=b"] == steps(nsqd)


async def test_a_redrive_ends_when_nsqd_has_no_more(upstream: Upstream) -> None:
    """The redrive ends without a valid `next`, or if a step did nothing: no endless loop."""
    async with peer(NSQD) as nsqd:
        assert [(1, 0, 9)] == await redriven(upstream, nsqd, [{"done": ["a"]}], 10)
        assert [(0, 0, 10)] == await redriven(upstream, nsqd, [{"done": [], "next": "a"}], 10)
        assert [(0, 0, 10)] == await redriven(upstream, nsqd, [{"done": [3], "next": 3}], 10)
        for wrong in ({"done": 5}, {"refused": True}, {"done": "ab", "next": "b"}):
            assert [(0, 0, 10)] == await redriven(upstream, nsqd, [wrong], 10)


async def test_a_failed_step_ends_the_redrive_with_the_error(upstream: Upstream) -> None:
    """A failed step ends the redrive with the error; earlier steps still count."""
    async with peer({**NSQD, STEP: answer({"done": ["a"], "next": "a"})}) as nsqd:
        fleet = Fleet(upstream, nsqds=[nsqd.address])
        seen: list[RedriveProgress] = []
        async for progress in redrive(fleet, await fleet.node(nsqd.address), QUERY, 3, 0):
            seen.append(progress)
            nsqd.answers.pop(STEP, None)

    assert 2 == len(seen)
    assert (1, 2) == (seen[-1].done, seen[-1].left)
    assert "404" in seen[-1].error


async def test_a_redrive_keeps_its_rate(upstream: Upstream) -> None:
    """With a rate of 20 per second, 4 dead letters take 2 requests and at least 0.2 s."""
    answers = [{"done": ["a", "b"], "next": "b"}]
    async with peer(NSQD) as nsqd:
        began = time.monotonic()
        seen = await redriven(upstream, nsqd, answers, 4, rate=20)

    assert time.monotonic() - began >= 0.2
    assert [(2, 0, 2), (4, 0, 0)] == seen
    assert ["count=2", "count=2&after=b"] == steps(nsqd)
