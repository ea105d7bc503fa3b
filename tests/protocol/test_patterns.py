"""Patterns in authd answers: what they match, which are refused, and limited time.

Python's `re` is the slow twin, for patterns on which Go and Python agree.
"""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.protocol.patterns import (
    INSTRUCTIONS_MAX,
    TEXT_MAX,
    Pattern,
    PatternError,
    StepBudget,
    TooManySteps,
)

ATOMS = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "[a-c_]", r"\d", r"\w", r"\.", "(?:)", "^", "$", r"\b"]
)
REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{2,}", "{0}"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, REPEATS).map(lambda both: f"(?:{both[0]}){both[1]}"),
        inner.map(lambda part: f"(?i:{part})"),
    )


PATTERNS = st.recursive(ATOMS, larger, max_leaves=8)
NAMES = st.text("aAbBc.-_1", max_size=10)


@given(PATTERNS, NAMES)
def test_patterns_match_the_same_names_as_in_python(pattern: str, name: str) -> None:
    """Patterns with the same meaning in Go and Python match the same names as in Python."""
    assert (re.search(pattern, name, re.ASCII) is not None) == Pattern(pattern).search(name)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("clicks", "my-clicks-2", "click"),
        ("", "anything", None),
        (".*", "", None),
        ("^a$", "a", "aa"),
        (r"\Aab\z", "ab", "xab"),
        (r"\Qa.b\E+", "a.bbb", "axb"),
        (r"\Qa+", "a+", "aa"),
        ("(?P<x>a)(?<y>b)", "ab", "ba"),
        ("(?i)CLICKS", "clicks", "clics"),
        ("(?i:A)b", "ab", "aB"),
        ("(?i-s)a(?-i)b", "Ab", "AB"),
        ("[[:digit:]_]", "x_", "x-"),
        ("[[:^alpha:]]", "1", "x"),
        ("[]a]", "]", "b"),
        ("[a-]", "-", "b"),
        ("[^-]", "a", "-"),
        (r"[\d-]x", "-x", "ax"),
        (r"^[\d-z]+$", "1-z", "y"),
        (r"^[\pL-_]$", "-", "1"),
        (r"\_[\_]", "__", "ab"),
        (r"^\p{P}\pS\p{Zs}\p{^Lu}$", "-+ a", "-+ A"),
        (r"\P{^Nd}", "1", "a"),
        (r"\p{Common}", "1", "a"),
        ("{a{,2}", "{a{,2}", "aa"),
        (r"\x41\x{42}\103", "ABC", "abc"),
        (r"\pL\p{Nd}\PN", "a1b", "1a1"),
        ("a{,2}", "a{,2}", "aa"),
        ("a{2}{", "aa{", "aa"),
        ("x{2,3}$", "xx", "x"),
        ("(a|b)*c", "ababc", "ab"),
        ("(|a)*b", "b", "a"),
        ("é|a", "a", "e"),
        ("[z-é]", "z", "a"),
        (r"#ephemeral$", "t#ephemeral", "ephemeral"),
        (r"\bfoo\b", "a.foo-b", "afoo"),
        (r"\Boo", "foo", "oo"),
        ("^((a{10}){10}){10}$", "a" * 1000, "a" * 999),
        ("^((a{1000}){0}){1000}b", "b", "ab"),
        ("^((a{500}){0,}){2}$", "a" * 500, "a" * 499),
        ("^(()|a{0}){1000}b", "b", "ab"),
    ],
)
def test_gos_syntax(pattern: str, matching: str, other: str | None) -> None:
    """Syntax specific to Go has the same meaning as in Go."""
    found = Pattern(pattern)

    assert found.search(matching)
    assert other is None or not found.search(other)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "(a",
        "a)",
        "[a",
        "[]",
        "[b-a]",
        r"[a-\d]",
        "[[:nothing:]]",
        "*",
        "a**",
        "a*{2}",
        "a|+",
        "{2}a",
        "a|{2,3}",
        "({2})",
        "(?i){2}",
        "a{2,1}",
        "a{1001}",
        "a{1,1001}",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?P<>a)",
        "(?P<a b>c)",
        "(?x)a",
        r"(a)\1",
        r"\8",
        r"\y",
        r"\x4",
        r"\x{110000}",
        r"\p{Klingon}",
        "a\\",
        "(" * 1000 + ")" * 1000,
        "((a{1000}){1000}){1000}",
        "(a{60}){60}",
        "(a{501}|b){2}",
        "((a{1000})*){2}",
        "((){1000}){2,}",
        "a{1000}" * (INSTRUCTIONS_MAX // 1000 + 1),
        "a" * (TEXT_MAX + 1),
    ],
)
def test_patterns_that_go_refuses_are_refused(pattern: str) -> None:
    """Patterns that Go refuses, and patterns that are too large, raise PatternError."""
    with pytest.raises(PatternError):
        Pattern(pattern)


@given(st.text("ab()[]{}*+?|\\^$.-:,12PpxQEi<>é", max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    """Any text is compiled or raises PatternError."""
    try:
        found = Pattern(pattern)
    except PatternError:
        return
    found.search("ab-12")


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "^(a|a)*$", "(.*a){12}$", "((a*)*)*b", "(a?){64}a{64}b"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """Patterns with exponential time in a backtracking matcher are matched quickly."""
    found = Pattern(pattern)

    assert not found.search("a" * 63 + "-")
    assert len(found) <= INSTRUCTIONS_MAX


def filled(part: str, before: str = "", after: str = "") -> str:
    """Return a pattern of about the maximum length that repeats one part."""
    return before + part * ((TEXT_MAX - len(before + after)) // len(part)) + after


@pytest.mark.parametrize(
    "pattern",
    [
        "(((){1000}){1000}){1000}",
        *map(filled, ["()", "(|)", "(a|b)", "((?:a|)|)", "a{2}", "a+", "{1", "{", r"\pL", r"\Q\E"]),
        *(
            filled(part, "(", "){1000}")
            for part in ("()", "|", "a{0}", "a{0,0}", "a{1}", "(|a)", "(?i)", "()*", "(?:|)+", "é")
        ),
        f"({'(' * 40 + 'a' + '){1}' * 40}){{1000}}",
        filled("(" * 40 + ")" * 40, "(", "){1000}"),
    ],
)
def test_no_pattern_takes_long_to_compile(pattern: str) -> None:
    """A pattern of maximum length is compiled or refused within 100,000 calls, about 20 ms."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"
        if calls > 100_000:
            raise TimeoutError

    sys.setprofile(count)
    try:
        Pattern(pattern)
    except PatternError:
        pass
    finally:
        sys.setprofile(None)


@given(PATTERNS, NAMES, st.integers(0, 30))
def test_steps_are_bounded(pattern: str, name: str, steps: int) -> None:
    """A search that exceeds its step budget raises TooLong; otherwise its result is right."""
    found, patience = Pattern(pattern), StepBudget(steps)
    try:
        answer = found.search(name, patience)
    except TooManySteps:
        assert patience.steps < 0
        return
    assert patience.steps >= 0
    assert found.search(name) == answer


def test_an_anchored_pattern_fails_in_few_steps() -> None:
    """A pattern anchored at the beginning fails in at most 10 steps."""
    patience = StepBudget(10)

    assert not Pattern("^clicks.*$").search("x" * 64, patience)
