"""Roles: which ones a role includes, and their names in token files."""

from __future__ import annotations

import pytest

from sparq.daemon.access.roles import ADMINS_WORDS, WORDS, Role, RoleError, role_of


def test_a_role_includes_the_lower_ones() -> None:
    """Bodies, publishing and consuming are apart from what operators do."""
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
    """nsqadmin knows only four of them; the error lists what is allowed."""
    assert Role.CONSUME == role_of(" consume ")
    assert Role.BODIES == role_of("bodies", ADMINS_WORDS)
    with pytest.raises(RoleError, match="'consume' is not a role: use read, bodies, operate, adm"):
        role_of("consume", ADMINS_WORDS)
    with pytest.raises(RoleError, match="'empty' is not a role"):
        role_of("")


def test_a_token_in_the_wrong_column_is_not_repeated() -> None:
    """An error ends in a log."""
    with pytest.raises(RoleError, match=r"^a long word is not a role"):
        role_of("nsq_of-some-length-that-is-secret")
