"""Requests for all of nsqadmin's routes: each with every kind of insufficient or foreign access.

The server needs the options of `guarded`. This module decides which requests must be refused, and
builds them; the tests check their effects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sparq.daemon.access import tokens
from sparq.nsqadmin.access import ALL, READING, AdminRoute, Role

UNTRUSTED = "192.0.2.0/24"
"""The network of trusted proxies: no request of a test comes from it."""

NAMES = {"topic": "t", "channel": "c", "opt": "log_level", "name": "app.css"}
EMPTY = {"topic": "t", "channel": "c", "action": "empty", "typed": "t"}
POLICY = '[[policies]]\ntopic = "t"\nmax_channels = 8\n'
BODIES: dict[str, dict[str, Any]] = {
    "POST /api/topics": {"topic": "new", "channel": "new"},
    "POST /api/topics/:topic": {"action": "pause"},
    "POST /api/v2/actions": {"action": "pause_channel", "topic": "t", "channel": "c"},
    "POST /api/v2/nodes/:node/dismiss": {},
    "POST /api/v2/nodes/:node/drain": {},
    "POST /nodes/:node/dismiss": {},
    "POST /api/v2/dead-letters": {"topic": "t", "to": "c"},
    "POST /topics/:topic": {"action": "pause_topic"},
    "POST /topics/:topic/:channel": {"action": "pause_channel"},
    "POST /lookup": {"action": "create", "topic": "new", "channel": "new"},
    "POST /publish": {"topic": "t", "node": "n:1", "body": "x"},
    "POST /connection": {"action": "close_client", "topic": "t", "node": "n:1", "client": "n:2"},
    "POST /messages": {"action": "copy_message", "topic": "t", "to": "new"},
    "POST /dead-letters": {"action": "copy_message", "topic": "t", "to": "new"},
    "POST /replay": {"topic": "t", "channel": "c", "to": "earliest"},
    "POST /nodes/:node": {"action": "tombstone_topic_producer", "topic": "t", "typed": "t"},
    "POST /api/v2/seek": {"topic": "t", "channel": "c", "to": "earliest"},
    "POST /policies": {"action": "set_policies", "document": POLICY, "typed": "policies"},
    "PUT /api/v2/policies": {"policies": [{"topic": "t", "max_channels": 9}]},
}
"""JSON bodies by route; routes without an entry get `EMPTY`."""


class Keys(NamedTuple):
    """The tokens, by what they are for."""

    reader: str
    operator: str
    administrator: str
    expired: str


def guarded(folder: Path) -> tuple[dict[str, Any], Keys]:
    """Return the options of a server with tokens and a user of another proxy, and the tokens."""
    made = [
        tokens.make("reader", "read,bodies"),
        tokens.make("operator", "operate"),
        tokens.make("administrator", "administer,bodies,publish"),
        tokens.make("expired", "administer,bodies,publish", "2020-01-01"),
    ]
    path = folder / "tokens"
    path.write_text("\n".join(line for _, line in made))
    options = {
        "admin_users": ("alice",),
        "roles": ("alice=bodies",),
        "trusted_proxies": (UNTRUSTED,),
        "token_file": str(path),
    }
    return options, Keys(*(token for token, _ in made))


@dataclass(frozen=True)
class Case:
    """A kind of access: its headers, its roles, and whether all requests or writes are refused."""

    name: str
    headers: Mapping[str, str]
    roles: Role = Role.READ
    shut_out: bool = False
    form: bool = False

    def is_refused(self, route: AdminRoute) -> bool:
        """Whether the route must refuse this access."""
        if self.shut_out:
            return route.path != "/ping"
        if route.path in ("/signin", "/signout") and not self.form:
            return False
        if self.form and writes(route):
            return True
        return needed(route) not in self.roles


def writes(route: AdminRoute) -> bool:
    """Whether the route changes state."""
    return route.method not in READING


def cases(keys: Keys) -> Iterator[Case]:
    """Yield all kinds of access. Each would be allowed if one rule were missing."""

    def bearer(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    right = bearer(keys.administrator)
    nothing = {"Content-Type": "application/json"}
    yield Case("nothing", nothing)
    yield Case("a made-up session", {**nothing, "Cookie": "nsqadmin_session=made-up"})
    for user in ("alice", "alice, alice"):
        yield Case(f"user {user} of no proxy", {**nothing, "X-Forwarded-User": user})
    yield Case("address of a proxy", {**nothing, "X-Forwarded-For": "127.0.0.1"})
    yield Case("reader", bearer(keys.reader), Role.BODIES)
    yield Case("operator", bearer(keys.operator), Role.OPERATE)
    yield Case("wrong token", bearer("nsqadmin_" + "x" * 43), Role.NONE)
    yield Case("expired token", bearer(keys.expired), Role.NONE)
    yield Case("empty token", bearer(""), Role.NONE)
    yield Case("Basic", {**nothing, "Authorization": "Basic YWxpY2U6eA=="})
    for name, value in (
        ("Host", "evil.example"),
        ("Host", "127.0.0.1.evil.example"),
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", "http://127.0.0.1:1"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ):
        yield Case(f"{name}: {value}", {**right, name: value}, shut_out=True)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {"User-Agent": "Mozilla/5.0", **right, "Content-Type": kind}
        yield Case(f"a form: {kind}", headers, ALL, form=True)


def needed(route: AdminRoute) -> Role:
    """Return the role that the request to a route needs: the route's, or that of its action."""
    if route.role is None:
        return Role.ADMINISTER if writes(route) else Role.READ
    return Role.ADMINISTER if writes(route) and orders(route) is EMPTY else route.role


def orders(route: AdminRoute) -> dict[str, Any]:
    """Return the JSON body of the request to a route."""
    return BODIES.get(f"{route.method} {route.path}", EMPTY)


def target(route: AdminRoute, node: str) -> str:
    """Return the route's URL with arguments that would have an effect."""
    path = route.path
    for name, text in {**NAMES, "node": node}.items():
        path = path.replace(f":{name}", text)
    return f"{path}?topic=t&channel=c&node={node}&to=latest&limit=1&typed=policies"


def body(route: AdminRoute) -> bytes:
    """Return a valid body for the route."""
    if route.role is None:
        return b"debug"
    return json.dumps(orders(route)).encode() if writes(route) else b""
