"""The visitor's address among those that a click passed, and the proxies that are trusted."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PRIVATE: Final = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "169.254.0.0/16"),
    *("fc00::/7", "fe80::/10", "::1/128"),
)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """The networks that texts name; "private" stands for all private ones.

    Raises:
        ValueError: a text names no network.
    """
    names = (one for text in texts for one in (_PRIVATE if text == "private" else (text,)))
    try:
        return tuple(ipaddress.ip_network(one, strict=False) for one in names)
    except ValueError:
        raise ValueError("is not a network: write 10.0.0.0/8, an address, or private") from None


def visitor(address: str | None, forwarded: str | None, proxies: Sequence[Network]) -> str | None:
    """The address that counts, of the connection's and those of X-Forwarded-For before it.

    Each one was written by the next. A client can write any at the front, so the last one counts
    that is not a trusted proxy. Without any address, X-Forwarded-For counts.
    """
    texts = ((forwarded if proxies or not address else "") or "", address or "")
    passed = [one for text in texts for one in re.split(r"[,\s]+", text) if one not in ("", "-")]
    for one in reversed(passed):
        try:
            found = ipaddress.ip_address(one)
        except ValueError:
            return one  # a name
        if not any(found in network for network in proxies):
            return one
    return passed[0] if passed else None
