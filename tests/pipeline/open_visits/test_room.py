"""What a bucket may hold: half a million visitors fit, and what does not fit is counted."""

import numpy as np
import pyarrow as pa
import pytest

from sparq.pipeline import packing
from sparq.pipeline.open_visits.bucket import apply, close
from sparq.pipeline.open_visits.findings import FINDING
from sparq.pipeline.open_visits.pack import CLICKS, blobs_of
from sparq.pipeline.open_visits.tiers import VisitsLimits, held_state
from sparq.pipeline.visits import BARE, DECLARED, PAGE, REPEATS, RESOURCE
from tests.pipeline.open_visits.machine import (
    FIRST_BATCH_MS,
    PUBLISHED_S,
    Machine,
    both,
    click,
    day,
    evicted,
    table_of,
)

START_S = 1_772_500_000


def people(rng, count, visitors, second):
    """Clicks of visitors taken at random, one in five of them on a page: columns of CLICKS."""
    who = rng.integers(0, visitors, count)
    hashes = who * np.int64(0x9E3779B97F4A7C1) - 2**62  # spread, and each visitor's own
    page = rng.integers(0, 500, count)
    kind = np.where(rng.random(count) < 0.2, PAGE, RESOURCE).astype(np.int8)
    texts = np.array([f"/page/{number}" for number in range(500)], object)
    agents = np.array([f"Mozilla/5.0 ({'x' * 80} {number})" for number in range(300)], object)
    ids = rng.integers(0, 2**62, count)
    columns = [
        pa.array(hashes),
        pa.array([f"10.{one >> 16}.{one >> 8 & 255}.{one & 255}" for one in who.tolist()]),
        pa.array(agents[who % 300], pa.string()),
        pa.array(np.sort(rng.integers(second, second + 1, count))),
        pa.array(kind),
        pa.array(texts[page], pa.string()),
        pa.array(page),
        pa.array([f"{one:016x}" for one in ids.tolist()]),
        pa.array(["n"] * count),
        pa.array(np.full(count, second)),
        pa.array(np.full(count, PUBLISHED_S)),
        pa.array(np.full(count, FIRST_BATCH_MS + second * 1000)),
    ]
    return pa.Table.from_arrays(columns, schema=CLICKS)


def feed(states, table, limits):
    """One batch in two partitions through all buckets; returns the output rows."""
    half = len(table) // 2
    parts = [
        row
        for part in (table.slice(0, half), table.slice(half))
        for row in packing.pack_partition(part.to_batches(), blobs_of, len(states))
    ]
    frame = pa.Table.from_batches(parts).to_pandas()
    out = []
    for bucket, state in enumerate(states):
        received = packing.receive([frame[frame["bucket"] == bucket]])
        out += apply(state, bucket, received, limits).to_pylist()
    return out


def size_of(state):
    parts = (state.hot, state.names, state.base, state.findings)
    return sum(len(value) for part in parts for value in part.values)


@pytest.mark.timeout(600)
def test_robots_among_half_a_million_visitors_are_found_and_nothing_is_dropped():
    """At 5,000 clicks/s of event time, a bucket of 16: its share of visitors, clicks and robots."""
    share, seconds = 16, 1_000
    rng, states = np.random.default_rng(1), [held_state()]
    rows, labels = day(8000, 3)
    planted = {who for who in labels}
    suspects = [row for row in rows if (row["address"], row["agent"]) in planted]
    begin = {}
    for row in suspects:  # each begins somewhere in the run, and keeps its pace
        begin.setdefault(row["visitor"], (row["second"], row["visitor"] % 400))
    moved = sorted(
        (START_S + row["second"] - begin[row["visitor"]][0] + begin[row["visitor"]][1], at)
        for at, row in enumerate(suspects)
    )
    told, at = [], 0
    step = 10
    for second in range(START_S, START_S + seconds, step):
        crowd = people(rng, 5_000 * step // share, 500_000 // share, second)
        theirs = []
        while at < len(moved) and moved[at][0] < second + step:
            theirs.append({**suspects[moved[at][1]], "second": moved[at][0]})
            at += 1
        batch_ms = FIRST_BATCH_MS + second * 1000
        table = pa.concat_tables([crowd, table_of(theirs, ["n"] * len(theirs), batch_ms)])
        told += feed(states, table, VisitsLimits())
    told += close(states[0]).to_pylist()

    twin_rows = [{**suspects[number], "second": second} for second, number in moved[:at]]
    _, twin = both([(twin_rows, ["n"] * len(twin_rows), None)], buckets=1)
    expected = {(row["visitor"], row["reason"]) for row in twin.told}
    found = {(row["visitor"], row["reason"]) for row in told if row["kind"] == FINDING}
    assert len(expected) >= 10
    assert expected <= found
    assert evicted(told) == (0, 0, 0)
    visits = Machine.visits_of(states[0])
    assert visits >= 500_000 / share * 0.98
    assert size_of(states[0]) <= 250 * visits


def test_the_oldest_visits_go_first_and_are_counted():
    """With their clicks; those that stay are judged as ever."""
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


def test_more_pages_of_a_visit_than_are_kept_are_counted():
    """A robot that asks for one page ten times a second is found all the same."""
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


def test_the_older_half_of_too_many_findings_goes_and_is_counted():
    """A robot that is found again after that is a new finding."""
    limits = VisitsLimits(batches_max=1, findings_max=10)
    machine = Machine(buckets=1, limits=limits)
    for batch in range(12):
        machine.apply([click(batch, who=f"{batch}", robot=True)], ["n"])

    assert evicted(machine.told) == (0, 0, 6)
    again = machine.apply([click(20, who="0", robot=True)], ["n"])
    assert [(DECLARED, 1, 1)] == [
        (row["reason"], row["revision"], row["amount"]) for row in again if row["kind"] == FINDING
    ]
