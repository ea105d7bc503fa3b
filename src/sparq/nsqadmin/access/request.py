"""The parts of a request that access control needs, read from aiohttp's request.

Only this module of the package reads request headers. The rules work on `AccessRequest`, so they
are tested without a server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparq.daemon.address import peer_host
from sparq.nsqadmin.access.roles import READING

if TYPE_CHECKING:
    from aiohttp import web

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
    host, port = peer_host(peer), int(peer[1]) if isinstance(peer, tuple) else 0
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
