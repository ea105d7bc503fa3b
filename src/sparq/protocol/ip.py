"""IP addresses as peers and their headers write them."""

from __future__ import annotations

import ipaddress

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_ip(text: str) -> IpAddress | None:
    """An IP address, in brackets or not; an IPv4 one also where IPv6 carries it.

    None for any other text: a host's name is never resolved.
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
