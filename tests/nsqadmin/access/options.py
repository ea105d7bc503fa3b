"""The options of nsqadmin that access control reads, and typical requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sparq.nsqadmin.access import AccessRequest, AccessRules, Decision, Sessions

NOW = 1_800_000_000.0
OUTSIDE = "192.0.2.7"


@dataclass(frozen=True)
class AccessOptions:
    """The options that access control reads, with their defaults."""

    admin_users: tuple[str, ...] = ()
    acl_http_header: str = "X-Forwarded-User"
    allow_config_from_cidr: str = "127.0.0.1/8"
    trusted_proxies: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    token_file: str = ""
    local_role: str = ""
    default_role: str = "read"
    allowed_hosts: tuple[str, ...] = ()
    http_address: str = "0.0.0.0:4171"
    base_path: str = "/"


def decide(
    options: AccessOptions, facts: AccessRequest, sessions: Sessions | None = None
) -> Decision:
    """Identify a request under these options."""
    return AccessRules(options).identify(facts, sessions or Sessions(), NOW)


def request_of_user(user: str, **facts: Any) -> AccessRequest:
    """A request that a proxy on this machine sends for a user."""
    return replace(AccessRequest(users=(user,), is_forwarded=True), **facts)
