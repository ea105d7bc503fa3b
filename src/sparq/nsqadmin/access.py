"""Access to nsqadmin: who sends a request, which roles that gives, and what needs which role.

Where requests come from. A page of another site can make a browser send requests to nsqadmin: with
a form, with a script, or with a host name of its own that resolves to nsqadmin's address (DNS
rebinding). A browser always sends the host name that it requested and, with requests that change
state, the site of the page.

1. A Host that is neither an IP address nor a known name is refused, for reads too.
2. An Origin must match the server that the request went to; `null` never matches. Sec-Fetch-Site
   must not contradict it: a page of another site may only navigate here, and only to read.
3. A browser's request that changes state needs a JSON content type or htmx's header: a form of
   another site can send neither. Programs (curl, NSQ's scripts) may send any type, as with NSQ.
4. Every answer carries `SECURE_HEADERS`, which restrict what a browser may do with it.
5. Each proxy appends the address that it sees to X-Forwarded-For. So the list is read from its
   end: the first address that is not a trusted proxy is the client. The entries before it were
   sent by the client itself and prove nothing.

Who sends them. The first of these that the request has decides:

6. A bearer token, or a session that was started with one. A wrong or expired bearer token is
   refused (401); the request is not tried as one without a token. A session without a valid token
   is ignored.
7. The user named in the header of a trusted proxy. From any other sender the header proves nothing
   and makes the request anonymous.
8. This machine: a connection over loopback or a unix socket that no proxy has forwarded. It has the
   roles of `--local-role`; by default all roles, until rights are configured (`--admin-user`,
   `--role`, `--token-file`).
9. Nobody: an anonymous request.

Every sender also has the roles of `--default-role`.

What needs which role. nsqadmin uses five of the roles in `sparq.daemon.access.rules`.

10. The server is built from the table of rights: if a route has no row, `right_of` raises and the
    server does not start.
11. If the body of a request names the action, the table has the role that all actions of the route
    need at least. `ACTION_ROLES` has the role of the action itself.
12. Actions that delete messages, topics or channels need `administer`. So do changes of policies,
    because without a policy nsqd may delete messages that it kept, and draining a node, because
    that may end its process. Other actions can be undone and need `operate`.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs

from aiohttp import web

from sparq.daemon import address as addresses
from sparq.daemon.access import tokens
from sparq.daemon.access.audit import AuditEntry, AuditLog, Outcome
from sparq.daemon.access.rules import ADMINS_WORDS, NO_ROLE, Role, RoleError, Via, role_of
from sparq.daemon.access.tokens import ADMINS_FORM, Tokens
from sparq.daemon.http import Call, HttpError, Route, refusal
from sparq.nsqadmin.options import NsqadminOptions, base_of
from sparq.program.lifecycle import StartError
from sparq.protocol.address import parse_ip

T = TypeVar("T")

logger = logging.getLogger(__name__)


# Roles

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
    action: role
    for role, actions in (
        (
            Role.OPERATE,
            (
                *("create_topic", "create_channel", "pause_topic", "pause_channel"),
                *("unpause_topic", "unpause_channel", "seek_channel"),
                # As nsqd's own table has it: the client connects again.
                *("requeue_message", "redrive_message", "close_client"),
            ),
        ),
        (
            Role.ADMINISTER,
            (
                *("empty_topic", "empty_channel", "delete_topic", "delete_channel"),
                *("tombstone_topic_producer", "finish_message", "cancel_message"),
                *("set_policies", "drop_policies", "drain_node", "undrain_node"),
            ),
        ),
        (Role.PUBLISH, ("publish_message",)),
        # A copy reads bodies and publishes them to another topic.
        (Role.OPERATE | Role.BODIES | Role.PUBLISH, ("copy_message",)),
    )
    for action in actions
}
"""The role that each action needs. Names are those of NSQ's notifications where NSQ has one."""

_ROUTES: Final = (
    (Role.NONE, "GET /ping /signin /static/:name /favicon.ico /api/v2/openapi.json"),
    (Role.NONE, "POST /signin /signout"),
    # Data, but neither message bodies nor the audit log.
    (Role.READ, "GET / /live /counter /lookup /metrics /render /topics /topics/:topic"),
    (Role.READ, "GET /topics/:topic/:channel /nodes /nodes/:node /messages /message /replay"),
    (Role.READ, "GET /dead-letters /policies /connections /connection"),
    (Role.READ, "GET /api/topics /api/topics/:topic /api/topics/:topic/:channel"),
    (Role.READ, "GET /api/nodes /api/nodes/:node /api/counter /api/graphite"),
    (Role.READ, "GET /api/v2/overview /api/v2/attention /api/v2/history /api/v2/clients"),
    (Role.READ, "GET /api/v2/topics /api/v2/topics/:topic /api/v2/topics/:topic/:channel"),
    (Role.READ, "GET /api/v2/channels /api/v2/nodes /api/v2/nodes/:node"),
    (Role.READ, "GET /api/v2/messages /api/v2/message /api/v2/log /api/v2/times /api/v2/seek"),
    (Role.READ, "GET /api/v2/dead-letters /api/v2/export /api/v2/policies"),
    (Role.READ, "GET /api/v2/nodes/:node/drain"),
    (Role.BODIES, "GET /api/v2/search /api/v2/body"),
    (Role.ADMINISTER, "GET /audit /api/v2/audit"),
    (Role.PUBLISH, "POST /publish"),
    (Role.OPERATE, "POST /messages /replay /connection /dead-letters /lookup /topics/:topic"),
    (Role.OPERATE, "POST /topics/:topic/:channel /nodes/:node/dismiss /api/topics"),
    (Role.OPERATE, "POST /api/topics/:topic /api/topics/:topic/:channel /api/v2/seek"),
    (Role.OPERATE, "POST /api/v2/dead-letters /api/v2/nodes/:node/dismiss"),
    # Any of its actions needs more: to publish, `publish` alone.
    (Role.FIND, "POST /api/v2/actions"),
    (Role.ADMINISTER, "POST /nodes/:node /policies /api/v2/nodes/:node/drain"),
    (Role.ADMINISTER, "DELETE /api/topics/:topic /api/topics/:topic/:channel /api/nodes/:node"),
    (Role.ADMINISTER, "DELETE /api/v2/nodes/:node/drain /api/v2/policies"),
    (Role.ADMINISTER, "PUT /api/v2/policies"),
)
RIGHTS: Final = (
    *(Right(method, "/config/:opt", Role.NONE, config=True) for method in ("GET", "PUT")),
    *(
        Right(row.partition(" ")[0], path, role)
        for role, row in _ROUTES
        for path in row.split()[1:]
    ),
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


# Requests

COOKIE = "nsqadmin_session"
FORWARDED_FOR = "X-Forwarded-For"
FORWARDING = (
    FORWARDED_FOR,
    "Forwarded",
    "Via",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Real-IP",
    "X-Scheme",
)
"""A configured reverse proxy sends at least one of these headers."""

_BROWSER = ("Origin", "Referer", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """One request. Header values are as they were sent; empty if they were not sent.

    Attributes:
        path: without the query.
        peer: IP address of the peer; empty for a unix socket.
        port: port of the peer; 0 for a unix socket.
        hosts: all Host headers; more than one is refused.
        origins: all Origin headers.
        authorizations: all Authorization headers.
        users: all values of the header in which a proxy names the user.
        forwarded_for: addresses in X-Forwarded-For; the last proxy's entry is the last one.
        is_forwarded: whether any header shows that a proxy sent this request.
        is_browsers: whether any header shows that a browser sent this request.
        scheme: `https` if a proxy reports it; use it only if that proxy is trusted.
    """

    method: str = "GET"
    path: str = "/"
    peer: str = "127.0.0.1"
    port: int = 0
    hosts: tuple[str, ...] = ("localhost",)
    origins: tuple[str, ...] = ()
    fetch_site: str = ""
    fetch_mode: str = ""
    content_type: str = ""
    is_htmx: bool = False
    authorizations: tuple[str, ...] = ()
    session: str = ""
    users: tuple[str, ...] = ()
    forwarded_for: tuple[str, ...] = ()
    is_forwarded: bool = False
    is_browsers: bool = False
    scheme: str = ""
    user_agent: str = ""

    @property
    def writes(self) -> bool:
        """Whether the method may change state."""
        return self.method not in READING


def facts_of(request: web.BaseRequest, user_header: str) -> AccessRequest:
    """Read a request; `user_header` is the header in which a proxy names the user."""
    headers = request.headers
    peer = request.transport.get_extra_info("peername") if request.transport else None
    host, port = addresses.peer_host(peer), int(peer[1]) if isinstance(peer, tuple) else 0
    agent = headers.get("User-Agent", "")
    scheme = headers.get("X-Forwarded-Proto", "") or headers.get("X-Scheme", "")
    return AccessRequest(
        method=request.method,
        path=request.raw_path.partition("?")[0],
        # Without the zone of a link-local IPv6 address (`fe80::1%eth0`): no network is written with
        # one.
        peer=host.partition("%")[0],
        port=port,
        hosts=tuple(headers.getall("Host", ())),
        origins=tuple(headers.getall("Origin", ())),
        fetch_site=headers.get("Sec-Fetch-Site", ""),
        fetch_mode=headers.get("Sec-Fetch-Mode", ""),
        content_type=headers.get("Content-Type", "").partition(";")[0].strip().lower(),
        is_htmx=headers.get("HX-Request", "").lower() == "true",
        authorizations=tuple(headers.getall("Authorization", ())),
        session=_session(headers.getall("Cookie", ())),
        users=tuple(headers.getall(user_header, ())),
        forwarded_for=tuple(
            part.strip() for line in headers.getall(FORWARDED_FOR, ()) for part in line.split(",")
        ),
        is_forwarded=any(name in headers for name in (*FORWARDING, user_header)),
        is_browsers=agent.startswith("Mozilla/") or any(name in headers for name in _BROWSER),
        scheme=scheme.lower(),
        user_agent=agent,
    )


def _session(lines: Iterable[str]) -> str:
    # Parsed by hand: http.cookies rejects the whole header if one cookie of the host is malformed.
    for line in lines:
        for cookie in line.split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == COOKIE:
                return value
    return ""


# Where requests come from

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_ENTRY = re.compile(r"\*|(?:\*\.)?[A-Za-z0-9._-]+(?::[0-9]{1,5})?")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_SHOWN = 100
ANY: Final = "*"
OWN_SITE: Final = ("", "same-origin", "none")
JSON: Final = "application/json"
LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
HOPS_MAX: Final = 20
"""Maximum number of entries of X-Forwarded-For that are evaluated."""

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

SECURE_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class HostPort(NamedTuple):
    """A host name or IP address, and a port; an empty port is the scheme's default."""

    name: str
    port: str


def split_host_port(authority: str) -> HostPort | None:
    """Split `name:port` or `name`; None if the text has another form."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    return HostPort(found[1].lower().removesuffix("."), found[2] or "")


class Hosts:
    """The host names of this server."""

    def __init__(self, allowed: Iterable[str], http_address: str) -> None:
        """`allowed`: `name`, `name:port`, `*.domain` or `*`. Raises ValueError for other texts."""
        self._allowed: list[HostPort] = []
        self._any = False
        for text in allowed:
            if not _ENTRY.fullmatch(text):
                raise ValueError(f"{text!r} is not a host name: use name, name:port, *.domain or *")
            name, _, port = text.lower().partition(":")
            self._any = self._any or name == ANY
            self._allowed.append(HostPort(name, port))
        listening = addresses.split(http_address)
        own = socket.gethostname().lower()
        named = {listening[0].lower()} if listening else set()
        self._own = {"localhost", own, own.partition(".")[0], *named} - {""}

    def refusal(self, facts: AccessRequest) -> HttpError | None:
        """Return why this request is refused; None if it is served."""
        here = split_host_port(facts.hosts[0]) if len(facts.hosts) == 1 else None
        if here is None or not self._is_known(here):
            sent = ", ".join(facts.hosts)[:_SHOWN]
            return HttpError(403, f"unknown Host {sent!r}: see --allowed-host")
        if facts.origins and not (len(facts.origins) == 1 and self._is_own(facts.origins[0], here)):
            sent = ", ".join(facts.origins)[:_SHOWN]
            return HttpError(403, f"request from another site, {sent!r}: see --allowed-host")
        return _cross_site(facts)

    def _is_known(self, here: HostPort) -> bool:
        # DNS rebinding needs a host name; an IP address in Host cannot be rebound.
        is_ours = parse_ip(here.name) is not None or here.name in self._own
        return self._any or is_ours or self._is_allowed(here, is_usual=True)

    def _is_own(self, origin: str, here: HostPort) -> bool:
        """Whether an origin is this server: the request's own host, or an allowed name."""
        scheme, _, authority = origin.partition("://")
        default = _DEFAULT_PORTS.get(scheme.lower())
        there = split_host_port(authority)
        if there is None or default is None:
            return False
        if there.name == here.name and (there.port or default) == (here.port or default):
            return True
        # If a proxy does not pass Host on, Origin still has the allowed name the browser used.
        return self._is_allowed(there, is_usual=there.port in ("", default, here.port))

    def _is_allowed(self, requested: HostPort, *, is_usual: bool) -> bool:
        """Whether `--allowed-host` covers it; a name without a port covers the usual ports."""
        return any(
            _covers(name, requested.name) and (port == requested.port if port else is_usual)
            for name, port in self._allowed
        )


def _covers(allowed: str, name: str) -> bool:
    return name.endswith(allowed[1:]) if allowed.startswith("*.") else name == allowed


def _cross_site(facts: AccessRequest) -> HttpError | None:
    is_visit = not facts.writes and facts.fetch_mode == "navigate"
    if facts.fetch_site not in OWN_SITE and not is_visit:
        sent = facts.fetch_site[:_SHOWN]
        return HttpError(403, f"request from another site: Sec-Fetch-Site {sent!r}")
    is_form = facts.writes and facts.is_browsers and not facts.is_htmx
    if is_form and facts.content_type != JSON:
        return HttpError(403, "browsers must send Content-Type: application/json or HX-Request")
    return None


class Networks:
    """A set of IP networks."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises ValueError if a text is neither a network nor an IP address."""
        self._networks = [ipaddress.ip_network(text.strip(), strict=False) for text in texts]

    def __contains__(self, address: object) -> bool:
        found = parse_ip(address) if isinstance(address, str) else None
        return found is not None and any(found in network for network in self._networks)


def is_local(peer: str) -> bool:
    """Whether the peer is on this machine: loopback, or a unix socket (empty)."""
    if not peer:
        return True
    found = parse_ip(peer)
    return found is not None and found.is_loopback


def client_of(peer: str, forwarded_for: Sequence[str], proxies: Networks) -> str:
    """Find the client's address, as far as trusted proxies report it (rule 5)."""
    found = peer
    for text in reversed(forwarded_for[-HOPS_MAX:]):
        # An empty address is a unix socket, whose peer counts as a trusted proxy.
        if not (found in proxies or not found):
            break
        address = parse_ip(_without_port(text))
        if address is None:
            break
        found = str(address)
    return found


def _without_port(text: str) -> str:
    """Strip the port that some proxies add to an entry of X-Forwarded-For."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


# Who sends them

USER_LENGTH_MAX = 256
LOCAL = "local"
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


class Decision(NamedTuple):
    """The result of identifying a request.

    Attributes:
        facts: the request.
        identity: the sender.
        remote: the client's address, as far as trusted proxies report it.
        refusal: why the request is refused; None if it is served.
        is_disbelieved: whether its user header was ignored (rule 7).
        shown: `remote` with its port, unless a proxy reported it.
    """

    facts: AccessRequest
    identity: Identity
    remote: str
    refusal: HttpError | None = None
    is_disbelieved: bool = False
    shown: str = ""


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
        self._grants = _naming_flag("--role", lambda: parse_grants(options.roles))
        for user in options.admin_users:
            self._grants[user] = self._grants.get(user, Role.NONE) | Role.ADMINISTER
        self._default = _naming_flag("--default-role", lambda: parse(options.default_role))
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
        remote = client_of(facts.peer, facts.forwarded_for, self.proxies)
        nobody = Identity("", self._default, "nobody")
        bearer = tokens.shown(facts.authorizations) if self.uses_tokens else None
        if bearer is not None:
            token = self.tokens.find(bearer, now)
            if token is None:
                return Decision(facts, nobody, remote, HttpError(401, UNAUTHORIZED))
            return Decision(facts, self._of_token(token), remote)
        digest = sessions.digest(facts.session, now) if facts.session else None
        token = self.tokens.by_digest(digest, now) if digest is not None else None
        if token is not None:
            return Decision(facts, self._of_token(token), remote)
        if facts.users:
            user = self._named_user(facts)
            return Decision(facts, user or nobody, remote, is_disbelieved=user is None)
        if is_local(facts.peer) and not facts.is_forwarded and self._local:
            local = Identity(LOCAL, self._local | self._default, "local")
            return Decision(facts, local, remote)
        return Decision(facts, nobody, remote)

    def require(self, decision: Decision, role: Role) -> HttpError | None:
        """Return why the sender is refused an action that needs this role; None if allowed."""
        if decision.refusal is not None or decision.identity.may(role):
            return decision.refusal
        could_sign_in = self.uses_tokens and decision.identity.via == "nobody"
        return HttpError(401, UNAUTHORIZED) if could_sign_in else HttpError(403, FORBIDDEN)

    def require_config(self, decision: Decision) -> HttpError | None:
        """Return why a request may not use /config; None if it may.

        With only NSQ's options set, the client's network decides, as in NSQ. If the request came
        through a proxy, or sparq's own options define rights, it also needs a role: `read` to read,
        `administer` to change an option.
        """
        facts = decision.facts
        if decision.refusal is not None:
            return decision.refusal
        needed = Role.ADMINISTER if facts.writes else Role.READ
        peer = facts.peer or "127.0.0.1"
        if parse_ip(peer) is None:
            return HttpError(400, INVALID_REMOTE_ADDR)
        if self._config is None:
            return self.require(decision, needed)
        # Both addresses: a proxy in the allowed network must not open /config for every client.
        if any(text not in self._config for text in (peer, decision.remote or peer)):
            return HttpError(403, FORBIDDEN)
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
    return Networks(() if texts == NO_PROXY else texts or LOOPBACK)


def _local(options: NsqadminOptions) -> Role:
    """Roles of requests from this machine: by default all, until rights are configured."""
    if options.local_role:
        return parse(options.local_role)
    is_configured = options.admin_users or options.roles or options.token_file
    return Role.NONE if is_configured else ALL


# Requests to this nsqadmin

SIGN_IN_BYTES_MAX: Final = 8 << 10
WARN_SECONDS: Final = 60.0
_DECISION: Final = web.RequestKey("sparq.decision", Decision)


class AdminAccess:
    """Access control of one nsqadmin."""

    def __init__(
        self, options: NsqadminOptions, audit: AuditLog, now: Callable[[], float] = time.time
    ) -> None:
        """`now` returns seconds since the epoch. Raises StartError if an option is invalid."""
        self._audit = audit
        self._now = now
        self._sessions = Sessions()
        self._base = base_of(options)
        self._warned_at = float("-inf")
        try:
            self._rules = AccessRules(options)
        except AccessRulesError as error:
            raise StartError(str(error)) from None

    def reload(self, options: NsqadminOptions) -> bool:
        """Apply new options and read the token file again.

        Returns:
            False if an option or the token file is invalid: the error is logged, and all rights
            stay as they were.
        """
        try:
            self._rules = AccessRules(options)
        except AccessRulesError as error:
            logger.error("SIGHUP: keeping the old access rights: %s", error)
            return False
        logger.info("SIGHUP: access rights reloaded, %d tokens", len(self._rules.tokens))
        return True

    def decide(self, request: web.BaseRequest) -> Decision:
        """Identify the sender of a request, once: a reload must not give it two identities."""
        found = request.get(_DECISION)
        if found is None:
            facts = facts_of(request, self._rules.header)
            found = self._rules.identify(facts, self._sessions, self._now())
            is_direct = found.remote == facts.peer and found.remote
            shown = addresses.join(found.remote, facts.port) if is_direct else found.remote
            found = request[_DECISION] = found._replace(shown=shown)
            if found.is_disbelieved and self._now() - self._warned_at >= WARN_SECONDS:
                self._warned_at = self._now()
                logger.warning(
                    "HTTP: ignored header %s from %s, which is no trusted proxy: see"
                    " --trusted-proxy",
                    self._rules.header,
                    facts.peer,
                )
        return found

    def guarded(self, route: Route) -> Route:
        """The route with a check of its right. Raises LookupError: it has no row in the table."""
        right = right_of(route.method, route.path)

        async def handle(call: Call) -> Any:
            if right.config:
                self.require_config(call.request)
            elif right.role:
                self.require(call.request, right.role)
            result = route.handler(call)
            return await result if isinstance(result, Awaitable) else result

        return route._replace(handler=handle)

    def check_origin(self, request: web.BaseRequest) -> web.Response | None:
        """Refuse requests for an unknown host or from another site (rules 1 to 3); None: served.

        `/ping` is answered for every Host: it reveals nothing, and health checks do not know the
        configured names.
        """
        facts = self.decide(request).facts
        found = self._rules.hosts.refusal(facts)
        if found is None or (facts.path == self.url("/ping") and not facts.writes):
            return None
        if facts.writes:
            self._note_refusal(request, found)
        return refusal(found)

    def identify(self, request: web.BaseRequest) -> Identity:
        """Identify the sender of a request; with a wrong token it is anonymous."""
        return self.decide(request).identity

    def require(self, request: web.BaseRequest, role: Role) -> Identity:
        """Return the sender of a request if it has this role.

        Raises:
            HttpError: 401 UNAUTHORIZED if the token is wrong, or if the sender is anonymous and
                could sign in; otherwise 403 FORBIDDEN.
        """
        decision = self.decide(request)
        return self._checked(request, decision, self._rules.require(decision, role))

    def require_config(self, request: web.BaseRequest) -> Identity:
        """Return the sender of a request for /config if it may use /config.

        Raises:
            HttpError: 403 FORBIDDEN, 401 UNAUTHORIZED, or 400 INVALID_REMOTE_ADDR.
        """
        decision = self.decide(request)
        return self._checked(request, decision, self._rules.require_config(decision))

    def _checked(
        self, request: web.BaseRequest, decision: Decision, found: HttpError | None
    ) -> Identity:
        """Raise a refusal; that of a change also goes to the audit log."""
        if found is None:
            return decision.identity
        if decision.facts.writes:
            self._note_refusal(request, found)
        raise found

    @property
    def uses_tokens(self) -> bool:
        """Whether users can sign in with a token."""
        return self._rules.uses_tokens

    async def sign_in(self, request: web.BaseRequest) -> web.Response:
        """Sign in with the form's token: answers 204 with a session cookie.

        The query parameter `to` is the page to open next. If it is not one of nsqadmin's own pages,
        the overview opens.

        Raises:
            HttpError: 401 UNAUTHORIZED if the token is unknown or has expired.
        """
        call = Call(request)
        body = await call.body(SIGN_IN_BYTES_MAX, "BODY_TOO_BIG")
        shown, now = _token_in(body, self.decide(request).facts.content_type), self._now()
        token = self._rules.tokens.find(shown, now)
        if token is None:
            self._note_refusal(request, HttpError(401, "invalid token"))
            raise HttpError(401, UNAUTHORIZED)
        response = web.Response(status=204)
        self._set_cookie(request, response, self._sessions.start(token.digest, now), LIFE_SECONDS)
        response.headers["HX-Redirect"] = self._own_page(call.query.get("to", ""))
        identity = Identity(token.name, token.roles, "token")
        await self._audit.record(self.entry(request, "sign_in", "done", identity))
        return response

    def sign_out(self, request: web.BaseRequest) -> web.Response:
        """End a browser's session."""
        self._sessions.end(self.decide(request).facts.session)
        response = web.Response(status=204, headers={"HX-Redirect": self._own_page("")})
        self._set_cookie(request, response, "", 0)
        return response

    def url(self, path: str) -> str:
        """Prefix a path of nsqadmin with the base path."""
        return self._base + path

    def _own_page(self, target: str) -> str:
        # Browsers take `//host` and `/\\host` for URLs of another host.
        is_own = target.startswith(self.url("/")) and not target.startswith(("//", "/\\"))
        return target if is_own and target.isprintable() and "\\" not in target else self.url("/")

    def _set_cookie(
        self, request: web.BaseRequest, response: web.Response, value: str, seconds: float
    ) -> None:
        facts = self.decide(request).facts
        response.set_cookie(
            COOKIE,
            value,
            max_age=int(seconds),
            path=self._base or "/",
            httponly=True,
            samesite="Strict",
            secure=facts.scheme == "https" and facts.peer in self._rules.proxies,
        )

    def _note_refusal(self, request: web.BaseRequest, found: HttpError) -> None:
        facts = self.decide(request).facts
        action = f"{facts.method} {facts.path}"
        self._audit.refused(self.entry(request, action, "refused", detail=found.code))

    def entry(
        self,
        request: web.BaseRequest,
        action: str,
        outcome: Outcome,
        who: Identity | None = None,
        **about: Any,
    ) -> AuditEntry:
        """Build an entry for the audit log.

        `who` defaults to the sender of the request; `about` has further fields of the entry.
        """
        decision = self.decide(request)
        who, agent = who or decision.identity, decision.facts.user_agent
        told = (who.name, who.via, decision.shown, action, outcome)
        return AuditEntry(*told, user_agent=agent, **about)


def _token_in(body: bytes, content_type: str) -> str:
    """Extract the token from a form or a JSON document; "" if there is none."""
    try:
        if content_type == JSON:
            document = json.loads(body)
            shown = document.get("token") if isinstance(document, dict) else ""
            return shown if isinstance(shown, str) else ""
        return parse_qs(body.decode("ascii"), max_num_fields=10).get("token", [""])[0].strip()
    except (ValueError, RecursionError):
        return ""
