"""A compaction keeps a bucket within its limits, and counts what it drops."""

from sparq.pipeline.open_visits.findings import FINDING
from sparq.pipeline.open_visits.tiers import VisitsLimits
from sparq.pipeline.visits import BARE, REPEATS
from tests.pipeline.open_visits.machine import Machine, click, evicted


def test_the_oldest_visits_are_dropped_first_and_counted():
    """Above state_bytes_max the oldest visits and their clicks are dropped and counted."""
    limits = VisitsLimits(batches_max=1, state_bytes_max=8_000)
    machine = Machine(buckets=1, limits=limits)
    for batch in range(10):
        rows = [click(100 * batch + n, who=f"{batch}-{n}") for n in range(20)]
        machine.apply(rows, ["n"] * 20)
    bare = [click(1_000 + 10 * n, who="bare") for n in range(7)]
    told = machine.apply(bare, ["n"] * 7)
    visits, clicks, none = evicted(machine.told)

    assert visits == clicks > 0
    assert none == 0
    assert [] == [row for row in told if row["kind"] == FINDING]
    assert visits + Machine.visits_of(machine.states[0]) == 201
    assert [(BARE, 7)] == [(row["reason"], row["amount"]) for row in machine.close()]


def test_pages_of_a_visit_above_the_limit_are_counted():
    """Pages above pages_max are dropped and counted; a robot with many is still found."""
    limits = VisitsLimits(batches_max=1, pages_max=100)
    machine = Machine(buckets=1, limits=limits)
    for batch in range(20):
        rows = [click(1_000 + batch, page=f"/?{n % 2}", ident=batch * 10 + n) for n in range(10)]
        machine.apply(rows, ["n"] * 10)
    reasons = {
        row["reason"]: row["amount"]
        for row in [*machine.told, *machine.close()]
        if row["kind"] == FINDING
    }

    assert evicted(machine.told)[0] == 0
    assert evicted(machine.told)[1] >= 100
    assert reasons[BARE] == 200
    assert reasons[REPEATS] >= 45
