"""Runs of FINs and PUBs: the array path gives the same results as one by one."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sparq.protocol import commands as c
from sparq.protocol.runs import COMPARED_FIRST, COMPARED_MAX, FIN_WIDTH, finish_run, publish_run

SIZE_MAX = 50
LINE = b"PUB t\n"

GOOD_FINS = st.integers(0, (1 << 64) - 1).map(lambda raw: b"FIN %016x\n" % raw)
BEFORE_A_PAGE = st.integers(1, 1 << 50).map(lambda page: page * COMPARED_MAX - 20)
"""First ids of runs in which more than the last three digits change."""
OTHER_LINES = st.sampled_from(
    [
        *(
            b"NOP\n",
            b"FIN 0123456789ABCDEF\n",
            b"FIN 0123 56789abcdef\n",
            b"FIN 0123456789abcde\r\n",
        ),
        *(b"FIN 0123456789abcdef \n", b"FIN 01234567\n", b"fin 0123456789abcdef\n", b"FIN 0123"),
        *(b"FIN 0123456\n89abcdef\n", b"FIN \n", b"FIN 0123456789abcdeg\n", b"", b"F"),
    ]
)


def plain_finishes(data: bytes, at: int) -> list[bytes]:
    """The ids of the FINs from this position on, line by line."""
    ids = []
    while True:
        line = data[at : at + FIN_WIDTH]
        text = line[4:20]
        if line != b"FIN " + text + b"\n" or not set(b"0123456789abcdef").issuperset(text):
            return ids
        ids.append(text)
        at += FIN_WIDTH


@given(
    st.lists(GOOD_FINS, max_size=3).map(b"".join),
    st.lists(GOOD_FINS, max_size=60).map(b"".join),
    OTHER_LINES,
    st.lists(GOOD_FINS, max_size=30).map(b"".join),
)
def test_finish_run_equals_line_by_line(
    before: bytes, run: bytes, other: bytes, after: bytes
) -> None:
    """A run consists of all valid FINs before the first other line."""
    data = before + run + other + after
    ids = plain_finishes(data, len(before))

    finish = finish_run(data, len(before))

    if finish is None:
        assert ids == []
    else:
        assert [finish.id_text(at) for at in range(len(finish))] == ids
        assert list(finish.raw_ids) == [int(text, 16) for text in ids]


@given(
    st.one_of(st.integers(0, (1 << 64) - 1), st.just((1 << 64) - 30), BEFORE_A_PAGE),
    st.integers(16, 80),
    st.lists(st.tuples(st.integers(0, 80 * FIN_WIDTH), st.sampled_from(b"0fFG \n_+")), max_size=2),
    OTHER_LINES,
)
@example(5 * COMPARED_MAX - 20, 40, [], b"")
def test_finishes_in_order_equal_line_by_line(
    first: int, count: int, changes: list[tuple[int, int]], other: bytes
) -> None:
    """Consecutive ids are read as a range; a damaged line among them is not included."""
    ids = [(first + n) % (1 << 64) for n in range(count)]
    lines = bytearray(b"".join(c.fin(b"%016x" % raw) for raw in ids))
    for at, byte in changes:
        lines[at % len(lines)] = byte
    data = bytes(lines) + other

    finish = finish_run(data, 0)

    found = plain_finishes(data, 0)
    if finish is None:
        assert found == []
    else:
        assert [finish.id_text(at) for at in range(len(finish))] == found[: len(finish)]
        assert list(finish.raw_ids) == [int(text, 16) for text in found[: len(finish)]]
        assert len(finish) in (len(found), 16)
        if not changes and other in (b"", b"F") and ids[-1] > ids[0]:
            assert isinstance(finish.raw_ids, range) or ids[-1] == (1 << 64) - 1


def test_a_long_run_is_bounded() -> None:
    """A run has at most `COMPARED_MAX` FINs; the rest is the next run."""
    data = b"".join(c.fin(b"%016x" % n) for n in range(COMPARED_MAX + 100))

    first = finish_run(data, 0)
    assert first is not None
    second = finish_run(data, len(first) * FIN_WIDTH)

    assert second is not None
    assert (len(first), len(second)) == (COMPARED_MAX, 100)
    assert second.id_text(0) == b"%016x" % COMPARED_MAX


@pytest.mark.parametrize("text", [b"0123456789ABCDEF", b"0123456789abcdeg", b"0123456 89abcdef"])
def test_a_long_run_ends_before_an_invalid_id(text: bytes) -> None:
    """An invalid id ends a run after all valid FINs before it."""
    good = b"".join(c.fin(b"%016x" % n) for n in range(40))

    finish = finish_run(good + c.fin(text) + good, 0)

    assert finish is not None
    assert list(finish.raw_ids) == list(range(40))


def plain_publishes(data: bytes, at: int) -> list[tuple[int, int]]:
    """(start, size) of the PUBs from this position on, one by one."""
    found = []
    while data[at : at + len(LINE)] == LINE and len(data) >= at + len(LINE) + 4:
        start = at + len(LINE) + 4
        size = int.from_bytes(data[start - 4 : start], "big", signed=True)
        if not 0 < size <= SIZE_MAX or start + size > len(data):
            break
        found.append((start, size))
        at = start + size
    return found


PUBLISHES = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 30), st.integers(1, 80)),  # a size, and a count of PUBs
        st.tuples(st.integers(1, SIZE_MAX), st.just(1)),
    ),
    max_size=6,
).map(lambda runs: b"".join(c.pub("t", b"b" * size) * count for size, count in runs))
OTHERS = st.sampled_from(
    [
        *(b"", b"P", b"PUB t\n", b"PUB t\n\0\0", b"PUB t\n\xff\xff\xff\xff"),
        *(b"PUB t\n\x7f\xff\xff\xff", c.pub("t", b"cut short")[:-1]),
        *(c.pub("u", b"x"), c.pub("t", b""), c.pub("t", b"x" * 51)),
    ]
)


@given(st.binary(max_size=3), PUBLISHES, OTHERS, PUBLISHES)
def test_publish_run_equals_one_by_one(
    before: bytes, run: bytes, other: bytes, after: bytes
) -> None:
    """A run consists of all complete, valid PUBs to the same topic, of any sizes."""
    data = before + run + other + after
    assume(data.startswith(LINE, len(before)))
    plain = plain_publishes(data, len(before))

    bodies = publish_run(data, len(before), LINE, SIZE_MAX)

    if bodies is None:
        assert plain == []
    else:
        assert list(zip(bodies.starts, bodies.sizes, strict=True)) == plain


@pytest.mark.parametrize(
    "count", [COMPARED_FIRST, COMPARED_FIRST + 1, COMPARED_MAX, COMPARED_MAX + 20]
)
def test_long_publish_runs(count: int) -> None:
    """More PUBs than `COMPARED_MAX` are still one run."""
    data = c.pub("t", b"abc") * count + c.nop()

    bodies = publish_run(data, 0, LINE, SIZE_MAX)

    assert bodies is not None
    assert len(bodies) == count
    assert bytes(list(bodies)[-1]) == b"abc"
