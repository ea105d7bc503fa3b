"""Which role each route and each action of nsqadmin needs: the server is built from this table.

1. A route without a row is not served: `right_of` raises, and the server does not start.
2. A route whose body names the action asks here for the least of the roles that its actions need;
   `ACTION_ROLES` has the role of the action itself.
3. What throws messages or names away needs `administer`; what can be undone needs `operate`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sparq.nsqadmin.access.roles import Role

_PARAMETER = re.compile(r":[A-Za-z_]\w*")


class Right(NamedTuple):
    """A route and the role that it needs; `CONFIG` routes ask for the client's network instead."""

    method: str
    path: str
    role: Role
    config: bool = False

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.method not in READING


READING: Final = ("GET", "HEAD", "OPTIONS")

ACTION_ROLES: Final = {
    "create_topic": Role.OPERATE,
    "create_channel": Role.OPERATE,
    "pause_topic": Role.OPERATE,
    "pause_channel": Role.OPERATE,
    "unpause_topic": Role.OPERATE,
    "unpause_channel": Role.OPERATE,
    "seek_channel": Role.OPERATE,
    "requeue_message": Role.OPERATE,
    "finish_message": Role.OPERATE,
    "cancel_message": Role.OPERATE,
    "copy_message": Role.OPERATE,
    "empty_topic": Role.ADMINISTER,
    "empty_channel": Role.ADMINISTER,
    "delete_topic": Role.ADMINISTER,
    "delete_channel": Role.ADMINISTER,
    "tombstone_topic_producer": Role.ADMINISTER,
}
"""The role of each action, by the names that NSQ's notification uses where it has one."""

_PUBLIC: Final = (
    Right("GET", "/ping", Role.NONE),
    Right("GET", "/signin", Role.NONE),
    Right("POST", "/signin", Role.NONE),
    Right("POST", "/signout", Role.NONE),
    Right("GET", "/static/:name", Role.NONE),
    Right("GET", "/fonts/:name", Role.NONE),
    Right("GET", "/favicon.ico", Role.NONE),
)

_NSQ: Final = (
    Right("GET", "/metrics", Role.READ),
    Right("GET", "/render", Role.READ),
    Right("GET", "/api/topics", Role.READ),
    Right("GET", "/api/topics/:topic", Role.READ),
    Right("GET", "/api/topics/:topic/:channel", Role.READ),
    Right("GET", "/api/nodes", Role.READ),
    Right("GET", "/api/nodes/:node", Role.READ),
    Right("GET", "/api/counter", Role.READ),
    Right("GET", "/api/graphite", Role.READ),
    Right("POST", "/api/topics", Role.OPERATE),
    Right("POST", "/api/topics/:topic", Role.OPERATE),
    Right("POST", "/api/topics/:topic/:channel", Role.OPERATE),
    Right("DELETE", "/api/topics/:topic", Role.ADMINISTER),
    Right("DELETE", "/api/topics/:topic/:channel", Role.ADMINISTER),
    Right("DELETE", "/api/nodes/:node", Role.ADMINISTER),
    Right("GET", "/config/:opt", Role.NONE, config=True),
    Right("PUT", "/config/:opt", Role.NONE, config=True),
)

_PAGES: Final = (
    Right("GET", "/", Role.READ),
    Right("GET", "/live", Role.READ),
    Right("GET", "/topics", Role.READ),
    Right("GET", "/topics/:topic", Role.READ),
    Right("GET", "/topics/:topic/:channel", Role.READ),
    Right("GET", "/nodes", Role.READ),
    Right("GET", "/nodes/:node", Role.READ),
    Right("GET", "/counter", Role.READ),
    Right("GET", "/lookup", Role.READ),
    Right("GET", "/audit", Role.ADMINISTER),
    Right("GET", "/messages", Role.READ),
    Right("GET", "/message", Role.READ),
    Right("GET", "/replay", Role.READ),
    Right("GET", "/dead-letters", Role.READ),
    Right("POST", "/messages", Role.OPERATE),
    Right("POST", "/replay", Role.OPERATE),
    Right("POST", "/dead-letters", Role.OPERATE),
    Right("POST", "/lookup", Role.OPERATE),
    Right("POST", "/topics/:topic", Role.OPERATE),
    Right("POST", "/topics/:topic/:channel", Role.OPERATE),
    Right("POST", "/nodes/:node", Role.ADMINISTER),
)

_V2: Final = (
    Right("GET", "/api/v2/openapi.json", Role.NONE),
    Right("GET", "/api/v2/overview", Role.READ),
    Right("GET", "/api/v2/topics", Role.READ),
    Right("GET", "/api/v2/topics/:topic", Role.READ),
    Right("GET", "/api/v2/topics/:topic/:channel", Role.READ),
    Right("GET", "/api/v2/nodes", Role.READ),
    Right("GET", "/api/v2/nodes/:node", Role.READ),
    Right("GET", "/api/v2/attention", Role.READ),
    Right("GET", "/api/v2/history", Role.READ),
    Right("GET", "/api/v2/clients", Role.READ),
    Right("GET", "/api/v2/messages", Role.READ),
    Right("GET", "/api/v2/message", Role.READ),
    Right("GET", "/api/v2/search", Role.BODIES),
    Right("GET", "/api/v2/export", Role.READ),
    Right("GET", "/api/v2/audit", Role.ADMINISTER),
    Right("GET", "/api/v2/seek", Role.READ),
    Right("POST", "/api/v2/seek", Role.OPERATE),
    Right("POST", "/api/v2/actions", Role.OPERATE),
    Right("GET", "/api/v2/channels", Role.READ),
    Right("GET", "/api/v2/dead-letters", Role.READ),
    Right("POST", "/api/v2/dead-letters", Role.OPERATE),
    Right("GET", "/api/v2/log", Role.READ),
    Right("GET", "/api/v2/body", Role.BODIES),
    Right("GET", "/api/v2/times", Role.READ),
    Right("POST", "/api/v2/nodes/:node/forget", Role.OPERATE),
)

RIGHTS: Final = (*_PUBLIC, *_NSQ, *_PAGES, *_V2)


def right_of(method: str, path: str) -> Right:
    """The row of a route; the names of parameters do not matter.

    Raises:
        LookupError: there is none.
    """
    found = _BY_ROUTE.get((method, _plain(path)))
    if found is None:
        raise LookupError(f"{method} {path} has no row in nsqadmin's table of rights")
    return found


def _plain(path: str) -> str:
    return _PARAMETER.sub(":", path)


_BY_ROUTE: Final = {(right.method, _plain(right.path)): right for right in RIGHTS}
