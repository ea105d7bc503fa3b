"""An ordinary batch uses `hot`, and reads `base` only if a suspect may have pages there."""

from sparq.pipeline.open_visits.tiers import VisitsLimits
from sparq.pipeline.visits import REPEATS
from tests.pipeline.open_visits.in_memory_query import InMemoryQuery, click


def test_a_suspect_with_older_pages_in_base_is_found_in_the_same_batch():
    """A suspect with 7 clicks in `base` and 8 new ones is found in the same batch."""
    in_memory = InMemoryQuery(buckets=1, limits=VisitsLimits(batches_max=3))
    old = [click(10 * at, page="/offer", ident=at) for at in range(7)]
    in_memory.apply(old, ["n"] * 7)
    in_memory.apply([click(80, who="other")], ["n"])
    in_memory.apply([click(81, who="other")], ["n"])
    new = [click(100 + 10 * at, page="/offer", ident=50 + at) for at in range(8)]
    output = in_memory.apply(new, ["n"] * 8)

    assert [(REPEATS, 15)] == [(row["reason"], row["amount"]) for row in output]
    assert [f"{at:016x}" for at in range(5)] == output[0]["message_ids"]
