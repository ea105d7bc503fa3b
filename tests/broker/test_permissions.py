"""An authd's answer: how it is parsed, what its patterns match, how long it is valid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.broker import permissions
from sparq.broker.permissions import (
    AUTHORIZATIONS_MAX,
    COST_MAX,
    PATTERNS_MAX,
    REMEMBERED_MAX,
    TEXT_MAX,
    TTL_MAX,
    AnswerError,
    PatternError,
    compiled,
    read,
)
from sparq.options.units import SECOND
from sparq.protocol.names import NAME_SIZE_MAX
from tests.broker.harness import BrokerHarness


def answer_of(**changes: Any) -> bytes:
    entry = {"topic": "^t", "channels": [".*"], "permissions": ["subscribe", "publish"]}
    return json.dumps({"ttl": 60, "authorizations": [entry], **changes}).encode()


def test_topics_and_channels_are_matched_by_pattern() -> None:
    """Topics and channels are matched by pattern; repeated questions get the same result."""
    permissions = read(answer_of(identity="me", identity_url=None))
    for _ in range(2):
        assert permissions.allows("t1")
        assert permissions.allows("t1", "c")
        assert permissions.allows("t1", None)
        assert not permissions.allows("u")
        assert not permissions.allows("u", None)
    assert ("me", "", 1) == (permissions.identity, permissions.identity_url, permissions.count)


def test_the_number_of_remembered_results_is_bounded() -> None:
    """At most `REMEMBERED_MAX` results are remembered; the newest replace the oldest."""
    permissions = read(answer_of())
    for number in range(REMEMBERED_MAX + 10):
        assert permissions.allows(f"t{number}")
    assert (f"t{number}", "") in permissions._known
    assert REMEMBERED_MAX == len(permissions._known)


COSTLY = COST_MAX // (64**3 // 6) + 1


def entries(count: int, **changes: Any) -> bytes:
    """An answer with `count` authorizations."""
    one = {"topic": "x", "channels": [], "permissions": ["publish"], **changes}
    return answer_of(authorizations=[one] * count)


@pytest.mark.parametrize(
    ("fits", "does_not", "why"),
    [
        (entries(AUTHORIZATIONS_MAX), entries(AUTHORIZATIONS_MAX + 1), "authorizations"),
        (
            entries(1, channels=["c"] * (PATTERNS_MAX - 1)),
            entries(1, channels=["c"] * PATTERNS_MAX),
            "patterns",
        ),
        (entries(1, channels=["^a*b*"]), entries(1, channels=["a*b*"] * COSTLY), "too long"),
        (entries(1, topic="a*b*"), entries(COSTLY, topic="a*b*"), "too long"),
    ],
    ids=["authorizations", "patterns", "channels", "topics"],
)
def test_an_answer_is_bounded(
    fits: bytes, does_not: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Authorizations, patterns and the longest search for them are limited."""
    monkeypatch.setattr(permissions, "re2", None)
    assert read(fits).count
    with pytest.raises(AnswerError, match=why):
        read(does_not)


def test_an_answer_expires_after_its_ttl() -> None:
    """An answer expires `ttl` seconds after `begin`; a huge ttl is capped at `TTL_MAX`."""
    permissions = read(answer_of())
    permissions.begin(5)
    assert not permissions.has_expired(60 * SECOND)
    assert permissions.has_expired(60 * SECOND + 5)
    forever = read(answer_of(ttl=10**30))
    forever.begin(0)
    assert not forever.has_expired(TTL_MAX * SECOND - 1)


def test_the_reply_is_compact_json() -> None:
    """The reply is compact JSON; characters that UTF-8 cannot encode become `?`."""
    reply = read(answer_of(identity="\ud800é")).reply_data()

    assert '{"identity":"?é","identity_url":"","permission_count":1}'.encode() == reply


@pytest.mark.parametrize(
    "changes",
    [{"ttl": 0}, {"ttl": None}, {"ttl": True}, {"identity": 1}, {"authorizations": {}}]
    + [{"authorizations": [one]} for one in (1, {"topic": "("}, {"channels": "x"})]
    + [{"authorizations": [{"permissions": ["all"]}]}],
    ids=repr,
)
def test_an_invalid_answer_is_refused(changes: dict[str, Any]) -> None:
    """An invalid answer raises AnswerError."""
    with pytest.raises(AnswerError):
        read(answer_of(**changes))


def test_a_missing_list_allows_nothing() -> None:
    """Missing or null authorizations allow nothing."""
    for answer in (b'{"ttl":1}', answer_of(authorizations=None)):
        assert 0 == read(answer).count


def test_commands_after_e_unauthorized_are_not_executed() -> None:
    """E_UNAUTHORIZED closes the connection: later commands are not executed.

    Earlier ones are answered.
    """
    harness = BrokerHarness(auth_required=True)
    client = harness.connect()
    harness.broker.authorize(client.session, read(answer_of()))
    client.say(b"PUB t\n\0\0\0\1xPUB u\n\0\0\0\1xPUB t\n\0\0\0\1x")

    reply, *answers = client.answers()
    assert 1 == json.loads(reply)["permission_count"]
    assert [b"OK", b'E_UNAUTHORIZED AUTH failed for PUB on "u" ""'] == answers
    assert client.session.closing
    assert 1 == harness.topic("t").message_count


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
