"""Patterns of authds: what they match, with each engine, and which need `google-re2`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.broker import permissions
from sparq.broker.permissions import COST_MAX, TEXT_MAX, PatternError, compiled
from sparq.protocol.names import NAME_SIZE_MAX

ENGINE = permissions.re2
LETTERS = ["a", "b", ".", "[ab]", "[^a]", "[a-c_]", r"\d", r"\w", r"\."]
ATOMS = [*LETTERS, "^", "$", r"\b", r"\z", "(?:)"]
REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{2,}", "{0}"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(st.sampled_from(LETTERS), REPEATS).map("".join),
        inner.map(lambda part: f"(?:{part})?"),
    )


PATTERNS = st.builds(
    str.__add__, st.sampled_from(["", "(?i)"]), st.recursive(st.sampled_from(ATOMS), larger)
)
NAMES = st.text("aAbBc.-_1", max_size=10)


@pytest.fixture(params=["python", "re2"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine in turn."""
    if request.param == "python":
        monkeypatch.setattr(permissions, "re2", None)
    elif ENGINE is None:
        pytest.skip("needs google-re2")


def with_python(text: str) -> permissions.Pattern | None:
    """A pattern of Python's engine; None: it needs the other one."""
    before, permissions.re2 = permissions.re2, None
    try:
        return compiled(text)[0]
    except PatternError:
        return None
    finally:
        permissions.re2 = before


@pytest.mark.skipif(ENGINE is None, reason="needs google-re2")
@given(PATTERNS, NAMES)
def test_the_engines_agree(text: str, name: str) -> None:
    """A pattern that Python's engine takes matches the same names as Go's."""
    ours = with_python(text)
    if ours is not None:
        theirs = compiled(text)[0]
        assert (ours.search(name) is None) == (theirs.search(name) is None)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("clicks", "my-clicks-2", "click"),
        ("", "anything", None),
        (".*", "", None),
        ("^a$", "a", "aa"),
        (r"\Aab\z", "ab", "xab"),
        (r"^a\.b$", "a.b", "axb"),
        ("(?i)CLICKS", "clicks", "clics"),
        ("[]a]", "]", "b"),
        ("[^-]", "a", "-"),
        (r"\_[\_]", "__", "ab"),
        ("x{2,3}$", "xx", "x"),
        ("^(clicks|orders)-[a-z0-9]+$", "orders-eu", "orders"),
        (r"^clicks\.(eu|us)?.*#ephemeral$", "clicks.x#ephemeral", "clicks.x"),
    ],
)
def test_patterns_of_both_languages(text: str, matching: str, other: str | None) -> None:
    """What has one meaning in Go and Python works with both engines."""
    found, cost = compiled(text)

    assert found.search(matching)
    assert other is None or not found.search(other)
    assert 0 < cost <= COST_MAX


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "text",
    [
        "(",
        "a)",
        "[a",
        "[b-a]",
        "*",
        "a**",
        "(?=a)",
        r"(a)\1",
        r"\y",
        "a\\",
        "\ud800",
        "x" * (TEXT_MAX + 1),
    ],
)
def test_patterns_of_neither(text: str) -> None:
    """What Go refuses is refused by both engines."""
    with pytest.raises(PatternError):
        compiled(text)


@pytest.mark.parametrize(
    "text",
    [
        *("(a|b)*c", "(a+)+$", "(a{2}){3}", "(a*)*b", "[[:alpha:]]", r"\pL", r"\Qa\E", "(?P<x>a)"),
        *("(?i:a)b", "a{,2}", "a*+", "a{2}+", "[[a]", "[a--b]", "[a||b]", r"[\pL]"),
        *("a*b*c*d*", "(a|a)" * 20, "a?" * 30, "(a|b)?" * 10, "^a|b*c*d*e*"),
    ],
)
def test_patterns_of_google_re2_alone(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's engine refuses, and names the package, what it reads otherwise or takes long for."""
    monkeypatch.setattr(permissions, "re2", None)
    with pytest.raises(PatternError, match="google-re2"):
        compiled(text)


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("^a$", 1),
        ("a", NAME_SIZE_MAX),
        ("^a.*$", NAME_SIZE_MAX),
        ("^(a|b|c)-(d|e)$", 6),
        ("^a|b", 2 * NAME_SIZE_MAX),
        ("^a?b??c$", 8),
    ],
)
def test_the_cost_of_a_search(text: str, cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each repeat, choice and start multiplies the steps."""
    monkeypatch.setattr(permissions, "re2", None)
    assert cost == compiled(text)[1]
