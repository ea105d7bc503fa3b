"""Roles: which ones a role includes, and their names in token files."""

from __future__ import annotations

from sparq.daemon.access.roles import WORDS, Role


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
