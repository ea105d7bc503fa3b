"""An ordinary batch uses `hot`, and reads `base` only if a suspect may have pages there."""

from sparq.pipeline.open_visits.tiers import VisitsLimits
from sparq.pipeline.visits import REPEATS
from tests.pipeline.open_visits.machine import Machine, click


def test_a_suspect_with_older_pages_in_base_is_found_in_the_same_batch():
    """A suspect with 7 clicks in `base` and 8 new ones is found in the same batch."""
    machine = Machine(buckets=1, limits=VisitsLimits(batches_max=3))
    old = [click(10 * at, page="/offer", ident=at) for at in range(7)]
    machine.apply(old, ["n"] * 7)
    machine.apply([click(80, who="other")], ["n"])
    machine.apply([click(81, who="other")], ["n"])
    new = [click(100 + 10 * at, page="/offer", ident=50 + at) for at in range(8)]
    told = machine.apply(new, ["n"] * 8)

    assert [(REPEATS, 15)] == [(row["reason"], row["amount"]) for row in told]
    assert [f"{at:016x}" for at in range(5)] == told[0]["message_ids"]
