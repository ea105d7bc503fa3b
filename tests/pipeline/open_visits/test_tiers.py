"""The parts of a state: what a batch reads and writes, and which visits are in which part."""

from sparq.pipeline.open_visits.tiers import (
    LINE_BYTES,
    BasePart,
    Element,
    HotPart,
    VisitsLimits,
    held_state,
)
from sparq.pipeline.visits import ROBOTS_TXT
from tests.pipeline.open_visits.in_memory_query import InMemoryQuery, click


def test_ordinary_batches_do_not_read_or_write_base():
    """An ordinary batch reads `hot` and appends to `hot` and `names`; a compaction uses `base`."""
    state, limits = held_state(), VisitsLimits(batches_max=5)
    in_memory = InMemoryQuery(buckets=1, limits=limits)
    in_memory.states = [state]
    for batch in range(9):
        for part in (state.hot, state.names, state.base, state.findings):
            part.calls.clear()
        in_memory.apply([click(60 * batch, who=f"{batch}"), click(60 * batch, who="u")], ["n"] * 2)
        calls = [part.calls for part in (state.hot, state.names, state.base, state.findings)]
        if (batch + 1) % 5:
            assert [["get", "append"], ["append"], [], []] == calls
        else:
            assert [["get", "put"], ["get", "clear"], ["get", "put"], []] == calls
    assert len(state.hot.values) == 5
    assert len(state.names.values) == 4


def test_visitors_with_many_harmless_pages_are_in_base():
    """Only visitors whose next click may prove something stay in `hot`, which each batch reads."""
    in_memory = InMemoryQuery(buckets=1, limits=VisitsLimits(batches_max=2))
    person = [click(60 * at, who="person", page=f"/{at}") for at in range(14)]
    again = [click(60 * at, who="again", page=f"/{at % 2}", ident=at) for at in range(16)]
    quick = [click(800 + at, who="quick", page=f"/{at}") for at in range(8)]
    asked = [click(900, who="asked", kind=ROBOTS_TXT, page="/robots.txt")]
    steady = [click(50 * at, who="steady", page=f"/{at}") for at in range(16)]
    for rows in ([click(0, who="first")], [*person, *again, *quick, *asked, *steady]):
        in_memory.apply(rows, ["n"] * len(rows))
    hot, base = HotPart(in_memory.states[0]), BasePart.read(in_memory.states[0])
    names = {row["visitor"]: row["address"] for row in base.names.to_pylist()}

    assert {"again", "quick", "asked", "steady"} == {names[one] for one in hot.busy().tolist()}
    assert {"first", "person"} == {names[one] for one in base.visits.visitor.tolist()}


def test_an_element_survives_a_round_trip():
    """An element survives a round trip; its tables begin at a multiple of 64 bytes."""
    in_memory = InMemoryQuery(buckets=1)
    in_memory.apply([click(60 * at, who=f"{at % 3}") for at in range(9)], ["n"] * 9)
    (data,) = in_memory.states[0].hot.values
    element = Element.read(data)

    assert data == element.bytes()
    assert 0 == (data.index(b"\n") + 1) % LINE_BYTES
    assert (1, 0, False) == (element.meta.batches, element.meta.before_s, element.meta.has_base)
    assert 3 == len(element.visits)
    assert 9 == len(element.pages)


def test_base_survives_a_round_trip():
    """`base` survives a round trip; before the first compaction it is empty."""
    in_memory = InMemoryQuery(buckets=1, limits=VisitsLimits(batches_max=1))
    assert 0 == len(BasePart.read(in_memory.states[0]).visits.visitor)
    for _ in range(2):  # the first batch does not compact
        in_memory.apply([click(60 * at, who=f"{at % 3}") for at in range(9)], ["n"] * 9)
    (data,) = in_memory.states[0].base.values

    assert data == BasePart.read(in_memory.states[0]).bytes()
    assert 3 == len(BasePart.read(in_memory.states[0]).names)
