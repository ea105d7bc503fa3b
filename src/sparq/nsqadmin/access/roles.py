"""Roles: what somebody may do, and the words for it in options and in the token file.

1. A role includes the lower ones: administer, operate, read.
2. Seeing the bodies of messages is apart: no other role includes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from typing import Literal

Via = Literal["local", "header", "token", "nobody"]


class Role(IntFlag):
    """What somebody may do. `a in b`: who has `b` has `a`.

    Administering includes operating, and operating includes reading. The bodies of messages are
    apart: an administrator reads none unless that role is given, too.
    """

    NONE = 0
    READ = 1
    BODIES = 2 | READ
    OPERATE = 4 | READ
    ADMINISTER = 8 | OPERATE


ALL = Role.ADMINISTER | Role.BODIES
WORDS = {
    "read": Role.READ,
    "bodies": Role.BODIES,
    "operate": Role.OPERATE,
    "administer": Role.ADMINISTER,
}
NO_ROLE = "none"


class RoleError(ValueError):
    """A text that names no roles; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sent a request.

    Attributes:
        name: the user or the token's name; `local` for this machine; empty: nobody is named.
        roles: what the request may do.
        via: how the name is known.
    """

    name: str
    roles: Role
    via: Via

    def may(self, role: Role) -> bool:
        """Whether this one has a role."""
        return role in self.roles


def parse(text: str) -> Role:
    """The roles of `read`, `operate,bodies` or `none`.

    Raises:
        RoleError: it names none of them, or an unknown one.
    """
    if text == NO_ROLE:
        return Role.NONE
    roles = Role.NONE
    for word in text.split(","):
        role = WORDS.get(word.strip())
        if role is None:
            raise RoleError(f"{word.strip() or 'empty'!r} is no role: use {', '.join(WORDS)}")
        roles |= role
    return roles


def words(roles: Role) -> list[str]:
    """The names of the roles that somebody has, weakest first."""
    return [word for word, role in WORDS.items() if role in roles]


def parse_grants(texts: Iterable[str]) -> dict[str, Role]:
    """The roles by user of `alice=operate,bodies`; a user who is named twice has both.

    Raises:
        RoleError: one has no user, no equals sign or an unknown role.
    """
    grants: dict[str, Role] = {}
    for text in texts:
        user, equals, names = text.rpartition("=")
        if not equals or not user:
            raise RoleError(f"{text!r} must be USER=ROLE[,ROLE]")
        grants[user] = grants.get(user, Role.NONE) | parse(names)
    return grants
