"""The roles that nsqadmin's routes and actions require, and the roles that users have.

1. nsqadmin uses five of the roles in `sparq.daemon.access.roles`.
2. The server is built from the table of rights: if a route has no row, `right_of` raises and the
   server does not start.
3. If the body of a request names the action, the table has the role that all actions of the route
   need at least. `ACTION_ROLES` has the role of the action itself.
4. Actions that delete messages, topics or channels need `administer`. So do changes of policies,
   because without a policy nsqd may delete messages that it kept, and draining a node, because that
   may end its process. Other actions can be undone and need `operate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sparq.daemon.access.roles import ADMINS_WORDS, NO_ROLE, Role, RoleError, Via, role_of

__all__ = [
    "ACTION_ROLES",
    "ALL",
    "READING",
    "RIGHTS",
    "Identity",
    "Right",
    "Role",
    "RoleError",
    "parse",
    "parse_grants",
    "right_of",
    "words",
]

ALL = Role.ADMINISTER | Role.BODIES | Role.PUBLISH


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a request.

    Attributes:
        name: the user's or the token's name; `local` for this machine; "" if anonymous.
        roles: the sender's roles.
        via: how the sender was identified.
    """

    name: str
    roles: Role
    via: Via

    def may(self, role: Role) -> bool:
        """Whether the sender has this role."""
        return role in self.roles


def parse(text: str) -> Role:
    """Parse a list of roles, such as `read`, `operate,bodies` or `none`.

    Raises:
        RoleError: the text names no role or an unknown one.
    """
    if text == NO_ROLE:
        return Role.NONE
    roles = Role.NONE
    for word in text.split(","):
        roles |= role_of(word, ADMINS_WORDS)
    return roles


def words(roles: Role) -> list[str]:
    """List the names of a set of roles, in the order of `ADMINS_WORDS`."""
    return [word for word, role in ADMINS_WORDS.items() if role in roles]


def parse_grants(texts: Iterable[str]) -> dict[str, Role]:
    """Parse texts such as `alice=operate,bodies` into roles by user.

    A user that is named twice has the roles of both texts.

    Raises:
        RoleError: a text has no user, no equals sign or an unknown role.
    """
    grants: dict[str, Role] = {}
    for text in texts:
        user, equals, names = text.rpartition("=")
        if not equals or not user:
            raise RoleError(f"{text!r} must be USER=ROLE[,ROLE]")
        grants[user] = grants.get(user, Role.NONE) | parse(names)
    return grants


_PARAMETER: Final = re.compile(r":[A-Za-z_]\w*")
READING: Final = ("GET", "HEAD", "OPTIONS")


class Right(NamedTuple):
    """A route and the role that it needs; a `config` route checks the client's network instead."""

    method: str
    path: str
    role: Role
    config: bool = False

    @property
    def writes(self) -> bool:
        """Whether the route changes state."""
        return self.method not in READING


ACTION_ROLES: Final = {
    **{
        f"{verb}_{what}": role
        for verb, role in (
            ("create", Role.OPERATE),
            ("pause", Role.OPERATE),
            ("unpause", Role.OPERATE),
            ("empty", Role.ADMINISTER),
            ("delete", Role.ADMINISTER),
        )
        for what in ("topic", "channel")
    },
    **{
        f"{verb}_message": role
        for verb, role in (
            ("requeue", Role.OPERATE),
            ("redrive", Role.OPERATE),
            # A copy reads bodies and publishes them to another topic.
            ("copy", Role.OPERATE | Role.BODIES | Role.PUBLISH),
            ("publish", Role.PUBLISH),
            ("finish", Role.ADMINISTER),
            ("cancel", Role.ADMINISTER),
        )
    },
    "seek_channel": Role.OPERATE,
    # As nsqd's own table has it: the client connects again.
    "close_client": Role.OPERATE,
    "tombstone_topic_producer": Role.ADMINISTER,
    **{f"{verb}_policies": Role.ADMINISTER for verb in ("set", "drop")},
    **{f"{verb}_node": Role.ADMINISTER for verb in ("drain", "undrain")},
}
"""The role that each action needs. Names are those of NSQ's notifications where NSQ has one."""

_READ: Final = (
    *("/", "/live", "/counter", "/lookup", "/metrics", "/render"),
    *("/topics", "/topics/:topic", "/topics/:topic/:channel", "/nodes", "/nodes/:node"),
    *("/messages", "/message", "/replay", "/dead-letters", "/policies"),
    *("/connections", "/connection"),
    *("/api/topics", "/api/topics/:topic", "/api/topics/:topic/:channel"),
    *("/api/nodes", "/api/nodes/:node", "/api/counter", "/api/graphite"),
    *("/api/v2/overview", "/api/v2/attention", "/api/v2/history", "/api/v2/clients"),
    *("/api/v2/topics", "/api/v2/topics/:topic", "/api/v2/topics/:topic/:channel"),
    *("/api/v2/channels", "/api/v2/nodes", "/api/v2/nodes/:node"),
    *("/api/v2/messages", "/api/v2/message", "/api/v2/log", "/api/v2/times", "/api/v2/seek"),
    *("/api/v2/dead-letters", "/api/v2/export", "/api/v2/policies"),
)
"""Routes that show data, but neither message bodies nor the audit log."""

RIGHTS: Final = (
    Right("GET", "/ping", Role.NONE),
    Right("GET", "/signin", Role.NONE),
    Right("POST", "/signin", Role.NONE),
    Right("POST", "/signout", Role.NONE),
    Right("GET", "/static/:name", Role.NONE),
    Right("GET", "/favicon.ico", Role.NONE),
    Right("GET", "/api/v2/openapi.json", Role.NONE),
    Right("GET", "/config/:opt", Role.NONE, config=True),
    Right("PUT", "/config/:opt", Role.NONE, config=True),
    *(Right("GET", path, Role.READ) for path in _READ),
    Right("GET", "/api/v2/search", Role.BODIES),
    Right("GET", "/api/v2/body", Role.BODIES),
    Right("GET", "/audit", Role.ADMINISTER),
    Right("GET", "/api/v2/audit", Role.ADMINISTER),
    Right("POST", "/publish", Role.PUBLISH),
    Right("POST", "/messages", Role.OPERATE),
    Right("POST", "/replay", Role.OPERATE),
    Right("POST", "/connection", Role.OPERATE),
    Right("POST", "/dead-letters", Role.OPERATE),
    Right("POST", "/lookup", Role.OPERATE),
    Right("POST", "/topics/:topic", Role.OPERATE),
    Right("POST", "/topics/:topic/:channel", Role.OPERATE),
    Right("POST", "/nodes/:node", Role.ADMINISTER),
    Right("POST", "/nodes/:node/dismiss", Role.OPERATE),
    Right("POST", "/policies", Role.ADMINISTER),
    Right("POST", "/api/topics", Role.OPERATE),
    Right("POST", "/api/topics/:topic", Role.OPERATE),
    Right("POST", "/api/topics/:topic/:channel", Role.OPERATE),
    Right("DELETE", "/api/topics/:topic", Role.ADMINISTER),
    Right("DELETE", "/api/topics/:topic/:channel", Role.ADMINISTER),
    Right("DELETE", "/api/nodes/:node", Role.ADMINISTER),
    # Any of its actions needs more: to publish, `publish` alone.
    Right("POST", "/api/v2/actions", Role.FIND),
    Right("POST", "/api/v2/seek", Role.OPERATE),
    Right("POST", "/api/v2/dead-letters", Role.OPERATE),
    Right("POST", "/api/v2/nodes/:node/dismiss", Role.OPERATE),
    Right("GET", "/api/v2/nodes/:node/drain", Role.READ),
    Right("POST", "/api/v2/nodes/:node/drain", Role.ADMINISTER),
    Right("DELETE", "/api/v2/nodes/:node/drain", Role.ADMINISTER),
    Right("PUT", "/api/v2/policies", Role.ADMINISTER),
    Right("DELETE", "/api/v2/policies", Role.ADMINISTER),
)


def right_of(method: str, path: str) -> Right:
    """Find the row of a route; the names of path parameters do not matter.

    Raises:
        LookupError: the route has no row.
    """
    found = _BY_ROUTE.get((method, _plain(path)))
    if found is None:
        raise LookupError(f"{method} {path} has no row in nsqadmin's table of rights")
    return found


def _plain(path: str) -> str:
    return _PARAMETER.sub(":", path)


_BY_ROUTE: Final = {(right.method, _plain(right.path)): right for right in RIGHTS}
