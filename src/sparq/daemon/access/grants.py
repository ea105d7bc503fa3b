"""Grants: the roles of a token, each for all topics or for topics that match a pattern.

    read,publish:clicks*,consume:orders.?

In a pattern `*` matches any text, including none, and `?` matches one character, as in policies.
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
"""Maximum characters of a pattern, as for a topic's name."""

_PATTERN: Final = re.compile(r"[.a-zA-Z0-9_*?-]+(#ephemeral)?")
_COMPILED: Final = 10_000


class Grant(NamedTuple):
    """A role, and the pattern of its topics."""

    role: Role
    topics: str = ALL


def parse(text: str, words: Mapping[str, Role] = WORDS) -> tuple[Grant, ...]:
    """Parse grants such as `read,publish:clicks*`; `none` gives no grants.

    Args:
        text: roles, separated by commas.
        words: the allowed roles by name.

    Raises:
        RoleError: a role or a pattern is not valid.
    """
    if text == NO_ROLE:
        return ()
    found = []
    for part in text.split(","):
        word, colon, pattern = part.partition(":")
        role = role_of(word, words)
        if colon and (len(pattern) > PATTERN_MAX or not _PATTERN.fullmatch(pattern)):
            raise RoleError(
                f"role {word}: invalid topic pattern after the colon: use 1 to {PATTERN_MAX}"
                " characters from [.a-zA-Z0-9_-*?]"
            )
        found.append(Grant(role, pattern or ALL))
    if len(found) > GRANTS_MAX:
        raise RoleError(f"{len(found)} roles: use at most {GRANTS_MAX} for a token")
    return tuple(found)


def anywhere(grants: Iterable[Grant]) -> Role:
    """Return all roles of the grants, each valid for at least some topics."""
    return union(grant.role for grant in grants)


def everywhere(grants: Iterable[Grant]) -> Role:
    """Return the roles that are valid for all topics."""
    return union(grant.role for grant in grants if grant.topics == ALL)


def for_topic(grants: Iterable[Grant], topic: str) -> Role:
    """Return the roles that are valid for a topic."""
    return union(grant.role for grant in grants if fits(grant.topics, topic))


def union(roles: Iterable[Role]) -> Role:
    """Combine roles."""
    found = Role.NONE
    for role in roles:
        found |= role
    return found


def fits(pattern: str, topic: str) -> bool:
    """Whether a topic's name matches a pattern."""
    return pattern == ALL or _compiled(pattern).fullmatch(topic) is not None


@lru_cache(_COMPILED)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
