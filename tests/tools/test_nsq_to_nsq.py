"""nsq_to_nsq: which messages its JSON filter passes, and which of their fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparq.tools.nsq_to_nsq import (
    FieldMissingError,
    MessageFilter,
    NotAnObjectError,
    equals,
    parsed,
)

DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


def test_without_a_filter_all_bytes_pass() -> None:
    """Without a filter the body need not be JSON."""
    assert b"\xff{" == MessageFilter().passed(b"\xff{")


def test_a_required_field() -> None:
    """Any value is accepted, even null; the body is unchanged."""
    wanted = MessageFilter(required="a")

    assert b'{ "a": null }' == wanted.passed(b'{ "a": null }')
    assert None is wanted.passed(b'{"b": {"a": 1}}')


def test_a_required_value() -> None:
    """Another value is not passed; a missing field is an error."""
    wanted = MessageFilter(required="a", value="x")

    assert b'{"a":"x"}' == wanted.passed(b'{"a":"x"}')
    assert None is wanted.passed(b'{"a":"y"}')
    with pytest.raises(FieldMissingError, match="no field 'a'"):
        wanted.passed(b'{"b":"x"}')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        ("5", "5"),
        ("\u00fc", "\u00fc"),
        (5, "5"),
        (5, "5.0"),
        (5.0, "+5"),
        (0.5, ".5"),
        (0, "-0"),
        (1000, "1e3"),
        (2**64 + 1, "18446744073709551617"),
    ],
)
def test_values_that_are_equal(value: object, text: str) -> None:
    """Strings are compared by characters, numbers by value in any notation."""
    assert equals(parsed(json.dumps({"v": value}).encode())["v"], text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "X"),
        ("5", "5.0"),
        (5, "5 "),
        (5, "five"),
        (5, "0x5"),
        (5, ""),
        pytest.param(5, "5" * 5000, id="long"),
        (5, "1e999"),
        (50, "5_0"),
        (2**64 + 1, "18446744073709551616"),
        (True, "true"),
        (True, "1"),
        (None, "null"),
        ([5], "5"),
        ({"a": 5}, "5"),
    ],
)
def test_values_that_are_not_equal(value: object, text: str) -> None:
    """Only strings and numbers can be equal to a text."""
    assert not equals(value, text)


@pytest.mark.parametrize(
    ("body", "passed"),
    [
        (b'{"c":3, "b" : "x", "a":1}', b'{"a":1,"b":"x"}'),
        (b'{"c":3}', b"{}"),
        (b'{"a":1.0,"b":[2.50,1e3]}', b'{"a":1,"b":[2.5,1000]}'),
        (b'{"a":1e300,"b":12345678901234567890}', b'{"a":1e+300,"b":12345678901234567890}'),
        ('{"a":"\u00fc<&>"}'.encode(), '{"a":"\u00fc<&>"}'.encode()),
        (b'{"a":"\\ud83d\\ude00"}', '{"a":"\U0001f600"}'.encode()),
        (b'{"a":"\\ud83d"}', b'{"a":"\\ud83d"}'),
        (b'{"a":"\xff"}', '{"a":"\ufffd"}'.encode()),
        (b'{"a":{"y":1,"x":2},"a ":1}', b'{"a":{"x":2,"y":1}}'),
        (b'{"a":1,"a":2}', b'{"a":2}'),
    ],
)
def test_a_white_list_keeps_only_listed_fields(body: bytes, passed: bytes) -> None:
    """Only listed fields, sorted keys, whole numbers as integers, every character kept."""
    assert passed == MessageFilter(kept=("b", "a")).passed(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value"),
        (b"[1]", "not an object"),
        (b"null", "not an object"),
        (b'"a"', "not an object"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":-Infinity}', "-Infinity is not JSON"),
        (b'{"a":1e999}', "number too large"),
        pytest.param(b'{"a":' + b"1" * 5000 + b"}", "limit", id="long"),
        (b'\xef\xbb\xbf{"a":1}', "Expecting value"),
        ('{"a":1}'.encode("utf-16"), "Expecting value"),
        (b'{"a":1} x', "Extra data"),
        (b"{'a':1}", "Expecting property name"),
        pytest.param(DEEP, "nested too deeply", id="deep"),
    ],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, reason: str) -> None:
    """The error has the reason, for either kind of filter."""
    for each in (MessageFilter(required="a"), MessageFilter(kept=("a",))):
        with pytest.raises(NotAnObjectError, match=reason):
            each.passed(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from("abcde"), JSON), st.sets(st.sampled_from("abcdef")))
def test_listed_fields_keep_their_values(fields: dict[str, Any], kept: set[str]) -> None:
    """Each listed field has its value, of any type; no other field passes."""
    passed = MessageFilter(kept=(*kept, "z")).passed(json.dumps(fields).encode())

    assert {name: value for name, value in fields.items() if name in kept} == json.loads(
        passed or b""
    )


@given(st.binary(max_size=40))
def test_any_bytes_pass_or_are_refused(body: bytes) -> None:
    """Only the documented error is raised."""
    try:
        passed = MessageFilter(required="a", kept=("a",)).passed(body)
    except NotAnObjectError:
        return
    assert passed is None or "a" in json.loads(passed)
