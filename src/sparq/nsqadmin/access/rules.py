"""Identifies the sender of a request and its roles, from options and request facts.

The first of these that the request has decides:

1. A bearer token, or a session that was started with one. A wrong or expired bearer token is
   refused (401); the request is not tried as one without a token. A session without a valid token
   is ignored.
2. The user named in the header of a trusted proxy. From any other sender the header proves nothing
   and makes the request anonymous.
3. This machine: a connection over loopback or a unix socket that no proxy has forwarded. It has the
   roles of `--local-role`; by default all roles, until rights are configured (`--admin-user`,
   `--role`, `--token-file`).
4. Nobody: an anonymous request.

Every sender also has the roles of `--default-role`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sparq.daemon.access import tokens
from sparq.daemon.access.tokens import ADMINS_FORM, Tokens
from sparq.nsqadmin.access import hosts, roles
from sparq.nsqadmin.access.hosts import Hosts, Networks, Refusal
from sparq.nsqadmin.access.request import AccessRequest
from sparq.nsqadmin.access.roles import Identity, Role
from sparq.nsqadmin.options import NsqadminOptions
from sparq.protocol.address import parse_ip

T = TypeVar("T")

USER_LENGTH_MAX = 256
LOCAL = "local"
LOOPBACK = "127.0.0.1"
NO_PROXY = ("none",)
LIFE_SECONDS = 12 * 3600.0
SESSIONS_MAX = 1000

FORBIDDEN = "FORBIDDEN"
UNAUTHORIZED = "UNAUTHORIZED"
INVALID_REMOTE_ADDR = "INVALID_REMOTE_ADDR"


class AccessRulesError(ValueError):
    """An option is invalid; the text names the flag."""


class Sessions:
    """Sessions of browsers that signed in with a token, in memory.

    A session's cookie holds a random id, never the token, because a browser sends cookies to every
    port of a host. The roles of a session are looked up from its token on each request, so removing
    a token ends its sessions. Beyond `SESSIONS_MAX` sessions the oldest one ends.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, tuple[bytes, float]] = {}

    def start(self, digest: bytes, now: float) -> str:
        """Start a session for the token with this hash; returns the session's id."""
        if len(self._sessions) >= SESSIONS_MAX:
            # All sessions live equally long, so the first one in the dict would end first.
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = digest, now + LIFE_SECONDS
        return name

    def digest(self, name: str, now: float) -> bytes | None:
        """Hash of the token that a session was started with; None if unknown or expired."""
        digest, ends = self._sessions.get(name, (b"", 0.0))
        if now < ends:
            return digest
        self.end(name)
        return None

    def end(self, name: str) -> None:
        """End a session; an unknown id is ignored."""
        self._sessions.pop(name, None)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of identifying a request.

    Attributes:
        identity: the sender.
        remote: the client's address, as far as trusted proxies report it.
        refusal: why the request is refused; None if it is served.
        is_disbelieved: whether its user header was ignored (rule 2).
    """

    identity: Identity
    remote: str
    refusal: Refusal | None = None
    is_disbelieved: bool = False


class AccessRules:
    """The access rules that one set of options defines."""

    def __init__(self, options: NsqadminOptions) -> None:
        """Raises AccessRulesError if a flag's value or the token file is invalid."""
        self.header = options.acl_http_header
        self.hosts = _naming_flag(
            "--allowed-host", lambda: Hosts(options.allowed_hosts, options.http_address)
        )
        self.proxies = _naming_flag("--trusted-proxy", lambda: _proxies(options.trusted_proxies))
        network = options.allow_config_from_cidr
        self._config = _naming_flag(
            "--allow-config-from-cidr", lambda: Networks([network]) if network else None
        )
        self._grants = _naming_flag("--role", lambda: roles.parse_grants(options.roles))
        for user in options.admin_users:
            self._grants[user] = self._grants.get(user, Role.NONE) | Role.ADMINISTER
        self._default = _naming_flag("--default-role", lambda: roles.parse(options.default_role))
        self._local = _naming_flag("--local-role", lambda: _local(options))
        self.uses_tokens = bool(options.token_file)
        file = options.token_file
        self.tokens = _naming_flag(
            "--token-file", lambda: tokens.read(file, ADMINS_FORM) if file else Tokens()
        )
        self._is_strict = bool(options.roles or options.token_file or options.local_role)

    def identify(self, facts: AccessRequest, sessions: Sessions, now: float) -> Decision:
        """Identify the sender; the decision is a refusal if the bearer token is not valid.

        Args:
            facts: the request.
            sessions: sessions of the browsers that signed in.
            now: seconds since the epoch.
        """
        remote = hosts.client(facts.peer, facts.forwarded_for, self.proxies)
        nobody = Identity("", self._default, "nobody")
        bearer = tokens.shown(facts.authorizations) if self.uses_tokens else None
        if bearer is not None:
            token = self.tokens.find(bearer, now)
            if token is None:
                return Decision(nobody, remote, Refusal(401, UNAUTHORIZED))
            return Decision(self._of_token(token), remote)
        digest = sessions.digest(facts.session, now) if facts.session else None
        token = self.tokens.by_digest(digest, now) if digest is not None else None
        if token is not None:
            return Decision(self._of_token(token), remote)
        if facts.users:
            user = self._named_user(facts)
            return Decision(user or nobody, remote, is_disbelieved=user is None)
        if hosts.is_local(facts.peer) and not facts.is_forwarded and self._local:
            return Decision(Identity(LOCAL, self._local | self._default, "local"), remote)
        return Decision(nobody, remote)

    def require(self, decision: Decision, role: Role) -> Refusal | None:
        """Return why the sender is refused an action that needs this role; None if allowed."""
        if decision.refusal is not None:
            return decision.refusal
        identity = decision.identity
        if identity.may(role):
            return None
        could_sign_in = self.uses_tokens and identity.via == "nobody"
        return Refusal(401, UNAUTHORIZED) if could_sign_in else Refusal(403, FORBIDDEN)

    def require_config(self, facts: AccessRequest, decision: Decision) -> Refusal | None:
        """Return why a request may not use /config; None if it may.

        With only NSQ's options set, the client's network decides, as in NSQ. If the request came
        through a proxy, or sparq's own options define rights, it also needs a role: `read` to read,
        `administer` to change an option.
        """
        if decision.refusal is not None:
            return decision.refusal
        needed = Role.ADMINISTER if facts.writes else Role.READ
        peer = facts.peer or LOOPBACK
        if parse_ip(peer) is None:
            return Refusal(400, INVALID_REMOTE_ADDR)
        if self._config is None:
            return self.require(decision, needed)
        # Both addresses: a proxy in the allowed network must not open /config for every client.
        if any(text not in self._config for text in (peer, decision.remote or peer)):
            return Refusal(403, FORBIDDEN)
        is_nsqs = not self._is_strict and not facts.is_forwarded
        return None if is_nsqs else self.require(decision, needed)

    def _of_token(self, token: tokens.Token) -> Identity:
        return Identity(token.name, token.roles | self._default, "token")

    def _named_user(self, facts: AccessRequest) -> Identity | None:
        """Return the user that a trusted proxy named; None if the header proves nothing."""
        is_trusted = facts.peer in self.proxies or not facts.peer
        name = facts.users[0].strip()
        # Two headers: the proxy added its own to one that the client sent. Trust neither.
        if not is_trusted or len(facts.users) != 1 or not 0 < len(name) <= USER_LENGTH_MAX:
            return None
        return Identity(name, self._grants.get(name, Role.NONE) | self._default, "header")


def _naming_flag(flag: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise AccessRulesError(f"{flag}: {error}") from None


def _proxies(texts: tuple[str, ...]) -> Networks:
    return Networks(() if texts == NO_PROXY else texts or hosts.LOOPBACK)


def _local(options: NsqadminOptions) -> Role:
    """Roles of requests from this machine: by default all, until rights are configured."""
    if options.local_role:
        return roles.parse(options.local_role)
    is_configured = options.admin_users or options.roles or options.token_file
    return Role.NONE if is_configured else roles.ALL
