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

What needs which role. nsqadmin uses five of the roles in `sparq.daemon.access.rules`. Each route
states its role (`AdminRoute`). If the body of a request names the action, that is the role that all
actions of the route need at least; `actions.ROLES` has the role of the action itself.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import re
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs

from aiohttp import web

from sparq.daemon import address as addresses
from sparq.daemon.access import tokens
from sparq.daemon.access.access import FORBIDDEN, UNAUTHORISED
from sparq.daemon.access.audit import AuditLog, entry_of
from sparq.daemon.access.rules import (
    ADMINS_WORDS,
    ALL_TOPICS,
    NO_ROLE,
    Caller,
    Grant,
    Role,
    RoleError,
    Via,
    role_of,
    roles_for,
)
from sparq.daemon.access.tokens import ADMINS_FORM, Tokens
from sparq.daemon.http import Call, Handler, HttpError, Route, refusal
from sparq.nsqadmin.options import NsqadminOptions, base_of
from sparq.program.lifecycle import StartError
from sparq.protocol.address import parse_ip

logger = logging.getLogger(__name__)


# Roles

ALL = Role.ADMINISTER | Role.BODIES | Role.PUBLISH


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


READING: Final = ("GET", "HEAD", "OPTIONS")


class AdminRoute(NamedTuple):
    """A route of nsqadmin and the role that it needs; the other fields are those of `Route`.

    `role` None: the route is /config, which checks the client's network (`require_config`).
    """

    role: Role | None
    method: str
    path: str
    handler: Handler
    plain: bool = False
    log: bool = True


# Where requests come from

COOKIE: Final = "nsqadmin_session"
FORWARDING: Final = (
    *("X-Forwarded-For", "Forwarded", "Via", "X-Forwarded-Host", "X-Forwarded-Proto"),
    *("X-Real-IP", "X-Scheme"),
)
"""A configured reverse proxy sends at least one of these headers."""

_BROWSER = ("Origin", "Referer", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_ENTRY = re.compile(r"\*|(?:\*\.)?[A-Za-z0-9._-]+(?::[0-9]{1,5})?")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_SHOWN = 100
OWN_SITE: Final = ("", "same-origin", "none")
JSON: Final = "application/json"
HOPS_MAX: Final = 20
"""Maximum number of entries of X-Forwarded-For that are evaluated."""

SECURE_HEADERS: Final = {
    "Content-Security-Policy": "; ".join(
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
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def writes(request: web.BaseRequest) -> bool:
    """Whether a request may change state."""
    return request.method not in READING


def path_of(request: web.BaseRequest) -> str:
    """The path of a request as it was sent, without the query."""
    return request.raw_path.partition("?")[0]


def peer_of(request: web.BaseRequest) -> str:
    """The IP address of a request's peer; empty for a unix socket."""
    # Without the zone of a link-local address (`fe80::1%eth0`): no network is written with one.
    return addresses.peer_host((request.remote or "", 0)).partition("%")[0]


def content_type_of(request: web.BaseRequest) -> str:
    """The content type that a request states, in lower case and without its parameters."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def session_of(request: web.BaseRequest) -> str:
    """The id of a request's session; "" without one."""
    # Parsed by hand: http.cookies rejects the whole header if one cookie of the host is malformed.
    for line in request.headers.getall("Cookie", ()):
        for cookie in line.split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == COOKIE:
                return value
    return ""


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
        for text in allowed:
            if not _ENTRY.fullmatch(text):
                raise ValueError(f"{text!r} is not a host name: use name, name:port, *.domain or *")
            name, _, port = text.lower().partition(":")
            self._allowed.append(HostPort(name, port))
        listening = addresses.split(http_address)
        own = socket.gethostname().lower()
        named = {listening[0].lower()} if listening else set()
        self._own = {"localhost", own, own.partition(".")[0], *named} - {""}

    def refusal(self, request: web.BaseRequest) -> HttpError | None:
        """Return why this request is refused (rules 1 to 3); None if it is served."""
        headers = request.headers
        hosts, origins = headers.getall("Host", ()), headers.getall("Origin", ())
        here = split_host_port(hosts[0]) if len(hosts) == 1 else None
        if here is None or not self._is_known(here):
            sent = ", ".join(hosts)[:_SHOWN]
            return HttpError(403, f"unknown Host {sent!r}: see --allowed-host")
        if origins and not (len(origins) == 1 and self._is_own(origins[0], here)):
            sent = ", ".join(origins)[:_SHOWN]
            return HttpError(403, f"request from another site, {sent!r}: see --allowed-host")
        site = headers.get("Sec-Fetch-Site", "")
        is_visit = not writes(request) and headers.get("Sec-Fetch-Mode") == "navigate"
        if site not in OWN_SITE and not is_visit:
            return HttpError(403, f"request from another site: Sec-Fetch-Site {site[:_SHOWN]!r}")
        is_browsers = headers.get("User-Agent", "").startswith("Mozilla/") or any(
            name in headers for name in _BROWSER
        )
        is_htmx = headers.get("HX-Request", "").lower() == "true"
        is_form = is_browsers and not is_htmx and content_type_of(request) != JSON
        if writes(request) and is_form:
            text = "browsers must send Content-Type: application/json or HX-Request"
            return HttpError(403, text)
        return None

    def _is_known(self, here: HostPort) -> bool:
        # DNS rebinding needs a host name; an IP address in Host cannot be rebound.
        is_ours = parse_ip(here.name) is not None or here.name in self._own
        is_any = any(name == "*" for name, _ in self._allowed)
        return is_ours or is_any or self._is_allowed(here, is_usual=True)

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
        for name, port in self._allowed:
            is_domain = name.startswith("*.") and requested.name.endswith(name[1:])
            is_port = port == requested.port if port else is_usual
            if is_port and (is_domain or name == requested.name):
                return True
        return False


class Networks:
    """A set of IP networks."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises ValueError if a text is neither a network nor an IP address."""
        self._networks = [ipaddress.ip_network(text.strip(), strict=False) for text in texts]

    def __contains__(self, address: object) -> bool:
        found = parse_ip(address) if isinstance(address, str) else None
        return found is not None and any(found in network for network in self._networks)


LOOPBACK: Final = Networks(["127.0.0.0/8", "::1/128"])


def client_of(request: web.BaseRequest, proxies: Networks) -> str:
    """Find the client's address, as far as trusted proxies report it (rule 5)."""
    found = peer_of(request)
    forwarded_for = ",".join(request.headers.getall("X-Forwarded-For", ())).split(",")
    for text in reversed(forwarded_for[-HOPS_MAX:]):
        # An empty address is a unix socket, whose peer counts as a trusted proxy.
        if found and found not in proxies:
            break
        address = parse_ip(_without_port(text.strip()))
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

USER_LENGTH_MAX: Final = 256
LIFE_SECONDS: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000


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


class AccessRules:
    """The access rules that one set of options defines.

    Attributes:
        config: the networks that may use /config; None: only roles decide.
        grants: the roles of the users that a proxy names.
        default: the roles of every sender.
        local: the roles of requests from this machine; by default all, until rights are configured.
        tokens: the tokens of the token file; None: there is no file.
        is_strict: whether sparq's own options define rights.
    """

    def __init__(self, options: NsqadminOptions) -> None:
        """Raises StartError if a flag's value or the token file is invalid."""
        proxies, network = options.trusted_proxies, options.allow_config_from_cidr
        file = options.token_file
        is_configured = bool(options.admin_users or options.roles or file)
        self.header = options.acl_http_header
        self.is_strict = bool(options.roles or file or options.local_role)
        with _naming("--allowed-host"):
            self.hosts = Hosts(options.allowed_hosts, options.http_address)
        with _naming("--trusted-proxy"):
            named = Networks(() if proxies == ("none",) else proxies)
            self.proxies = named if proxies else LOOPBACK
        with _naming("--allow-config-from-cidr"):
            self.config = Networks([network]) if network else None
        with _naming("--role"):
            self.grants = parse_grants(options.roles)
        for user in options.admin_users:
            self.grants[user] = self.grants.get(user, Role.NONE) | Role.ADMINISTER
        with _naming("--default-role"):
            self.default = parse(options.default_role)
        with _naming("--local-role"):
            unset = Role.NONE if is_configured else ALL
            self.local = parse(options.local_role) if options.local_role else unset
        with _naming("--token-file"):
            self.tokens: Tokens | None = tokens.read(file, ADMINS_FORM) if file else None


@contextlib.contextmanager
def _naming(flag: str) -> Iterator[None]:
    """Turn the error of a value into one that names its flag."""
    try:
        yield
    except ValueError as error:
        raise StartError(f"{flag}: {error}") from None


# Requests to this nsqadmin

SIGN_IN_BYTES_MAX: Final = 8 << 10
WARN_SECONDS: Final = 60.0
_CALLER: Final = web.RequestKey("sparq.caller", Caller)


class AdminAccess:
    """Access control of one nsqadmin; `sessions`: of the browsers that signed in."""

    def __init__(
        self, options: NsqadminOptions, audit: AuditLog, now: Callable[[], float] = time.time
    ) -> None:
        """`now` returns seconds since the epoch. Raises StartError if an option is invalid."""
        self._audit = audit
        self._now = now
        self.sessions = Sessions()
        self._base = base_of(options)
        self._warned_at = float("-inf")
        self._rules = AccessRules(options)

    def reload(self, options: NsqadminOptions) -> bool:
        """Apply new options and read the token file again.

        Returns:
            False if an option or the token file is invalid: the error is logged, and all rights
            stay as they were.
        """
        try:
            self._rules = AccessRules(options)
        except StartError as error:
            logger.error("SIGHUP: keeping the old access rights: %s", error)
            return False
        count = len(self._rules.tokens or ())
        logger.info("SIGHUP: access rights reloaded, %d tokens", count)
        return True

    @property
    def uses_tokens(self) -> bool:
        """Whether users can sign in with a token."""
        return self._rules.tokens is not None

    def decide(self, request: web.BaseRequest) -> Caller:
        """Identify the sender of a request, once: a reload must not give it two identities.

        It has one grant, with all its roles; with a wrong token it has none, and no default roles.
        """
        found = request.get(_CALLER)
        if found is None:
            found = request[_CALLER] = self._identify(request)
        return found

    def _identify(self, request: web.BaseRequest) -> Caller:
        rules, headers, now = self._rules, request.headers, self._now()
        peer, client = peer_of(request), client_of(request, rules.proxies)
        agent = headers.get("User-Agent", "")
        end: Any = request.transport.get_extra_info("peername") if request.transport else ""
        remote = addresses.join(peer, end[1]) if end and client == peer else client
        reason = FORBIDDEN if rules.tokens is None else UNAUTHORISED
        nobody = Caller("", "nobody", (Grant(rules.default),), reason, remote, agent)

        def known(name: str, via: Via, roles: Role) -> Caller:
            grants = (Grant(roles | rules.default),)
            return replace(nobody, name=name, via=via, grants=grants, reason=FORBIDDEN)

        if rules.tokens is not None:
            bearer = tokens.shown(headers.getall("Authorization", ()))
            session = self.sessions.digest(session_of(request), now)
            token = None
            if bearer is not None:
                token = rules.tokens.find(bearer, now)
                if token is None:
                    return replace(nobody, grants=())
            elif session is not None:
                token = rules.tokens.with_digest(session, now)
            if token is not None:
                return known(token.name, "token", roles_for(token.grants, ALL_TOPICS))
        users = headers.getall(rules.header, ())
        if users:
            # Two headers: the proxy added its own to one that the client sent. Trust neither.
            name = users[0].strip() if len(users) == 1 else ""
            if (not peer or peer in rules.proxies) and 0 < len(name) <= USER_LENGTH_MAX:
                return known(name, "header", rules.grants.get(name, Role.NONE))
            if now - self._warned_at >= WARN_SECONDS:
                self._warned_at = now
                logger.warning(
                    "HTTP: ignored header %s from %s, which is no trusted proxy: see"
                    " --trusted-proxy",
                    rules.header,
                    peer,
                )
        elif (not peer or peer in LOOPBACK) and not self._is_forwarded(request) and rules.local:
            return known("local", "local", rules.local)
        return nobody

    def _is_forwarded(self, request: web.BaseRequest) -> bool:
        """Whether any header shows that a proxy sent this request."""
        return any(name in request.headers for name in (*FORWARDING, self._rules.header))

    def guarded(self, route: AdminRoute) -> Route:
        """The route with a check of its role before its handler."""
        role, handler = route.role, route.handler

        async def handle(call: Call) -> Any:
            if role is None:
                self.require_config(call.request)
            elif role:
                self.require(call.request, role)
            result = handler(call)
            return await result if isinstance(result, Awaitable) else result

        return Route(route.method, route.path, handle, plain=route.plain, log=route.log)

    def check_origin(self, request: web.BaseRequest) -> web.Response | None:
        """Refuse requests for an unknown host or from another site (rules 1 to 3); None: served.

        `/ping` is answered for every Host: it reveals nothing, and health checks do not know the
        configured names.
        """
        self.decide(request)
        found = self._rules.hosts.refusal(request)
        is_ping = path_of(request) == f"{self._base}/ping" and not writes(request)
        return None if found is None or is_ping else refusal(self._refused(request, found))

    def require(self, request: web.BaseRequest, role: Role) -> Caller:
        """Return the sender of a request if it has this role.

        Raises:
            HttpError: 401 UNAUTHORIZED if the token is wrong, or if the sender is anonymous and
                could sign in; otherwise 403 FORBIDDEN.
        """
        caller = self.decide(request)
        if not any(role in grant.role for grant in caller.grants):
            is_known = caller.reason == FORBIDDEN
            found = HttpError(403, "FORBIDDEN") if is_known else HttpError(401, "UNAUTHORIZED")
            raise self._refused(request, found)
        return caller

    def require_config(self, request: web.BaseRequest) -> None:
        """Check that a request may use /config.

        With only NSQ's options set, the client's network decides, as in NSQ. If the request came
        through a proxy, or sparq's own options define rights, it also needs a role: `read` to read,
        `administer` to change an option.

        Raises:
            HttpError: 403 FORBIDDEN, 401 UNAUTHORIZED, or 400 INVALID_REMOTE_ADDR.
        """
        rules, networks = self._rules, self._rules.config
        peer = peer_of(request) or "127.0.0.1"
        if self.decide(request).grants:  # else its token is wrong
            if parse_ip(peer) is None:
                raise self._refused(request, HttpError(400, "INVALID_REMOTE_ADDR"))
            # Both addresses: a proxy in the allowed network must not open /config for every client.
            clients = (peer, client_of(request, rules.proxies) or peer)
            if networks is not None and any(client not in networks for client in clients):
                raise self._refused(request, HttpError(403, "FORBIDDEN"))
        if networks is None or rules.is_strict or self._is_forwarded(request):
            self.require(request, Role.ADMINISTER if writes(request) else Role.READ)

    def _refused(self, request: web.BaseRequest, found: HttpError) -> HttpError:
        """Return a refusal; that of a change goes to the audit log."""
        if writes(request):
            action = f"{request.method} {path_of(request)}"
            caller = self.decide(request)
            self._audit.refused(entry_of(caller, action, "refused", detail=found.code))
        return found

    async def sign_in(self, call: Call) -> web.Response:
        """Sign in with the form's token: answers 204 with a session cookie.

        The query parameter `to` is the page to open next. If it is not one of nsqadmin's own pages,
        the overview opens.

        Raises:
            HttpError: 401 UNAUTHORIZED if the token is unknown or has expired.
        """
        request, now = call.request, self._now()
        body = await call.body(SIGN_IN_BYTES_MAX, "BODY_TOO_BIG")
        shown = _token_in(body, content_type_of(request))
        token = self._rules.tokens.find(shown, now) if self._rules.tokens is not None else None
        if token is None:
            self._refused(request, HttpError(401, "invalid token"))
            raise HttpError(401, "UNAUTHORIZED")
        # Browsers take `//host` and `/\\host` for URLs of another host.
        to, home = call.query.get("to", ""), f"{self._base}/"
        is_own = to.startswith(home) and not to.startswith("//") and "\\" not in to
        response = web.Response(status=204)
        response.headers["HX-Redirect"] = to if is_own and to.isprintable() else home
        self._set_cookie(request, response, self.sessions.start(token.digest, now), LIFE_SECONDS)
        caller = replace(self.decide(request), name=token.name, via="token")
        await self._audit.record(entry_of(caller, "sign_in", "done"))
        return response

    def sign_out(self, call: Call) -> web.Response:
        """End a browser's session."""
        self.sessions.end(session_of(call.request))
        response = web.Response(status=204, headers={"HX-Redirect": f"{self._base}/"})
        self._set_cookie(call.request, response, "", 0)
        return response

    def _set_cookie(
        self, request: web.BaseRequest, response: web.Response, value: str, seconds: float
    ) -> None:
        headers = request.headers
        scheme = headers.get("X-Forwarded-Proto", "") or headers.get("X-Scheme", "")
        response.set_cookie(
            COOKIE,
            value,
            max_age=int(seconds),
            path=self._base or "/",
            httponly=True,
            samesite="Strict",
            # Whoever is not a trusted proxy may say anything.
            secure=scheme.lower() == "https" and peer_of(request) in self._rules.proxies,
        )


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
