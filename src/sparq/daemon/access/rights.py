"""The rows of a daemon's table of rights: the roles that each route needs.

1. A row has needs, and all of them must be met. A need is a role and its scope: the topic that an
   argument names, all topics, or any topic.
2. If a request does not name the topic, the role is needed for all topics.
3. A route without a row needs `ADMINISTER`, so that a forgotten route is not open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from sparq.daemon.access import grants
from sparq.daemon.access.grants import Grant
from sparq.daemon.access.roles import Role

ALL_TOPICS: Final = ""
ANY_TOPIC: Final = "*"


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
        if self.role in grants.everywhere(granted):
            return True
        if self.topics == ALL_TOPICS:
            return False
        if self.topics == ANY_TOPIC:
            return self.role in grants.anywhere(granted)
        topic = argument(self.topics)
        return bool(topic) and self.role in grants.for_topic(granted, topic)


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
