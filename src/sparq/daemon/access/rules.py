"""The rules on access of nsqd and nsqlookupd: the roles, and what each request needs.

    read,publish:clicks*,consume:orders.?

1. A role includes the lower ones: administer includes operate, and operate read; consume includes
   bodies, and bodies read. Every role except none includes `FIND`: look up which nsqds have a
   topic. Reading the bodies of messages is separate: neither operate nor administer includes it,
   nor do they include publish or consume.
2. A grant is a role for all topics, or for topics that match a pattern (`protocol.names.fits`).
3. A route of the tables below has needs, and all of them must be met. A route without a row needs
   `ADMINISTER`, so that a forgotten route is not open. `Access.decide` applies the tables.
4. An action needs the role that its effect needs, whatever its name is. What deletes messages or
   names, changes settings, ends the process or inspects it needs `administer`. So does a channel's
   loss of messages: emptying, finishing, cancelling, and a seek that skips unfinished ones, which
   its handler checks. What can be undone needs `operate`.
5. A copy shows bodies of one topic to the consumers of another one, and is a publish there.

A test checks the tables against docs/access.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final, Literal, NamedTuple

from sparq.protocol.names import NAME_SIZE_MAX, fits, is_valid_pattern

Via = Literal["local", "header", "token", "nobody"]
"""How the name of a request's sender is known."""

ALL: Final = "*"
GRANTS_MAX: Final = 50
WORD_MAX: Final = 16
NO_ROLE: Final = "none"


class Role(IntFlag):
    """What a client may do. `a in b`: role `b` includes `a`."""

    NONE = 0
    FIND = 1
    READ = 2 | FIND
    BODIES = 4 | READ
    OPERATE = 8 | READ
    ADMINISTER = 16 | OPERATE
    PUBLISH = 32 | FIND
    CONSUME = 64 | BODIES
    REGISTER = 128 | FIND


ADMINS_WORDS: Final = {
    "read": Role.READ,
    "bodies": Role.BODIES,
    "operate": Role.OPERATE,
    "administer": Role.ADMINISTER,
    "publish": Role.PUBLISH,
}
"""nsqadmin's roles: those that include one another weakest first."""

WORDS: Final = {**ADMINS_WORDS, "consume": Role.CONSUME, "register": Role.REGISTER}


class RoleError(ValueError):
    """A text that does not name a valid role; the message says what to write."""


def role_of(word: str, words: Mapping[str, Role] = WORDS) -> Role:
    """Return a role by its name.

    Raises:
        RoleError: the name is not in `words`.
    """
    word = word.strip()
    role = words.get(word)
    if role is None:
        # A long word may be a token in the wrong column; do not repeat it.
        named = repr(word or "empty") if len(word) <= WORD_MAX else "a long word"
        raise RoleError(f"{named} is not a role: use {', '.join(words)}")
    return role


class Grant(NamedTuple):
    """A role, and the pattern of its topics."""

    role: Role
    topics: str = ALL


EVERYTHING: Final = tuple(Grant(role) for role in WORDS.values())


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


def roles_for(grants: Iterable[Grant], topic: str | None) -> Role:
    """Return the roles that grants give for a topic; "": for all topics, None: for at least one."""
    found = Role.NONE
    for grant in grants:
        if grant.topics == ALL or topic is None or (topic and fits(grant.topics, topic)):
            found |= grant.role
    return found


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, or the client of a connection.

    Attributes:
        name: the token's name; empty without a valid token.
        via: how the name is known.
        grants: its rights.
        reason: the reason for a refusal, if the grants are not enough.
        remote: the client's address.
        digest: the hash of its token; empty without one.
        expires: when its token expires, in seconds since the epoch.
    """

    name: str
    via: Via
    grants: tuple[Grant, ...]
    reason: str
    remote: str = ""
    user_agent: str = ""
    digest: bytes = field(default=b"", repr=False)
    expires: float = float("inf")

    def may(self, role: Role, topic: str | None = "") -> bool:
        """Whether it has a role for a topic; "": for all topics, None: for at least one."""
        return role in roles_for(self.grants, topic)


ALL_TOPICS: Final = ""
ANY_TOPIC: Final = "*"


class Need(NamedTuple):
    """A needed role and its scope.

    Attributes:
        topics: the argument of the query that names the topic, `ALL_TOPICS` or `ANY_TOPIC`. If a
            request does not name the topic, the role is needed for all topics.
    """

    role: Role
    topics: str = ALL_TOPICS

    def is_met(self, granted: Iterable[Grant], argument: Callable[[str], str]) -> bool:
        """Whether grants meet the need; `argument` returns one of the request, "" if missing."""
        topic = argument(self.topics) if self.topics not in (ALL_TOPICS, ANY_TOPIC) else ""
        return self.role in roles_for(granted, None if self.topics == ANY_TOPIC else topic)


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


def publishes(needs: Needs) -> bool:
    """Whether a route is a publish, which the audit log does not record."""
    return bool(needs) and all(need.role == Role.PUBLISH for need in needs)


def _rights(*rows: tuple[Needs, str]) -> Rights:
    """Make a table of needs and the routes that have them, as `METHOD /path /path ...`."""
    rights = {}
    for needs, routes in rows:
        method, *paths = routes.split()
        rights.update({(method, path): needs for path in paths})
    return rights


DEBUG: Final = _rights(
    (
        of_all(Role.ADMINISTER),
        "GET /debug/pprof/ /debug/pprof/profile /debug/pprof/heap /debug/pprof/goroutine"
        " /debug/pprof/block",
    )
)
"""The needs of the debug routes that every daemon has."""

NSQD: Final = {
    **_rights(
        (OPEN, "GET /ping /live"),
        (of_any(Role.FIND), "GET /info"),
        (of_topic(Role.READ), "GET /stats /topic/times /policies"),
        (of_all(Role.READ), "GET /metrics /drain"),
        (of_topic(Role.BODIES), "GET /channel/messages /topic/messages /topic/search /message"),
        (of_topic(Role.PUBLISH), "POST /pub /mpub"),
        (of_topic(Role.OPERATE), "POST /topic/create /topic/pause /topic/unpause /topic/drain"),
        (of_topic(Role.OPERATE), "DELETE /topic/drain"),
        (of_topic(Role.OPERATE), "POST /channel/create /channel/pause /channel/unpause"),
        (of_topic(Role.OPERATE), "POST /channel/seek /message/requeue"),
        # A connection may publish to any topic. Its client connects again.
        (of_all(Role.OPERATE), "POST /client/close"),
        # A letter names its target topic, and any publisher can forge a letter.
        (of_all(Role.OPERATE), "POST /message/redrive"),
        (of_all(Role.OPERATE), "GET /config/:opt"),
        (of_topic(Role.ADMINISTER), "POST /topic/empty /topic/delete"),
        (of_topic(Role.ADMINISTER), "POST /channel/empty /channel/delete"),
        (of_topic(Role.ADMINISTER), "POST /message/finish /message/cancel"),
        ((Need(Role.BODIES, "topic"), Need(Role.PUBLISH, "to")), "POST /message/copy"),
        (of_all(Role.ADMINISTER), "POST /drain /debug/freememory"),
        (of_all(Role.ADMINISTER), "PUT /policies /config/:opt /debug/setblockrate"),
        (of_all(Role.ADMINISTER), "DELETE /policies /drain"),
    ),
    **DEBUG,
}
"""The needs of each route of nsqd, if there is a token file."""

PERMISSIONS: Final = {Role.PUBLISH: "publish", Role.CONSUME: "subscribe"}
"""The permissions of AUTH that roles give. PUB, MPUB and DPUB need `publish` for their topic; SUB,
ATTACH, ENDS, READ and COMMIT need `subscribe` (`nsqd.auth.CHECKED`)."""

NSQLOOKUPD: Final = {
    **_rights(
        (OPEN, "GET /ping /live"),
        # `/nodes` returns the addresses of all nsqds and the names of their topics.
        (of_any(Role.FIND), "GET /info /nodes"),
        # A client with any role for a topic may find its nsqds.
        (of_topic(Role.FIND), "GET /lookup /channels"),
        (of_all(Role.READ), "GET /topics /metrics"),
        (of_topic(Role.OPERATE), "POST /topic/create /channel/create"),
        (of_topic(Role.ADMINISTER), "POST /topic/delete /topic/tombstone /channel/delete"),
        (of_all(Role.ADMINISTER), "GET /debug"),
    ),
    **DEBUG,
}
"""The needs of each route of nsqlookupd. An nsqd needs `REGISTER` for each topic (`guard`)."""
