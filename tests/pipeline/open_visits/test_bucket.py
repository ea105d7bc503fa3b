"""Batches of clicks through buckets: findings, and the limits of a bucket.

The findings equal those of the plain twin. Half a million visitors fit; dropped ones are
counted.
"""

import random

import numpy as np
import pyarrow as pa
import pytest

from sparq.pipeline import packing
from sparq.pipeline.open_visits.bucket import apply, close
from sparq.pipeline.open_visits.findings import FINDING
from sparq.pipeline.open_visits.pack import CLICKS, blobs_of
from sparq.pipeline.open_visits.tiers import Element, VisitsLimits, held_state
from sparq.pipeline.visits import BARE, PAGE, RESOURCE, ROBOTS_TXT, UNDECLARED, VISIT_GAP_S
from tests.pipeline.open_visits.in_memory_query import (
    FIRST_BATCH_MS,
    PUBLISHED_S,
    InMemoryQuery,
    both,
    click,
    day,
    evicted,
    findings,
    table_of,
)

START_S = 1_772_500_000

NEVER = {"batches_max": 10**9, "overdue_s": 10**12, "hot_bytes_max": 10**12}
ALWAYS = {"batches_max": 1}


def batches_of(rows, nsqds, lags, step):
    """Batches of `step` clicks of each nsqd; `lags`: by how many batches each nsqd is late."""
    parts = [(f"n{at}", rows[at::nsqds], lag) for at, lag in enumerate(lags)]
    count = max(len(part) // step + 1 + lag for _, part, lag in parts)
    for batch in range(count):
        clicks, names = [], []
        for name, part, lag in parts:
            some = part[(batch - lag) * step : (batch - lag + 1) * step] if batch >= lag else []
            clicks += some
            names += [name] * len(some)
        yield clicks, names, None


@pytest.mark.parametrize(
    ("seed", "lags", "step", "limits", "buckets"),
    [
        (1, (0,), 1500, {}, 4),
        (1, (0,), 400, ALWAYS, 16),
        (2, (0,), 300, NEVER, 8),
        (2, (0, 2), 700, {"fold_pages": 0}, 64),
        (3, (0, 0), 200, {"overdue_s": 0, "fold_pages": 5}, 4),
        (3, (0, 40), 300, {"overdue_s": 600}, 8),  # the second nsqd is quiet at first
        (4, (0, 1, 5), 500, {"fold_pages": 3, **NEVER}, 16),
        (5, (0, 0, 0), 4000, {}, 16),
    ],
)
def test_findings_of_a_day_equal_those_of_the_twin(seed, lags, step, limits, buckets):
    """Findings equal the twin's, for any division into batches, nsqds and buckets."""
    rows, _ = day(6000, seed)
    batches = list(batches_of(rows, len(lags), lags, step))
    in_memory, twin = both(batches, limits=VisitsLimits(**limits), buckets=buckets, rows_max=300)

    assert len(twin.output) >= 5
    assert findings(twin.output) == findings(in_memory.output)
    assert evicted(in_memory.output) == (0, 0, 0)


def suspect_clicks(rng):
    """Clicks of suspects: bursts, repeats, even gaps, robots, pauses, and many late clicks."""
    rows, now_s = [], 10_000
    whos = [f"v{number}" for number in range(rng.choice((1, 2, 4)))]
    for _ in range(rng.randrange(4, 16)):
        who = rng.choice(whos)
        now_s += rng.choice((0, 5, 100, 700, 1799, 1800, 1801, 3000))
        at_s = now_s - rng.choice((0, 0, 0, 0, 300, 1200, 1700, 1790, 1801, 2500))
        manner = rng.choice(SUSPECT_PATTERNS)
        rows += [(now_s + n * rng.choice((1, 40)), row) for n, row in manner(rng, who, at_s)]
    for second in range(10_000, now_s, rng.choice((397, 1300))):
        rows.append((second, click(second, who="r", robot=True, page=f"/{second % 3}")))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _clicks(rng, who, seconds, pages, kind=PAGE):
    ident = rng.randrange(2**60)
    return [
        (n, click(max(second, 0), who=who, kind=kind, page=page, ident=ident + n))
        for n, (second, page) in enumerate(zip(seconds, pages, strict=True))
    ]


def _burst(rng, who, at_s):
    count = rng.randrange(1, 26)
    seconds = [at_s + rng.randrange(11) for _ in range(count)]
    return _clicks(rng, who, seconds, [f"/{rng.randrange(9)}" for _ in range(count)])


def _repeats(rng, who, at_s):
    gap_s, count = rng.choice((1, 30, 40)), rng.randrange(1, 26)
    pages = [rng.choice(("/x", "/y")) for _ in range(count)]
    return _clicks(rng, who, [at_s + n * gap_s for n in range(count)], pages)


def _clockwork(rng, who, at_s):
    gap_s, count = rng.choice((7, 100)), rng.randrange(1, 26)
    pages = [f"/{n % 8}" for n in range(count)]
    return _clicks(rng, who, [at_s + n * gap_s for n in range(count)], pages)


def _resources(rng, who, at_s):
    return _clicks(rng, who, [at_s, at_s + 40], ["/a.css"] * 2, RESOURCE)


def _robots_txt(rng, who, at_s):
    return _clicks(rng, who, [at_s, at_s + 100], ["/robots.txt"] * 2, ROBOTS_TXT)


SUSPECT_PATTERNS = (_burst, _repeats, _clockwork, _clockwork, _resources, _robots_txt)


@pytest.mark.parametrize("seed", range(24))
def test_findings_from_disordered_clicks_equal_those_of_the_twin(seed):
    """Findings equal the twin's with late clicks, quiet nsqds and pages outside `hot`."""
    rng = random.Random(seed)
    rows = suspect_clicks(rng)
    limits = VisitsLimits(
        batches_max=rng.choice((1, 2, 5, 10**9)),
        overdue_s=rng.choice((0, 60, 1000, 10**12)),
        hot_bytes_max=rng.choice((1000, 10**9)),
        fold_pages=rng.choice((0, 3, 10)),
    )
    nsqds, batches, at, batch_ms = rng.choice((1, 2, 3)), [], 0, FIRST_BATCH_MS
    while at < len(rows):
        count = rng.randrange(1, max(len(rows) // 6, 2))
        batch_ms += rng.choice((500, 1000, 9000))
        names = [f"n{rng.randrange(nsqds)}" for _ in rows[at : at + count]]
        batches.append((rows[at : at + count], names, batch_ms))
        at += count
    in_memory, twin = both(batches, limits=limits, buckets=rng.choice((1, 2)))

    assert findings(twin.output) == findings(in_memory.output)
    assert evicted(in_memory.output) == (0, 0, 0)


def contents(state):
    return {name: getattr(state, name).values for name in ("hot", "names", "base", "findings")}


def test_a_replayed_batch_gives_equal_bytes():
    """A batch replayed on the same state, with its rows in another order, gives equal bytes."""
    rows, _ = day(6000, 2)
    in_memory = InMemoryQuery(limits=VisitsLimits(batches_max=3))
    batches = list(batches_of(rows[:4000], 2, (0, 1), 200))
    for batch in batches[:-1]:
        before = [held_state(**contents(state)) for state in in_memory.states]
        in_memory.apply(*batch)
        frame = in_memory.packed(
            batch[0], batch[1], FIRST_BATCH_MS + (in_memory.batches - 1) * 1000
        )
        for bucket, state in enumerate(before):
            mine = frame[frame["bucket"] == bucket].iloc[::-1]
            received = packing.receive([mine.iloc[:1], mine.iloc[1:]])
            apply(state, bucket, received, in_memory.limits)
            assert contents(in_memory.states[bucket]) == contents(state)


def revisions(output):
    return [(row["reason"], row["revision"], row["amount"]) for row in output]


def test_a_finished_visit_is_judged_within_60_seconds_of_event_time():
    """A visit that is over is judged within 60 s of event time, before the next due compaction."""
    in_memory = InMemoryQuery(buckets=1)
    assert in_memory.apply([click(100 * at) for at in range(7)], ["n"] * 7) == []
    end_s = 600 + VISIT_GAP_S
    assert in_memory.apply([click(end_s + 59, who="v")], ["n"]) == []
    assert [(BARE, 1, 7)] == revisions(in_memory.apply([click(end_s + 60, who="v")], ["n"]))
    assert in_memory.close() == []


def test_robots_txt_requests_are_counted_across_compactions():
    """Requests of robots.txt every 20 minutes are counted for a day, and reported at doublings."""
    limits = VisitsLimits(batches_max=2, fold_pages=2)
    rows = [click(1200 * at, kind=ROBOTS_TXT, page="/robots.txt") for at in range(64)]
    batches = [([row], ["n"], None) for row in rows]
    in_memory, twin = both(batches, limits=limits, buckets=1)

    assert [(UNDECLARED, at + 1, 2**at) for at in range(7)] == revisions(in_memory.output)
    assert findings(twin.output) == findings(in_memory.output)
    assert len(Element.read(in_memory.states[0].hot.values[0]).pages) <= 4


def visitor_clicks(rng, count, visitors, second):
    """Clicks of random visitors, one in five on a page, as a table of CLICKS."""
    who = rng.integers(0, visitors, count)
    hashes = who * np.int64(0x9E3779B97F4A7C1) - 2**62  # spread out, and unique for each visitor
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


def process(states, table, limits):
    """Process one batch in two partitions in all buckets; returns the output rows."""
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
def test_robots_among_half_a_million_visitors_are_found():
    """One bucket's sixteenth of 500,000 visitors at 5,000 clicks/s: planted robots are found.

    Nothing is evicted, and the state takes at most 250 bytes per visit.
    """
    share, seconds = 16, 1_000
    rng, states = np.random.default_rng(1), [held_state()]
    rows, labels = day(8000, 3)
    planted = {who for who in labels}
    suspects = [row for row in rows if (row["address"], row["agent"]) in planted]
    begin = {}
    for row in suspects:  # each starts at some second of the run and keeps its pace
        begin.setdefault(row["visitor"], (row["second"], row["visitor"] % 400))
    moved = sorted(
        (START_S + row["second"] - begin[row["visitor"]][0] + begin[row["visitor"]][1], at)
        for at, row in enumerate(suspects)
    )
    output, at = [], 0
    step = 10
    for second in range(START_S, START_S + seconds, step):
        crowd = visitor_clicks(rng, 5_000 * step // share, 500_000 // share, second)
        theirs = []
        while at < len(moved) and moved[at][0] < second + step:
            theirs.append({**suspects[moved[at][1]], "second": moved[at][0]})
            at += 1
        batch_ms = FIRST_BATCH_MS + second * 1000
        table = pa.concat_tables([crowd, table_of(theirs, ["n"] * len(theirs), batch_ms)])
        output += process(states, table, VisitsLimits())
    output += close(states[0]).to_pylist()

    twin_rows = [{**suspects[number], "second": second} for second, number in moved[:at]]
    _, twin = both([(twin_rows, ["n"] * len(twin_rows), None)], buckets=1)
    expected = {(row["visitor"], row["reason"]) for row in twin.output}
    found = {(row["visitor"], row["reason"]) for row in output if row["kind"] == FINDING}
    assert len(expected) >= 10
    assert expected <= found
    assert evicted(output) == (0, 0, 0)
    visits = InMemoryQuery.visits_of(states[0])
    assert visits >= 500_000 / share * 0.98
    assert size_of(states[0]) <= 250 * visits
