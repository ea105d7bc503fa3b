"""Where requests come from: known names of this server, its own pages, trusted proxies.

A page of another site can make a browser send requests to nsqadmin: by a form, by a script, or by a
name of its own that it points at nsqadmin's address (DNS rebinding). A browser always says which
name it asked for and, with what changes something, which site's page it was.

1. A Host that is no IP address and no known name is refused, for reading too.
2. An Origin must be the one that the request went to; `null` is none. Sec-Fetch-Site must not say
   otherwise; a page of another site may only lead here (navigate), and only to read.
3. What a browser sends to change something needs a JSON content type or htmx's header: a form of
   another site has neither. Programs (curl, NSQ's scripts) may send what they like, as with NSQ.
4. `SECURE_HEADERS` of every answer say what a browser may do with it.
5. Each proxy appends the address that it sees to X-Forwarded-For. So the last one counts first, and
   as soon as one is no trusted proxy it is the client: what stands before it is the client's own
   claim.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sparq.daemon import address as addresses
from sparq.nsqadmin.access.facts import Facts
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
"""So many proxies in a row are looked through."""

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
    """Why a request is refused: a status and a sentence for people."""

    status: int
    text: str


class Place(NamedTuple):
    """A name or an IP address, and a port; no port: the scheme's own."""

    name: str
    port: str


def place(authority: str) -> Place | None:
    """The parts of `name:port`; None for what is no such thing."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return None
    return Place(found[1].lower().removesuffix("."), found[2] or "")


class Hosts:
    """The names that lead to this server."""

    def __init__(self, allowed: Iterable[str], http_address: str) -> None:
        """`allowed`: `name`, `name:port`, `*.domain` or `*`. Raises ValueError: one is none."""
        self._allowed: list[Place] = []
        self._any = False
        for text in allowed:
            if not _ENTRY.fullmatch(text):
                raise ValueError(f"{text!r} is no host name")
            name, _, port = text.lower().partition(":")
            self._any = self._any or name == ANY
            self._allowed.append(Place(name, port))
        listening = addresses.split(http_address)
        own = socket.gethostname().lower()
        named = {listening[0].lower()} if listening else set()
        self._own = {"localhost", own, own.partition(".")[0], *named} - {""}

    def refusal(self, facts: Facts) -> Refusal | None:
        """Why this request is not answered; None: it is."""
        here = place(facts.hosts[0]) if len(facts.hosts) == 1 else None
        if here is None or not self._is_known(here):
            sent = ", ".join(facts.hosts)[:_SHOWN]
            return Refusal(403, f"unknown Host {sent!r}: see --allowed-host")
        if facts.origins and not (len(facts.origins) == 1 and self._is_own(facts.origins[0], here)):
            sent = ", ".join(facts.origins)[:_SHOWN]
            return Refusal(403, f"request from another site, {sent!r}: see --allowed-host")
        return _cross_site(facts) or _simple_form(facts)

    def _is_known(self, here: Place) -> bool:
        # No name of another's leads to an IP address: that cannot be rebound.
        is_ours = parse_ip(here.name) is not None or here.name in self._own
        return self._any or is_ours or self._is_allowed(here, is_usual=True)

    def _is_own(self, origin: str, here: Place) -> bool:
        """Whether an origin is this server: where the request went, or a name that was allowed."""
        scheme, _, authority = origin.partition("://")
        default = _DEFAULT_PORTS.get(scheme.lower())
        there = place(authority)
        if there is None or default is None:
            return False
        if there.name == here.name and (there.port or default) == (here.port or default):
            return True
        # A proxy that does not pass Host on: the browser asked for a name that was allowed.
        return self._is_allowed(there, is_usual=there.port in ("", default, here.port))

    def _is_allowed(self, asked: Place, *, is_usual: bool) -> bool:
        """Whether `--allowed-host` names it; a name without a port stands for the usual ones."""
        return any(
            _covers(name, asked.name) and (port == asked.port if port else is_usual)
            for name, port in self._allowed
        )


def _covers(allowed: str, name: str) -> bool:
    return name.endswith(allowed[1:]) if allowed.startswith("*.") else name == allowed


def _cross_site(facts: Facts) -> Refusal | None:
    if facts.fetch_site in OWN_SITE:
        return None
    if not facts.writes and facts.fetch_mode == "navigate":
        return None
    return Refusal(403, f"request from another site: Sec-Fetch-Site {facts.fetch_site[:_SHOWN]!r}")


def _simple_form(facts: Facts) -> Refusal | None:
    needs = facts.writes and facts.is_browsers
    if not needs or facts.is_htmx or facts.content_type == JSON:
        return None
    return Refusal(403, "a browser must send JSON (Content-Type: application/json) or HX-Request")


class Networks:
    """A set of IP networks."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises ValueError: one is neither a network nor an IP address."""
        self._networks = [ipaddress.ip_network(text.strip(), strict=False) for text in texts]

    def __contains__(self, address: object) -> bool:
        found = parse_ip(address) if isinstance(address, str) else None
        return found is not None and any(found in network for network in self._networks)


def is_local(peer: str) -> bool:
    """Whether a connection's other end is this machine: loopback, or a unix socket (empty)."""
    if not peer:
        return True
    found = parse_ip(peer)
    return found is not None and found.is_loopback


def client(peer: str, forwarded_for: Sequence[str], proxies: Networks) -> str:
    """The address that a request comes from, as far as trusted proxies vouch for it (rule 5)."""
    found = peer
    for text in reversed(forwarded_for[-HOPS_MAX:]):
        if not (found in proxies or not found):
            break
        address = parse_ip(_without_port(text))
        if address is None:
            break
        found = str(address)
    return found


def _without_port(text: str) -> str:
    """An entry of X-Forwarded-For without the port that some proxies add."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
