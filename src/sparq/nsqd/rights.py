"""The roles that each route and each V2 command of nsqd needs, if there is a token file.

An action needs the right that its effect needs, whatever its name is:

1. What deletes messages or names, changes settings, ends the process or inspects it needs
   `administer`. So does a channel's loss of messages: emptying, finishing, cancelling, and a seek
   that skips unfinished ones, which its handler checks.
2. What can be undone needs `operate`.
3. A copy shows bodies of one topic to the consumers of another one, and is a publish there.

A test checks that no route and no command is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from sparq.broker.permissions import PUBLISH, SUBSCRIBE
from sparq.daemon.access.rights import DEBUG, OPEN, Grant, Need, Rights, of_all, of_any, of_topic
from sparq.daemon.access.roles import Role
from sparq.daemon.token import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparq.daemon.access.access import Access
    from sparq.nsqd.options import NsqdOptions


RIGHTS: Final[Rights] = {
    ("GET", "/ping"): OPEN,
    ("GET", "/live"): OPEN,
    ("GET", "/info"): of_any(Role.FIND),
    ("GET", "/stats"): of_topic(Role.READ),
    ("GET", "/metrics"): of_all(Role.READ),
    ("GET", "/topic/times"): of_topic(Role.READ),
    ("GET", "/policies"): of_topic(Role.READ),
    ("GET", "/channel/messages"): of_topic(Role.BODIES),
    ("GET", "/topic/messages"): of_topic(Role.BODIES),
    ("GET", "/topic/search"): of_topic(Role.BODIES),
    ("GET", "/message"): of_topic(Role.BODIES),
    ("POST", "/pub"): of_topic(Role.PUBLISH),
    ("POST", "/mpub"): of_topic(Role.PUBLISH),
    ("POST", "/topic/create"): of_topic(Role.OPERATE),
    ("POST", "/topic/pause"): of_topic(Role.OPERATE),
    ("POST", "/topic/unpause"): of_topic(Role.OPERATE),
    ("POST", "/topic/empty"): of_topic(Role.ADMINISTER),
    ("POST", "/topic/delete"): of_topic(Role.ADMINISTER),
    ("POST", "/channel/create"): of_topic(Role.OPERATE),
    ("POST", "/channel/pause"): of_topic(Role.OPERATE),
    ("POST", "/channel/unpause"): of_topic(Role.OPERATE),
    ("POST", "/channel/seek"): of_topic(Role.OPERATE),
    ("POST", "/channel/empty"): of_topic(Role.ADMINISTER),
    ("POST", "/channel/delete"): of_topic(Role.ADMINISTER),
    # A connection may publish to any topic. Its client connects again.
    ("POST", "/client/close"): of_all(Role.OPERATE),
    ("POST", "/message/requeue"): of_topic(Role.OPERATE),
    ("POST", "/message/finish"): of_topic(Role.ADMINISTER),
    ("POST", "/message/cancel"): of_topic(Role.ADMINISTER),
    ("POST", "/message/copy"): (Need(Role.BODIES, "topic"), Need(Role.PUBLISH, "to")),
    # A letter names its target topic, and any publisher can forge a letter.
    ("POST", "/message/redrive"): of_all(Role.OPERATE),
    ("GET", "/drain"): of_all(Role.READ),
    ("POST", "/drain"): of_all(Role.ADMINISTER),
    ("DELETE", "/drain"): of_all(Role.ADMINISTER),
    ("POST", "/topic/drain"): of_topic(Role.OPERATE),
    ("DELETE", "/topic/drain"): of_topic(Role.OPERATE),
    ("PUT", "/policies"): of_all(Role.ADMINISTER),
    ("DELETE", "/policies"): of_all(Role.ADMINISTER),
    ("GET", "/config/:opt"): of_all(Role.OPERATE),
    ("PUT", "/config/:opt"): of_all(Role.ADMINISTER),
    **DEBUG,
    ("PUT", "/debug/setblockrate"): of_all(Role.ADMINISTER),
    ("POST", "/debug/freememory"): of_all(Role.ADMINISTER),
}
"""The needs of each route."""

COMMANDS: Final = {
    **dict.fromkeys((b"PUB", b"MPUB", b"DPUB"), Role.PUBLISH),
    **dict.fromkeys((b"SUB", b"ATTACH", b"ENDS", b"READ", b"COMMIT"), Role.CONSUME),
    # Commands about the client itself, and commands that need a subscription anyway.
    **dict.fromkeys((b"IDENTIFY", b"AUTH", b"NOP"), Role.NONE),
    **dict.fromkeys((b"RDY", b"FIN", b"REQ", b"TOUCH", b"CLS"), Role.NONE),
}
"""The role that each V2 command needs for its topic."""

PERMISSIONS: Final = {Role.PUBLISH: PUBLISH, Role.CONSUME: SUBSCRIBE}
"""The names of roles in AUTH's permissions."""


def permissions(granted: Iterable[Grant]) -> list[tuple[str, str]]:
    """Return the AUTH permissions that grants contain, as (topic pattern, permission)."""
    return [
        (grant.topics, name)
        for grant in granted
        for role, name in PERMISSIONS.items()
        if role in grant.role
    ]


def access_of(options: NsqdOptions) -> Access | None:
    """Make the access rights for these options; None: no checks and no audit log.

    Raises:
        StartError: a token or a file cannot be used.
    """
    token, files = resolve(options.http.token), options.access
    if not (token or files.token_file or files.audit_file):
        return None
    # Imported only when needed, so that a start without it does not wait.
    made: Access | None = import_module("sparq.daemon.access.access").build(RIGHTS, token, files)
    return made
