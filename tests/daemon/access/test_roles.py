"""Roles: which other roles each includes, and their names in token files."""

from __future__ import annotations

import pytest

from sparq.daemon.access.roles import ADMINS_WORDS, WORDS, Role, RoleError, role_of


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
