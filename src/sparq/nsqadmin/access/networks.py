"""IP networks that options name, and whose address a request really comes from."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from sparq.protocol.ip import parse_ip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK = ("127.0.0.0/8", "::1/128")
HOPS_MAX = 20
"""So many proxies in a row are looked through."""


class Networks:
    """A set of IP networks."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises ValueError: one is neither a network nor an IP address."""
        self._networks: list[Network] = [
            ipaddress.ip_network(text.strip(), strict=False) for text in texts
        ]

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
    """The address that a request comes from, as far as trusted proxies vouch for it.

    Each proxy appends the address that it sees. So the last one counts first, and as soon as one is
    no trusted proxy it is the client: what stands before it is the client's own claim.
    """
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
