"""JSON text in the bytes of Go's encoder."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol import go_json


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, True, None], "b": {}}, '{"a":[1,true,null],"b":{}}'),
        ("<a href='x'>&\u2028\u2029é", "\"\\u003ca href='x'\\u003e\\u0026\\u2028\\u2029é\""),
        ("half \ud800 pair", '"half \ufffd pair"'),
        ('quote " and \\ and \t', '"quote \\" and \\\\ and \\t"'),
    ],
)
def test_the_text_is_gos(value: Any, expected: str) -> None:
    """There are no blanks; what Go escapes is escaped, and half a surrogate pair is replaced."""
    assert expected == go_json.to_text(value)
    assert expected.encode() == go_json.to_bytes(value)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_is_read_back(text: str) -> None:
    """A decoder returns the same text."""
    assert text == json.loads(go_json.to_bytes(text))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, "1"), (0.99, "0.99"), (-2.0, "-2"), (1e20, "100000000000000000000"), (1e21, "1e+21")],
)
def test_a_whole_float_has_no_fraction(value: float, expected: str) -> None:
    """A float64 is written as Go writes it, with an exponent from 1e21."""
    assert expected == go_json.to_text(go_json.number(value))
