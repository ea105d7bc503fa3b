"""Findings: when they are reported, how many are kept, and their rows for Spark."""

from sparq.pipeline import packing
from sparq.pipeline.open_visits.bucket import apply
from sparq.pipeline.open_visits.findings import FINDING, OUTPUT_SCHEMA
from sparq.pipeline.open_visits.tiers import VisitsLimits, held_state
from sparq.pipeline.visits import BURST, DECLARED
from tests.pipeline.open_visits.in_memory_query import FIRST_BATCH_MS, InMemoryQuery, click, evicted


def revisions(rows):
    return [(row["reason"], row["revision"], row["amount"]) for row in rows]


def test_findings_are_reported_when_doubled_and_at_the_end():
    """A finding is reported again when it has doubled, and at the end, across compactions."""
    in_memory = InMemoryQuery(buckets=2, limits=VisitsLimits(batches_max=2))
    for second in range(7):
        in_memory.apply([click(second, robot=True)], ["n"])

    assert [(DECLARED, 1, 1), (DECLARED, 2, 2), (DECLARED, 3, 4)] == revisions(in_memory.output)
    assert [(DECLARED, 4, 7)] == revisions(in_memory.close())


def test_output_rows_have_the_output_schema():
    """Output rows have exactly OUTPUT_SCHEMA."""
    rows = [click(100, page=f"/{at}") for at in range(40)]
    state, in_memory = held_state(), InMemoryQuery(buckets=1, partitions=1)
    frame = in_memory.packed(rows, ["n"] * 40, FIRST_BATCH_MS)
    out = apply(state, 0, packing.receive([frame]))

    assert out.schema.equals(OUTPUT_SCHEMA)
    assert [BURST] == out["reason"].to_pylist()
    assert [100] == [one.timestamp() for one in out["first_time"].to_pylist()]


def test_the_older_half_of_too_many_findings_is_dropped_and_counted():
    """Above findings_max the older half is dropped and counted.

    A robot that is found again after that is a new finding.
    """
    limits = VisitsLimits(batches_max=1, findings_max=10)
    in_memory = InMemoryQuery(buckets=1, limits=limits)
    for batch in range(12):
        in_memory.apply([click(batch, who=f"{batch}", robot=True)], ["n"])

    assert evicted(in_memory.output) == (0, 0, 6)
    again = in_memory.apply([click(20, who="0", robot=True)], ["n"])
    assert [(DECLARED, 1, 1)] == [
        (row["reason"], row["revision"], row["amount"]) for row in again if row["kind"] == FINDING
    ]
