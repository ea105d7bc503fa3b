"""Grants, the roles of a token; and rights, the roles that a route needs.

    read,publish:clicks*,consume:orders.?

1. A grant is a role for all topics, or for topics that match a pattern (`protocol.names.fits`).
2. A row of a daemon's table of rights has needs, and all of them must be met. A need is a role and
   its scope: the topic that an argument names, all topics, or any topic. If a request does not name
   the topic, the role is needed for all topics.
3. A route without a row needs `ADMINISTER`, so that a forgotten route is not open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from sparq.daemon.access.roles import NO_ROLE, WORDS, Role, RoleError, role_of
from sparq.protocol.names import NAME_SIZE_MAX, fits, is_valid_pattern

ALL: Final = "*"
GRANTS_MAX: Final = 50
ALL_TOPICS: Final = ""
ANY_TOPIC: Final = "*"


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
        if colon and not is_valid_pattern(pattern):
            raise RoleError(
                f"role {word}: invalid topic pattern after the colon: use 1 to {NAME_SIZE_MAX}"
                " characters from [.a-zA-Z0-9_-*?]"
            )
        found.append(Grant(role, pattern or ALL))
    if len(found) > GRANTS_MAX:
        raise RoleError(f"{len(found)} roles: use at most {GRANTS_MAX} for a token")
    return tuple(found)


def anywhere(grants: Iterable[Grant]) -> Role:
    """Return all roles of the grants, each valid for at least some topics."""
    return _union(grants)


def everywhere(grants: Iterable[Grant]) -> Role:
    """Return the roles that are valid for all topics."""
    return _union(grant for grant in grants if grant.topics == ALL)


def for_topic(grants: Iterable[Grant], topic: str) -> Role:
    """Return the roles that are valid for a topic."""
    return _union(grant for grant in grants if fits(grant.topics, topic))


def _union(grants: Iterable[Grant]) -> Role:
    found = Role.NONE
    for grant in grants:
        found |= grant.role
    return found


class Need(NamedTuple):
    """A needed role and its scope.

    Attributes:
        topics: the argument of the query that names the topic, `ALL_TOPICS` or `ANY_TOPIC`.
    """

    role: Role
    topics: str = ALL_TOPICS

    def is_met(self, granted: Iterable[Grant], argument: Callable[[str], str]) -> bool:
        """Whether grants meet the need.

        Args:
            granted: the client's grants.
            argument: returns an argument of the request by its name, "" if it is missing.
        """
        if self.role in everywhere(granted):
            return True
        if self.topics == ALL_TOPICS:
            return False
        if self.topics == ANY_TOPIC:
            return self.role in anywhere(granted)
        topic = argument(self.topics)
        return bool(topic) and self.role in for_topic(granted, topic)


Needs = tuple[Need, ...]
Rights = Mapping[tuple[str, str], Needs]
"""The needs of each route, by its method and path."""

OPEN: Final[Needs] = ()
"""No role is needed."""

UNLISTED: Final[Needs] = (Need(Role.ADMINISTER),)


def of_topic(role: Role) -> Needs:
    """Need a role for the topic in the argument `topic`."""
    return (Need(role, "topic"),)


def of_all(role: Role) -> Needs:
    """Need a role for all topics."""
    return (Need(role),)


def of_any(role: Role) -> Needs:
    """Need a role for at least one topic."""
    return (Need(role, ANY_TOPIC),)


_PPROF: Final = ("", "cmdline", "profile", "symbol", "heap", "goroutine", "block", "threadcreate")
DEBUG: Final[Rights] = {
    **{("GET", f"/debug/pprof/{name}"): of_all(Role.ADMINISTER) for name in _PPROF},
    ("POST", "/debug/pprof/symbol"): of_all(Role.ADMINISTER),
}
"""The needs of the debug routes that every daemon has."""
