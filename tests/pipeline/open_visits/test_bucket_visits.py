"""A compaction keeps a bucket within its limits, and counts what it drops."""

from sparq.pipeline.open_visits.findings import FINDING
from sparq.pipeline.open_visits.tiers import VisitsLimits
from sparq.pipeline.visits import BARE, REPEATS
from tests.pipeline.open_visits.in_memory_query import InMemoryQuery, click, evicted


def test_the_oldest_visits_are_dropped_first_and_counted():
    """Above state_bytes_max the oldest visits and their clicks are dropped and counted."""
    limits = VisitsLimits(batches_max=1, state_bytes_max=8_000)
    in_memory = InMemoryQuery(buckets=1, limits=limits)
    for batch in range(10):
        rows = [click(100 * batch + n, who=f"{batch}-{n}") for n in range(20)]
        in_memory.apply(rows, ["n"] * 20)
    bare = [click(1_000 + 10 * n, who="bare") for n in range(7)]
    output = in_memory.apply(bare, ["n"] * 7)
    visits, clicks, none = evicted(in_memory.output)

    assert visits == clicks > 0
    assert none == 0
    assert [] == [row for row in output if row["kind"] == FINDING]
    assert visits + InMemoryQuery.visits_of(in_memory.states[0]) == 201
    assert [(BARE, 7)] == [(row["reason"], row["amount"]) for row in in_memory.close()]


def test_pages_of_a_visit_above_the_limit_are_counted():
    """Pages above pages_max are dropped and counted; a robot with many is still found."""
    limits = VisitsLimits(batches_max=1, pages_max=100)
    in_memory = InMemoryQuery(buckets=1, limits=limits)
    for batch in range(20):
        rows = [click(1_000 + batch, page=f"/?{n % 2}", ident=batch * 10 + n) for n in range(10)]
        in_memory.apply(rows, ["n"] * 10)
    reasons = {
        row["reason"]: row["amount"]
        for row in [*in_memory.output, *in_memory.close()]
        if row["kind"] == FINDING
    }

    assert evicted(in_memory.output)[0] == 0
    assert evicted(in_memory.output)[1] >= 100
    assert reasons[BARE] == 200
    assert reasons[REPEATS] >= 45
