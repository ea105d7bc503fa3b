"""Checks where requests come from: host names of this server, its own pages, trusted proxies.

A page of another site can make a browser send requests to nsqadmin: with a form, with a script, or
with a host name of its own that resolves to nsqadmin's address (DNS rebinding). A browser always
sends the host name that it requested and, with requests that change state, the site of the page.

1. A Host that is neither an IP address nor a known name is refused, for reads too.
2. An Origin must match the server that the request went to; `null` never matches. Sec-Fetch-Site
   must not contradict it: a page of another site may only navigate here, and only to read.
3. A browser's request that changes state needs a JSON content type or htmx's header: a form of
   another site can send neither. Programs (curl, NSQ's scripts) may send any type, as with NSQ.
4. Every answer carries `SECURE_HEADERS`, which restrict what a browser may do with it.
5. Each proxy appends the address that it sees to X-Forwarded-For. So the list is read from its
   end: the first address that is not a trusted proxy is the client. The entries before it were
   sent by the client itself and prove nothing.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sparq.daemon import address as addresses
from sparq.nsqadmin.access.request import AccessRequest
from sparq.protocol.address import parse_ip

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


class Refusal(NamedTuple):
    """Why a request is refused: an HTTP status and a text for the user."""

    status: int
    text: str


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

    def refusal(self, facts: AccessRequest) -> Refusal | None:
        """Return why this request is refused; None if it is served."""
        here = split_host_port(facts.hosts[0]) if len(facts.hosts) == 1 else None
        if here is None or not self._is_known(here):
            sent = ", ".join(facts.hosts)[:_SHOWN]
            return Refusal(403, f"unknown Host {sent!r}: see --allowed-host")
        if facts.origins and not (len(facts.origins) == 1 and self._is_own(facts.origins[0], here)):
            sent = ", ".join(facts.origins)[:_SHOWN]
            return Refusal(403, f"request from another site, {sent!r}: see --allowed-host")
        return _cross_site(facts) or _simple_form(facts)

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


def _cross_site(facts: AccessRequest) -> Refusal | None:
    if facts.fetch_site in OWN_SITE:
        return None
    if not facts.writes and facts.fetch_mode == "navigate":
        return None
    return Refusal(403, f"request from another site: Sec-Fetch-Site {facts.fetch_site[:_SHOWN]!r}")


def _simple_form(facts: AccessRequest) -> Refusal | None:
    needs = facts.writes and facts.is_browsers
    if not needs or facts.is_htmx or facts.content_type == JSON:
        return None
    return Refusal(403, "browsers must send Content-Type: application/json or HX-Request")


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


def client(peer: str, forwarded_for: Sequence[str], proxies: Networks) -> str:
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
