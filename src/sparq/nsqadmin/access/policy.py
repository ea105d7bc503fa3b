"""Who a request comes from and what it may do: options in, facts in, a decision out.

The first of these that is shown counts:

1. A bearer token, or a session that began with one. A wrong or expired token is refused (401); it
   never falls back to less.
2. The user whom a trusted proxy names in its header. From anybody else the header is no proof.
3. This machine: a connection over loopback or a unix socket that no proxy has sent. It may do all
   as long as nothing says who may (`--admin-user`, `--role`, `--token-file`), or `--local-role`.
4. Nobody. What `--default-role` gives, everybody has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sparq.daemon.access import tokens
from sparq.daemon.access.roles import ADMINS_WORDS
from sparq.daemon.access.tokens import Form, Tokens
from sparq.nsqadmin.access import hosts, roles
from sparq.nsqadmin.access.facts import Facts
from sparq.nsqadmin.access.hosts import Hosts, Networks, Refusal
from sparq.nsqadmin.access.roles import Identity, Role
from sparq.nsqadmin.access.sessions import Sessions
from sparq.nsqadmin.options import Options
from sparq.protocol.address import parse_ip

T = TypeVar("T")

USER_LENGTH_MAX = 256
LOCAL = "local"
LOOPBACK = "127.0.0.1"
NO_PROXY = ("none",)

FORM = Form(ADMINS_WORDS, is_whole=True)
"""Of nsqadmin's token file: its own roles, each for all topics."""

FORBIDDEN = "FORBIDDEN"
UNAUTHORIZED = "UNAUTHORIZED"
INVALID_REMOTE_ADDR = "INVALID_REMOTE_ADDR"


class PolicyError(ValueError):
    """Options that mean nothing; the text names the flag."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is made of a request.

    Attributes:
        identity: who it is from.
        remote: the address that it comes from, as far as trusted proxies vouch for it.
        refusal: why it is not served; None: it is.
        is_disbelieved: whether it shows a user's header that does not count.
    """

    identity: Identity
    remote: str
    refusal: Refusal | None = None
    is_disbelieved: bool = False


class Policy:
    """The rules of one set of options."""

    def __init__(self, options: Options) -> None:
        """Raises PolicyError: a flag's value or the token file is wrong."""
        self.header = options.acl_http_header
        self.hosts = _told(
            "--allowed-host", lambda: Hosts(options.allowed_hosts, options.http_address)
        )
        self.proxies = _told("--trusted-proxy", lambda: _proxies(options.trusted_proxies))
        network = options.allow_config_from_cidr
        self._config = _told(
            "--allow-config-from-cidr", lambda: Networks([network]) if network else None
        )
        self._grants = _told("--role", lambda: roles.parse_grants(options.roles))
        for user in options.admin_users:
            self._grants[user] = self._grants.get(user, Role.NONE) | Role.ADMINISTER
        self._default = _told("--default-role", lambda: roles.parse(options.default_role))
        self._local = _told("--local-role", lambda: _local(options))
        self.uses_tokens = bool(options.token_file)
        file = options.token_file
        self.tokens = _told("--token-file", lambda: tokens.read(file, FORM) if file else Tokens())
        self._is_strict = bool(options.roles or options.token_file or options.local_role)

    def identify(self, facts: Facts, sessions: Sessions, now: float) -> Decision:
        """Who a request comes from; refused if it shows a token that is none.

        Args:
            facts: what it shows.
            sessions: of those who signed in.
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
        """Why somebody may not do what needs this role; None: he may."""
        if decision.refusal is not None:
            return decision.refusal
        identity = decision.identity
        if identity.may(role):
            return None
        could_sign_in = self.uses_tokens and identity.via == "nobody"
        return Refusal(401, UNAUTHORIZED) if could_sign_in else Refusal(403, FORBIDDEN)

    def require_config(self, facts: Facts, decision: Decision) -> Refusal | None:
        """Why a request may not use /config; None: it may.

        With NSQ's options the client's network decides, as there. Where it came through a proxy, or
        sparq's options say who may, changing something also needs `administer`.
        """
        if decision.refusal is not None:
            return decision.refusal
        needed = Role.ADMINISTER if facts.writes else Role.READ
        peer = facts.peer or LOOPBACK
        if parse_ip(peer) is None:
            return Refusal(400, INVALID_REMOTE_ADDR)
        if self._config is None:
            return self.require(decision, needed)
        if any(text not in self._config for text in (peer, decision.remote or peer)):
            return Refusal(403, FORBIDDEN)
        is_nsqs = not self._is_strict and not facts.is_forwarded
        return None if is_nsqs else self.require(decision, needed)

    def _of_token(self, token: tokens.Token) -> Identity:
        return Identity(token.name, token.roles | self._default, "token")

    def _named_user(self, facts: Facts) -> Identity | None:
        """The user whom a trusted proxy names; None: no proof of any."""
        is_trusted = facts.peer in self.proxies or not facts.peer
        name = facts.users[0].strip()
        # A proxy that adds its header to a client's own sends two: neither is believed.
        if not is_trusted or len(facts.users) != 1 or not 0 < len(name) <= USER_LENGTH_MAX:
            return None
        return Identity(name, self._grants.get(name, Role.NONE) | self._default, "header")


def _told(flag: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise PolicyError(f"{flag}: {error}") from None


def _proxies(texts: tuple[str, ...]) -> Networks:
    return Networks(() if texts == NO_PROXY else texts or hosts.LOOPBACK)


def _local(options: Options) -> Role:
    """What this machine may: all, until something says who may."""
    if options.local_role:
        return roles.parse(options.local_role)
    is_configured = options.admin_users or options.roles or options.token_file
    return Role.NONE if is_configured else roles.ALL
