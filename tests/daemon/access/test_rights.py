"""Grants of tokens, and the rows of a table of rights: which grants meet which needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparq.daemon.access import rights, tokens
from sparq.daemon.access.rights import (
    DEBUG,
    OPEN,
    UNLISTED,
    Need,
    Needs,
    of_all,
    of_any,
    of_topic,
)
from sparq.daemon.access.roles import ADMINS_WORDS, WORDS, Role, RoleError
from sparq.daemon.access.tokens import Form


def is_met(needs: Needs, granted: str, **arguments: str) -> bool:
    held = rights.parse(granted)
    return all(need.is_met(held, lambda name: arguments.get(name, "")) for need in needs)


@pytest.mark.parametrize(
    ("granted", "topic", "expected"),
    [
        ("operate", "clicks", True),
        ("operate", "", True),
        ("administer", "clicks", True),  # it includes operate
        ("read", "clicks", False),
        ("operate:clicks*", "clicks2", True),
        ("operate:clicks*", "orders", False),
        ("operate:**", "", False),  # a request without a topic is about all topics
        ("none", "clicks", False),
    ],
)
def test_of_topic_needs_the_role_for_the_topic_of_the_request(
    granted: str, topic: str, expected: bool
) -> None:
    """``of_topic`` needs the role for all topics, or for a pattern that matches the topic."""
    assert expected == is_met(of_topic(Role.OPERATE), granted, topic=topic)


@pytest.mark.parametrize(
    ("granted", "all_topics", "any_topic"),
    [("read", True, True), ("read:t*", False, True), ("none", False, False)],
)
def test_of_all_needs_the_role_for_all_topics_and_of_any_for_one(
    granted: str, all_topics: bool, any_topic: bool
) -> None:
    """``of_all`` needs the role for all topics, ``of_any`` for any; the request's is ignored."""
    assert all_topics == is_met(of_all(Role.READ), granted, topic="t")
    assert any_topic == is_met(of_any(Role.READ), granted, topic="other")


def test_every_need_of_a_row_must_be_met() -> None:
    """A copy needs the role for its source topic and for its target topic."""
    both = (Need(Role.OPERATE, "topic"), Need(Role.OPERATE, "to"))

    assert is_met(both, "operate:a,operate:b", topic="a", to="b")
    assert not is_met(both, "operate:a", topic="a", to="b")
    assert not is_met(both, "operate:b", topic="a", to="b")


def test_open_needs_no_role_and_unlisted_routes_need_administer() -> None:
    """`OPEN` needs no role; unlisted routes and debug routes need `administer` for all topics."""
    assert is_met(OPEN, "none")
    for needs in (UNLISTED, *DEBUG.values()):
        assert is_met(needs, "administer")
        assert not is_met(needs, "operate,publish,consume,register")
        assert not is_met(needs, "administer:t*", topic="t")


HASH = "1b0f7a3d5c9e2f4a6b8c0d1e3f5a7b9c1d3e5f708192a3b4c5d6e7f8091a2b3c"
NOW = 1_800_000_000.0


def test_a_role_applies_to_the_topics_of_its_pattern() -> None:
    """A role applies to the topics that match its pattern; without a pattern, to all."""
    found = rights.parse("publish:clicks*,consume:orders.?,publish:x#ephemeral,read")

    may = {
        name: [word for word, role in WORDS.items() if role in rights.for_topic(found, name)]
        for name in ("clicks", "clicks.dead", "orders.1", "orders.12", "x", "x#ephemeral", "")
    }
    assert {
        "clicks": ["read", "publish"],
        "clicks.dead": ["read", "publish"],
        "orders.1": ["read", "bodies", "consume"],
        "orders.12": ["read"],
        "x": ["read"],
        "x#ephemeral": ["read", "publish"],
        "": ["read"],
    } == may
    assert Role.READ == rights.everywhere(found)
    assert Role.READ | Role.PUBLISH | Role.CONSUME == rights.anywhere(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "read:",
        "read:a b",
        "read:[a]",
        "read:a/b",
        f"read:{'a' * 65}",
        ",".join(["read"] * 51),
    ],
)
def test_an_invalid_grant_raises(text: str) -> None:
    """An invalid grant raises RoleError, so that a misspelling grants neither less nor more."""
    with pytest.raises(RoleError):
        rights.parse(text)


def in_file(folder: Path, text: str) -> str:
    path = folder / "tokens"
    path.write_text(text)
    return str(path)


def test_a_comment_may_follow_a_pattern(tmp_path: Path) -> None:
    """`#ephemeral` ends a pattern; any other `#` begins a comment."""
    text = (
        f"#ephemeral things\nbob publish:a#ephemeral,read {HASH}#his\neve read {HASH[::-1]} # hers"
    )
    found = tokens.read(in_file(tmp_path, text))

    assert 2 == len(found)
    (bob, eve) = found._tokens
    assert ("a#ephemeral", "*") == tuple(grant.topics for grant in bob.grants)
    assert Role.READ == eve.roles


def test_the_line_anybody_grants_roles_without_a_token(tmp_path: Path) -> None:
    """The line `anybody` grants roles without a token, and is not counted as a token."""
    found = tokens.read(in_file(tmp_path, "anybody read:public* -\n"))

    assert 0 == len(found)
    assert Role.READ == rights.for_topic(found.anybody, "public.1")
    assert Role.NONE == rights.for_topic(found.anybody, "private")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("anybody publish -", "at most the role read"),
        ("anybody read,bodies -", "at most the role read"),
        (f"anybody read {HASH}", "at most the role read"),
        ("anybody read - 2030-01-01", "at most the role read"),
        ("bob read -", "64 hex digits"),
        ("anybody read -\nanybody read -", "already in the file"),
    ],
)
def test_the_line_anybody_may_grant_only_read(tmp_path: Path, line: str, why: str) -> None:
    """A line `anybody` with more than `read`, a hash or an expiry is refused."""
    with pytest.raises(tokens.TokenFileError, match=f"line [12]: .*{why}"):
        tokens.read(in_file(tmp_path, line))


def test_nsqadmin_refuses_roles_and_patterns_it_does_not_support(tmp_path: Path) -> None:
    """nsqadmin refuses patterns and roles that it does not support, instead of ignoring them."""
    form = Form(ADMINS_WORDS, is_whole=True)
    for granted, why in (
        ("read:clicks*", "without a pattern"),
        ("consume", "is not a role: use read, bodies, operate, administer, publish"),
    ):
        path = in_file(tmp_path, f"bob {granted} {HASH}")
        with pytest.raises(tokens.TokenFileError, match=re.escape(why)):
            tokens.read(path, form)


def test_in_force_counts_the_tokens_that_have_not_expired(tmp_path: Path) -> None:
    """``in_force`` counts the tokens that have not expired; `/metrics` reports it."""
    found = tokens.read(in_file(tmp_path, f"bob read {HASH} 2020-01-01\neve read {HASH[::-1]}"))

    assert (2, 1) == (len(found), found.in_force(NOW))
