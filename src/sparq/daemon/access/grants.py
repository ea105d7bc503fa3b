"""Grants: the roles that a token has, each for all topics or for those that fit a pattern.

    read,publish:clicks*,consume:orders.?

A pattern is a name in which `*` stands for any text, also none, and `?` for one character, as in
policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import lru_cache
from typing import Final, NamedTuple

from sparq.daemon.access.roles import NO_ROLE, WORDS, Role, RoleError, role_of

ALL: Final = "*"
GRANTS_MAX: Final = 50
PATTERN_MAX: Final = 64
"""Characters of a pattern, as of a topic's name."""

_PATTERN: Final = re.compile(r"[.a-zA-Z0-9_*?-]+(#ephemeral)?")
_COMPILED: Final = 10_000


class Grant(NamedTuple):
    """A role, and the pattern of the topics that it is for."""

    role: Role
    topics: str = ALL


def parse(text: str, words: Mapping[str, Role] = WORDS) -> tuple[Grant, ...]:
    """The grants of `read,publish:clicks*`; of `none` there are none.

    Args:
        text: roles, with commas between them.
        words: the roles that may be named.

    Raises:
        RoleError: one is no role, or its pattern is none.
    """
    if text == NO_ROLE:
        return ()
    found = []
    for part in text.split(","):
        word, colon, pattern = part.partition(":")
        role = role_of(word, words)
        if colon and (len(pattern) > PATTERN_MAX or not _PATTERN.fullmatch(pattern)):
            raise RoleError(
                f"{word} has no pattern of topics behind its colon: use 1 to {PATTERN_MAX}"
                " characters from [.a-zA-Z0-9_-*?]"
            )
        found.append(Grant(role, pattern or ALL))
    if len(found) > GRANTS_MAX:
        raise RoleError(f"{len(found)} roles: use at most {GRANTS_MAX} for a token")
    return tuple(found)


def anywhere(grants: Iterable[Grant]) -> Role:
    """What somebody with these grants may do with one topic or another."""
    return union(grant.role for grant in grants)


def everywhere(grants: Iterable[Grant]) -> Role:
    """What he may do with every topic."""
    return union(grant.role for grant in grants if grant.topics == ALL)


def for_topic(grants: Iterable[Grant], topic: str) -> Role:
    """What he may do with a topic."""
    return union(grant.role for grant in grants if fits(grant.topics, topic))


def union(roles: Iterable[Role]) -> Role:
    """All these roles together."""
    found = Role.NONE
    for role in roles:
        found |= role
    return found


def fits(pattern: str, topic: str) -> bool:
    """Whether a topic has a name of this pattern."""
    return pattern == ALL or _compiled(pattern).fullmatch(topic) is not None


@lru_cache(_COMPILED)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
