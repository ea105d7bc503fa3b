"""Addresses as text: ``host:port``, with brackets around IPv6 as in ``[::1]:4150``.

1. An address has one spelling, whether it was configured, read from nsqlookupd or displayed: it is
   the key that identifies connections and nodes. Names are not resolved here.
2. An nsqd may also listen on a unix socket: its address is the path, which begins with ``/``.
3. The HTTP address of a daemon is ``host:port`` or a URL, which may be an ``https`` one.
4. `parse_ip` reads IP addresses as peers and headers write them.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

PORT_MAX = 65_535


class Address(NamedTuple):
    """The address of a daemon; for a unix socket ``host`` is the path and ``port`` is 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.is_path:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_path(self) -> bool:
        """Whether the address is the path of a unix socket."""
        return self.host.startswith("/")


def parse_address(text: str) -> Address:
    """Parse ``host:port``.

    Raises:
        ValueError: the text has another form; the error quotes it.
    """
    host, colon, port = text.strip().rpartition(":")
    # Without brackets, ::1:4150 could also be an address without a port: it is refused.
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    well_formed = colon and plain and (bracketed or ":" not in plain) and "/" not in plain
    if not well_formed or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise ValueError(f"not an address of the form host:port: {text!r}")
    return Address(plain, int(port))


def bare_host(host: str) -> str:
    """Return a host without the brackets that an IPv6 address has only in front of a port."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host


def lookupd_url(text: str) -> str:
    """The URL of a daemon's HTTP server, given as ``host:port`` or as a URL.

    Raises:
        ValueError: the text is neither.
    """
    if "://" not in text:
        return f"http://{parse_address(text)}"
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an address of the form host:port or an HTTP URL: {text!r}")
    return text.strip()


IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_ip(text: str) -> IpAddress | None:
    """Parse an IP address, with or without brackets; an IPv4-mapped IPv6 address becomes IPv4.

    Returns None for any other text: host names are not resolved.
    """
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found
