"""Restricts the addresses of registered nodes: forbidden ones are never called (W-6).

Any process that may register with an nsqlookupd decides which addresses its users call. So these
addresses from an nsqlookupd are not called: link-local ones (clouds serve secrets there), multicast
and unspecified ones, ports below 1024 other than HTTP's, and loopback, unless a configured
nsqlookupd is on this machine. An explicit list of allowed addresses replaces this rule.

1. Addresses that the operator configured are exempt.
2. A host name is checked by the IP addresses that it resolves to, at the time of each call.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from sparq.protocol.address import Address, IpAddress, lookupd_url, parse_address, parse_ip

LOW_PORTS: Final = range(1, 1024)
HTTP_PORTS: Final = (80, 443)
ANY_BELOW: Final = "*."
NAME_MAX: Final = 253
LABEL_MAX: Final = 63
_NAME_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


class AddressRule:
    """The rule of one cluster.

    Args:
        lookupds: the configured nsqlookupds.
        allowed: IP addresses, networks, host names or `*.domain`; empty: the rule above.
        vouches: whether `allowed` names the operator's own nodes, which may get the token.

    Attributes:
        vouches: an address that this rule allows is one that the operator named.

    Raises:
        ValueError: an entry of `allowed` is none of these.
    """

    def __init__(
        self,
        lookupds: Iterable[str] = (),
        allowed: Iterable[str] = (),
        *,
        vouches: bool = True,
    ) -> None:
        self._networks = []
        self._names: list[str] = []
        for text in allowed:
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                if not _is_name(text.removeprefix(ANY_BELOW)):
                    what = "an IP address, network, host name or *.domain"
                    raise ValueError(f"{text!r} is not {what}") from None
                self._names.append(text.lower())
        self._is_listed = bool(self._networks or self._names)
        self.vouches = vouches and self._is_listed
        self._is_local = any(is_here(URL(lookupd_url(text)).host or "") for text in lookupds)

    def refusal(self, host: str, port: int) -> str:
        """Why a node that registered this address is not called; "": it may be called."""
        try:
            parse_address(str(Address(host, port)))
        except ValueError:
            port = 0
        if port <= 0:
            return "not a valid host and port"
        found = parse_ip(host)
        if found is not None:
            why = self.refusal_of_ip(found)
        elif not _is_name(host):
            why = "not a valid host name"
        else:
            why = self._refusal_of_name(host.lower().removesuffix("."))
        if not why and not self._is_listed and port in LOW_PORTS and port not in HTTP_PORTS:
            why = f"ports below 1024 other than 80 and 443 are not allowed (port {port})"
        return why

    def refusal_of_ip(self, found: IpAddress) -> str:
        """Why this IP address is not called; "": it may be called."""
        if self._is_listed:
            return (
                ""
                if any(found in network for network in self._networks)
                else "not an allowed address"
            )
        if found.is_link_local or found.is_multicast or found.is_unspecified:
            return "a link-local, multicast or unspecified address"
        if found.is_loopback and not self._is_local:
            return "a loopback address, but no configured nsqlookupd runs on this machine"
        return ""

    def refusal_resolved(self, host: str, text: str) -> str:
        """Why a name that resolves to this IP address is not called; "": it may be called."""
        # The operator allowed the name itself, so it may lead to any address.
        if self._is_listed and not self._refusal_of_name(host.lower()):
            return ""
        found = parse_ip(text)
        return "not an IP address" if found is None else self.refusal_of_ip(found)

    def _refusal_of_name(self, name: str) -> str:
        if self._is_listed:
            if any(_is_like(name, allowed) for allowed in self._names):
                return ""
            # With networks, the decision waits for the IP address that the name resolves to.
            return "" if self._networks else "not an allowed address"
        if name == "localhost" or name.endswith(".localhost"):
            return (
                ""
                if self._is_local
                else "a loopback address, but no configured nsqlookupd runs on this machine"
            )
        return ""


class GuardedResolver(AbstractResolver):
    """Resolves names as the system does, and leaves out addresses that may not be called."""

    def __init__(self, refusal: Callable[[str, str], str]) -> None:
        """`refusal(host, ip)` gives the reason why an address is not called, or ""."""
        self._refusal = refusal
        # Not aiohttp's default, which depends on whether aiodns is installed.
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name that may be called.

        Raises:
            OSError: the name does not resolve, or none of its addresses may be called.
        """
        found = await self._resolver.resolve(host, port, family)
        good = [one for one in found if not self._refusal(host, one["host"])]
        if found and not good:
            raise socket.gaierror(socket.EAI_FAIL, "none of the name's addresses is allowed")
        return good

    async def close(self) -> None:
        """Close the system's resolver."""
        await self._resolver.close()


def is_here(host: str) -> bool:
    """Whether a host is this machine: a loopback address, `localhost` or its own host name."""
    found = parse_ip(host)
    if found is not None:
        return found.is_loopback
    return host.lower() in ("localhost", socket.gethostname().lower())


def _is_name(text: str) -> bool:
    """Whether a text looks like a host name; a name must not look like an IPv4 address."""
    folded = text.lower()
    if not folded or len(folded) > NAME_MAX or not set(folded) <= _NAME_LETTERS:
        return False
    # Some resolvers read 2852039166 or 0xa9.254.1 as an IPv4 address in an old notation.
    labels = folded.removesuffix(".").split(".")
    if any(not 0 < len(label) <= LABEL_MAX for label in labels):
        return False
    return not labels[-1].isdigit() and not labels[-1].startswith("0x")


def _is_like(name: str, allowed: str) -> bool:
    if allowed.startswith(ANY_BELOW):
        return name.endswith(allowed.removeprefix("*"))
    return name == allowed.removesuffix(".")
