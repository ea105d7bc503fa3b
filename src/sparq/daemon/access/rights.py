"""What a route needs of whoever asks for it: the rows of a daemon's table of rights.

1. A row has needs, and all of them must be met. A need is a role, and where it must be had: for
   the topic that an argument names, for all topics, or for any.
2. Where a request does not name the topic, the role must be had for all of them.
3. A route without a row needs `ADMINISTER`: what nobody thought of is for few.
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
    """A role, and for which topics it is needed.

    Attributes:
        topics: the argument of the query that names the topic, `ALL_TOPICS` or `ANY_TOPIC`.
    """

    role: Role
    topics: str = ALL_TOPICS

    def is_met(self, granted: Iterable[Grant], argument: Callable[[str], str]) -> bool:
        """Whether somebody with these grants may.

        Args:
            granted: what he has.
            argument: an argument of the request by its name, "" without it.
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
"""Everybody may."""

UNLISTED: Final[Needs] = (Need(Role.ADMINISTER),)


def of_topic(role: Role) -> Needs:
    """A role for the topic that the argument `topic` names."""
    return (Need(role, "topic"),)


def of_all(role: Role) -> Needs:
    """A role for all topics."""
    return (Need(role),)


def of_any(role: Role) -> Needs:
    """A role for one topic or another."""
    return (Need(role, ANY_TOPIC),)


_PPROF: Final = ("", "cmdline", "profile", "symbol", "heap", "goroutine", "block", "threadcreate")
DEBUG: Final[Rights] = {
    **{("GET", f"/debug/pprof/{name}"): of_all(Role.ADMINISTER) for name in _PPROF},
    ("POST", "/debug/pprof/symbol"): of_all(Role.ADMINISTER),
}
"""The debug routes that every daemon has."""
