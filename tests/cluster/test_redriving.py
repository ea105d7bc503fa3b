"""cluster.redriving: dead letters go back request by request, counted, and no faster than asked."""

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
    """Letters done, refused and left after each request; nsqd gives these answers in turn."""
    fleet = Fleet(upstream, nsqds=[nsqd.address])
    nsqd.answers |= {STEP: answer(answers[0])}
    seen: list[tuple[int, int, int]] = []
    async for progress in redrive(fleet, await fleet.node(nsqd.address), QUERY, total, rate):
        seen.append((progress.done, progress.refused.total(), progress.left))
        nsqd.answers |= {STEP: answer(answers[min(len(seen), len(answers) - 1)])}
    return seen


def steps(nsqd: Peer) -> list[str]:
    """The last parameters of each request."""
    return [line.partition("channel=c&")[2] for line in nsqd.asked if STEP in line]


async def test_each_request_goes_on_where_the_last_one_ended(upstream: Upstream) -> None:
    """Refused letters are counted by reason and skipped; never more than there were."""
    first = {"done": ["a", "b"], "refused": [{"why": "no such topic"}], "next": "b"}
    async with peer(NSQD) as nsqd:
        seen = await redriven(upstream, nsqd, [first, {"done": ["d"], "next": "d"}], 4)

    assert [(2, 1, 1), (3, 1, 0)] == seen
    assert ["count=4", "count=1&after=b"] == steps(nsqd)


async def test_it_ends_when_nsqd_has_no_more(upstream: Upstream) -> None:
    """Also if an answer names a next one but did nothing: that would go on for ever."""
    async with peer(NSQD) as nsqd:
        assert [(1, 0, 9)] == await redriven(upstream, nsqd, [{"done": ["a"]}], 10)
        assert [(0, 0, 10)] == await redriven(upstream, nsqd, [{"done": [], "next": "a"}], 10)
        assert [(0, 0, 10)] == await redriven(upstream, nsqd, [{"done": [3], "next": 3}], 10)


async def test_a_failure_ends_it_and_says_why(upstream: Upstream) -> None:
    """What was done before still counts."""
    async with peer({**NSQD, STEP: answer({"done": ["a"], "next": "a"})}) as nsqd:
        fleet = Fleet(upstream, nsqds=[nsqd.address])
        seen: list[RedriveProgress] = []
        async for progress in redrive(fleet, await fleet.node(nsqd.address), QUERY, 3, 0):
            seen.append(progress)
            nsqd.answers.pop(STEP, None)

    assert 2 == len(seen)
    assert (1, 2) == (seen[-1].done, seen[-1].left)
    assert "404" in seen[-1].error


async def test_a_rate_is_kept_to(upstream: Upstream) -> None:
    """Few letters at a time, and a pause after each request."""
    answers = [{"done": ["a", "b"], "next": "b"}]
    async with peer(NSQD) as nsqd:
        began = time.monotonic()
        seen = await redriven(upstream, nsqd, answers, 4, rate=20)

    assert time.monotonic() - began >= 0.2
    assert [(2, 0, 2), (4, 0, 0)] == seen
    assert ["count=2", "count=2&after=b"] == steps(nsqd)
