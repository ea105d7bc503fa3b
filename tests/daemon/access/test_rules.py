"""The rules on access: roles, grants, and the needs of each route of nsqd and nsqlookupd."""

from __future__ import annotations

import pytest

from sparq.daemon.access import rules
from sparq.daemon.access.rules import (
    ADMINS_WORDS,
    DEBUG,
    OPEN,
    UNLISTED,
    WORDS,
    Need,
    Needs,
    Role,
    RoleError,
    of_all,
    of_any,
    of_topic,
    role_of,
)


def test_a_role_includes_the_lower_ones() -> None:
    """`operate` and `administer` do not include `bodies`, `publish` or `consume`."""
    has = {
        word: [other for other, lower in WORDS.items() if lower in role and other != word]
        for word, role in WORDS.items()
    }

    assert {
        "read": [],
        "bodies": ["read"],
        "operate": ["read"],
        "administer": ["read", "operate"],
        "publish": [],
        "consume": ["read", "bodies"],
        "register": [],
    } == has
    assert all(Role.FIND in role for role in WORDS.values())


def test_a_role_is_found_by_its_name() -> None:
    """``role_of`` finds a role by name; nsqadmin has five, and the error lists them."""
    assert Role.CONSUME == role_of(" consume ")
    assert Role.BODIES == role_of("bodies", ADMINS_WORDS)
    with pytest.raises(RoleError, match="'consume' is not a role: use read, bodies, operate, adm"):
        role_of("consume", ADMINS_WORDS)
    with pytest.raises(RoleError, match="'empty' is not a role"):
        role_of("")


def test_a_token_in_the_wrong_column_is_not_repeated() -> None:
    """An error does not contain a long word: it may be a token, and errors are logged."""
    with pytest.raises(RoleError, match=r"^a long word is not a role"):
        role_of("nsq_of-some-length-that-is-secret")


def is_met(needs: Needs, granted: str, **arguments: str) -> bool:
    held = rules.parse(granted)
    return all(need.is_met(held, lambda name: arguments.get(name, "")) for need in needs)


COPY = (Need(Role.OPERATE, "topic"), Need(Role.OPERATE, "to"))


@pytest.mark.parametrize(
    ("needs", "granted", "arguments", "expected"),
    [
        (of_topic(Role.OPERATE), "operate", {"topic": "clicks"}, True),
        (of_topic(Role.OPERATE), "administer", {"topic": "clicks"}, True),  # it includes operate
        (of_topic(Role.OPERATE), "read", {"topic": "clicks"}, False),
        (of_topic(Role.OPERATE), "operate:clicks*", {"topic": "clicks2"}, True),
        (of_topic(Role.OPERATE), "operate:clicks*", {"topic": "orders"}, False),
        (of_topic(Role.OPERATE), "operate", {}, True),
        # A request without a topic is about all topics.
        (of_topic(Role.OPERATE), "operate:**", {}, False),
        (of_all(Role.READ), "read", {"topic": "t"}, True),
        (of_all(Role.READ), "read:t*", {"topic": "t"}, False),
        (of_any(Role.READ), "read:t*", {"topic": "other"}, True),
        (of_any(Role.READ), "none", {"topic": "t"}, False),
        # All needs of a row must be met.
        (COPY, "operate:a,operate:b", {"topic": "a", "to": "b"}, True),
        (COPY, "operate:a", {"topic": "a", "to": "b"}, False),
        (COPY, "operate:b", {"topic": "a", "to": "b"}, False),
    ],
)
def test_a_route_needs_its_roles_for_the_topics_that_a_request_names(
    needs: Needs, granted: str, arguments: dict[str, str], expected: bool
) -> None:
    """A role counts for the topics that match its pattern, without a pattern for all."""
    assert expected == is_met(needs, granted, **arguments)


def test_open_needs_no_role_and_unlisted_routes_need_administer() -> None:
    """`OPEN` needs no role; unlisted routes and debug routes need `administer` for all topics."""
    assert is_met(OPEN, "none")
    for needs in (UNLISTED, *DEBUG.values()):
        assert is_met(needs, "administer")
        assert not is_met(needs, "operate,publish,consume,register")
        assert not is_met(needs, "administer:t*", topic="t")


def test_a_role_applies_to_the_topics_of_its_pattern() -> None:
    """A role applies to the topics that match its pattern; without a pattern, to all."""
    found = rules.parse("publish:clicks*,consume:orders.?,publish:x#ephemeral,read")

    may = {
        name: [word for word, role in WORDS.items() if role in rules.roles_for(found, name)]
        for name in ("clicks", "clicks.dead", "orders.1", "orders.12", "x", "x#ephemeral", "*", "")
    }
    assert {
        "clicks": ["read", "publish"],
        "clicks.dead": ["read", "publish"],
        "orders.1": ["read", "bodies", "consume"],
        "orders.12": ["read"],
        "x": ["read"],
        "x#ephemeral": ["read", "publish"],
        "*": ["read"],  # a request's own text is never a pattern
        "": ["read"],
    } == may
    assert Role.READ == rules.roles_for(found, "")
    assert Role.READ | Role.PUBLISH | Role.CONSUME == rules.roles_for(found, None)


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
        rules.parse(text)
