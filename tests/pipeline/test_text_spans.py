"""Columns as stretches of a text: positions are found, and strings are cut out."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.text_spans import (
    DIGITS,
    NOWHERE,
    QUOTE,
    Spans,
    Text,
    next_place,
    numbered_place,
)

bodies_of = st.lists(
    st.binary(max_size=12) | st.sampled_from([b'"a\\', b"\xff", b"x\r\n", b"\n"]), min_size=1
)
texts_of = st.lists(st.text(max_size=8), min_size=1)


def text_of(bodies, skipped=0):
    """A text whose rows are a slice of an array."""
    array = pa.array([b"before"] * skipped + bodies + [b"after"], pa.binary())
    return Text(array.slice(skipped, len(bodies)))


@given(bodies_of, st.integers(0, 2))
def test_line_ends_at_row_ends_do_not_count(bodies, skipped):
    """Line ends at a row's end do not count, nor do a slice's neighbours."""
    text = text_of(bodies, skipped)
    whole = b"".join(bodies)

    assert [bytes(text.bytes[a:b]) for a, b in zip(text.starts, text.ends, strict=True)] == [
        body.rstrip(b"\r\n") for body in bodies
    ]
    assert text.quotes.tolist() == [at for at, sign in enumerate(whole) if sign == QUOTE]
    assert text.not_ascii.tolist() == [at for at, sign in enumerate(whole) if sign > 127]
    for row, body in enumerate(bodies):
        trimmed = body.rstrip(b"\r\n")
        odd = any(sign < 32 or sign in b"\\\x7f" for sign in trimmed)
        assert text.has_escape_or_control[row] == odd
        assert text.not_utf8[row] == (body.decode("utf-8", "replace").encode() != body)


@given(texts_of, st.data())
def test_strings_are_cut_from_their_rows(texts, data):
    """Strings are cut from rows; absent ones are null, and some may come from elsewhere."""
    bodies = [one.encode() for one in texts]
    text = text_of(bodies)
    present = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    spans = Spans(text.starts, text.starts + [len(body) for body in bodies]).only(np.array(present))
    expected = [one if there else None for one, there in zip(texts, present, strict=True)]
    apart = data.draw(
        st.dictionaries(st.integers(0, len(texts) - 1), st.none() | st.text(max_size=3))
    )
    rows = np.array(sorted(apart), np.int64)
    found = text.texts_apart(rows, {"a": [apart[row] for row in rows], "b": ["x"] * len(rows)})

    assert text.strings(spans).to_pylist() == expected
    strings = text.strings(spans, found["a"] if apart else None)
    strings.validate(full=True)
    assert strings.to_pylist() == [apart.get(row, one) for row, one in enumerate(expected)]
    assert text.made_of(spans, DIGITS).tolist() == [
        not one or all("0" <= sign <= "9" for sign in one) for one in expected
    ]


@given(st.lists(st.integers(0, 50), unique=True).map(sorted), st.lists(st.integers(0, 60)))
def test_next_and_numbered_place_equal_a_linear_search(places, after):
    """`next_place` and `numbered_place` equal a linear search."""
    found = next_place(np.array(places, np.int64), np.array(after, np.int64))

    assert found.tolist() == [next((at for at in places if at >= one), NOWHERE) for one in after]
    numbers = np.arange(len(places), dtype=np.int64)
    assert numbered_place(np.array(places, np.int64), numbers).tolist() == places
    assert len(numbered_place(np.zeros(0, np.int64), numbers)) == len(numbers)


def test_bytes_near_the_end_are_padded_with_zeros():
    """A grid near the end starts earlier to have `count` bytes; too short a text gives zeros."""
    text = text_of([b"abc", b"de"])

    assert text.grid(np.array([0, 2, 4]), 2).T.tolist() == [[97, 98], [99, 100], [100, 101]]
    assert text.grid(np.array([0]), 9).tolist() == [[0]] * 9
    assert text.is_byte(np.array([-1, 0, 99]), ord("a")).tolist() == [False, True, False]
