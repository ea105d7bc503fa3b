"""A batch as its bucket receives it: which clicks are on time, from any partition."""

from dataclasses import asdict

from sparq.pipeline import packing
from sparq.pipeline.open_visits.batch import VisitsBatch, touched
from sparq.pipeline.open_visits.tiers import VisitsMeta
from sparq.pipeline.visits import RESOURCE, VISIT_GAP_S
from tests.pipeline.open_visits.in_memory_query import FIRST_BATCH_MS, InMemoryQuery, click, hash_of


def received(rows, number=0):
    """The input of the only bucket for a batch that is divided into two partitions."""
    frame = InMemoryQuery(buckets=1).packed(
        rows, ["n"] * len(rows), FIRST_BATCH_MS + number * 1_000
    )
    return packing.receive([frame])


def meta_after(batch):
    """The metadata of the state after a batch."""
    return VisitsMeta(1, batch.before_s, asdict(batch.low_mark), None, 0, has_base=False)


def test_clicks_of_a_visit_in_several_partitions_are_one_interval():
    """Clicks of a visit from several partitions form one interval.

    Pages are kept one by one, each text and each name once.
    """
    rows = [click(second, page="/a", ident=second) for second in (5_000, 5_010, 5_020)]
    batch = VisitsBatch.of(received([*rows, click(5_030, kind=RESOURCE, page="/a.css")]), None)

    (visitor,) = touched(batch.seconds).tolist()
    assert rows[0]["visitor"] == visitor
    assert [[5_000], [5_030], [4], [1], [3]] == [
        getattr(batch.seconds, name).tolist()
        for name in ("first_s", "last_s", "clicks", "resources", "pages")
    ]
    assert [5_000, 5_010, 5_020] == sorted(batch.pages.second.tolist())
    assert {hash_of("/a"): "/a"} == batch.texts
    assert "u" == batch.names.of(visitor).address


def test_clicks_older_than_the_previous_low_mark_are_dropped():
    """Clicks too old for the previous batch's low mark are dropped, also in a replay.

    They are still in `arrivals`.
    """
    first = VisitsBatch.of(received([click(50_000), click(50_001)]), None)
    assert 0 == first.before_s
    low_s = first.low_mark.low_s
    assert low_s > VISIT_GAP_S
    late, on_time = low_s - VISIT_GAP_S, low_s - VISIT_GAP_S + 1
    rows = [click(late, who="late"), click(on_time, who="new"), click(90_000, who="newest")]
    second = VisitsBatch.of(received(rows, 1), meta_after(first))

    assert low_s == second.before_s < second.low_mark.low_s
    assert [late, on_time, 90_000] == sorted(second.arrivals.pages.second.tolist())
    assert [on_time, 90_000] == sorted(second.pages.second.tolist())
    assert sorted(row["visitor"] for row in rows[1:]) == touched(second.seconds).tolist()
