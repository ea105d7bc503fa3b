"""The filter language: its syntax, its error messages, and what it matches."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.inspection.json_path import (
    ESCAPE,
    FILTER_CHARACTERS_MAX,
    PARSED_BYTES_MAX,
    STEPS_MAX,
    FilterError,
    JsonFilter,
    parse,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", JsonFilter(("a",))),
        (" a.b-c.d_1 ", JsonFilter(("a", "b-c", "d_1"))),
        ("grün", JsonFilter(("grün",))),
        ('["a.b"][0]["c"]', JsonFilter(("a.b", 0, "c"))),
        ("[3].x", JsonFilter((3, "x"))),
        ('a = "x"', JsonFilter(("a",), "=", "x")),
        ('a=="\\"x"', JsonFilter(("a",), "==", '"x')),
        ("a != null", JsonFilter(("a",), "!=", None)),
        ("a>=-1.5e3", JsonFilter(("a",), ">=", -1500.0)),
        ("a\t<\t7", JsonFilter(("a",), "<", 7)),
        ("a = true ", JsonFilter(("a",), "=", True)),
        ('a ~ ""', JsonFilter(("a",), "~", "")),
    ],
)
def test_filters_are_read(text: str, expected: JsonFilter) -> None:
    """A filter is a path of names and positions, optionally an operator and a JSON value."""
    assert expected == parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a name at ''"),
        (".a", "expected a name at '.a'"),
        ("a..b", "expected a name at '.b'"),
        ("7", "expected a name at '7'"),
        ('"a"', "expected a name"),
        ("a[x]", "expected a position or a string in double quotes at 'x]'"),
        ("a[-1]", "expected a position or a string"),
        ('a["b"', "expected ] at ''"),
        ("a b", "expected an operator (= != < <= > >= ~) at 'b'"),
        ("a =", "expected a number, a string in double quotes, true, false or null at ''"),
        ("a = x", "expected a number, a string in double quotes, true, false or null at 'x'"),
        ("a = 'x'", "a number, a string in double quotes"),
        ("a = 1 2", "and nothing after it"),
        ("a = [1]", "a number, a string in double quotes"),
        ("a < true", "< needs a number or a string in double quotes"),
        ("a ~ 7", "~ needs a string in double quotes"),
        ("a = " + "[" * 900, "a number, a string in double quotes"),
        ("a" * (FILTER_CHARACTERS_MAX + 1), "may have at most 1024 characters"),
        (".".join("a" * (STEPS_MAX + 1)), "a path has at most 32 steps"),
    ],
)
def test_other_texts_are_refused_with_the_reason(text: str, reason: str) -> None:
    """A syntax error names its position and what was expected."""
    with pytest.raises(FilterError) as refused:
        parse(text)
    assert reason in str(refused.value)


DOCUMENT = {
    "n": 7,
    "f": 1.5,
    "s": "text",
    "t": True,
    "z": None,
    "list": [{"x": 1}, [2, 3]],
    "o": {"": {"a b": "c"}},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("n", True), ("m", False), ("z", True), ("list[1]", True), ("list[2]", False)),
        *(("n.x", False), ("s[0]", False), ("list.x", False), ("o[0]", False)),
        *(("n = 7", True), ("n = 7.0", True), ("n != 8", True), ("n < 8", True), ("n > 7", False)),
        *(("f >= 1.5", True), ("f <= 1", False), ('n = "7"', False), ('n != "7"', False)),
        *(('s = "text"', True), ('s ~ "ex"', True), ('s ~ "xe"', False), ('s > "tex"', True)),
        *(("t = true", True), ("t = 1", False), ("t != false", True), ("z = null", True)),
        *(("n != null", False), ("z != true", True), ("list[0].x = 1", True)),
        *(("list[1][1] = 3", True), ("list = null", False), ('o[""]["a b"] = "c"', True)),
    ],
)
def test_bodies_are_matched(text: str, expected: bool) -> None:
    """A filter matches if the path exists and its value has the same type and compares true."""
    assert expected is parse(text).matches(json.dumps(DOCUMENT).encode())


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"a":' * 5000, b"[" * 200_000, b'{"a": %s}' % (b"9" * 5000)],
)
def test_a_body_that_is_not_json_matches_nothing(body: bytes) -> None:
    """A body that is not JSON matches nothing.

    The same holds for JSON that the parser refuses: too deep, or a number of thousands of digits.
    """
    assert not parse("a").matches(body)
    assert not parse("[0]").matches(body)


def test_large_bodies_match_nothing() -> None:
    """Bodies above `PARSED_BYTES_MAX` match nothing.

    Parsing them would block everything else.
    """
    body = b'{"a":"%s"}'
    assert parse("a").matches(body % (b"x" * (PARSED_BYTES_MAX - 8)))
    assert not parse("a").matches(body % (b"x" * (PARSED_BYTES_MAX - 7)))


texts = st.text(max_size=6)
documents: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def paths_of(document: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every path of a document, with its value."""
    found = [(path, document)] if path else []
    items: Any = ()
    if isinstance(document, dict):
        items = ((json.dumps(name, ensure_ascii=False), part) for name, part in document.items())
    elif isinstance(document, list):
        items = enumerate(document)
    for step, part in items:
        found += paths_of(part, f"{path}[{step}]")
    return found


@given(documents, st.booleans(), st.integers(0, 99))
def test_each_path_of_a_document_matches_it_and_its_needle_is_there(
    document: Any, ascii_only: bool, choice: int
) -> None:
    """Each path of a document matches it.

    A body without escaped characters contains the filter's needle.
    """
    body = json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    for path, found in paths_of(document):
        if isinstance(found, list | dict):
            text = path
        else:
            operator = "~" if isinstance(found, str) and choice % 2 else "="
            text = f"{path} {operator} {json.dumps(found, ensure_ascii=False)}"
        condition = parse(text)
        assert condition.matches(body) or b"\xed" in body
        assert condition.needle() in body or ESCAPE in body


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Any text is parsed or raises FilterError.

    A parsed filter can be applied to any body.
    """
    try:
        condition = parse(text)
    except FilterError:
        return
    condition.matches(b"{}")
    condition.needle()


def test_a_large_body_causes_no_garbage_collection() -> None:
    """Parsing a large body runs no garbage collection, and leaves it enabled.

    Its lists would trigger dozens, each of which visits all of them.
    """
    body = json.dumps([[]] * 60_000).encode()
    runs: list[str] = []

    def note(phase: str, _details: dict[str, int]) -> None:
        runs.append(phase)

    gc.collect()  # earlier tests may have allocated almost enough for a collection
    gc.callbacks.append(note)
    try:
        assert parse("[59999]").matches(body)
        assert not parse("[60000]").matches(body + b"]")
    finally:
        gc.callbacks.remove(note)

    assert runs == []
    assert gc.isenabled()
