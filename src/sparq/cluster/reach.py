"""Where a node that registered itself may be: what is never called, whoever names it (W-6).

Whoever may register with an nsqlookupd decides where its users go. So of the addresses that an
nsqlookupd lists, these are not called: link-local ones (where clouds keep their secrets), multicast
and unspecified ones, low ports other than HTTP's, and loopback, unless an nsqlookupd that was
configured is on this machine itself. A list of what is allowed takes the place of all that.

1. Addresses that the operator configured are not held to it.
2. A name is held to it by what it resolves to, at the moment of each call.
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


class Reach:
    """The rule of one cluster.

    Args:
        lookupds: the nsqlookupds that were configured.
        allowed: IP addresses, networks, host names or `*.domain`; empty: the rule above.

    Raises:
        ValueError: one of `allowed` is none of these.
    """

    def __init__(self, lookupds: Iterable[str] = (), allowed: Iterable[str] = ()) -> None:
        self._networks = []
        self._names: list[str] = []
        for text in allowed:
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                if not _is_name(text.removeprefix(ANY_BELOW)):
                    what = "no IP address, network, host name or *.domain"
                    raise ValueError(f"{text!r} is {what}") from None
                self._names.append(text.lower())
        self._is_listed = bool(self._networks or self._names)
        self._is_local = any(is_here(URL(lookupd_url(text)).host or "") for text in lookupds)

    def refusal(self, host: str, port: int) -> str:
        """Why a node that says it is there is not called; "": it may be."""
        try:
            parse_address(str(Address(host, port)))
        except ValueError:
            port = 0
        if port <= 0:
            return "no address of a host"
        found = parse_ip(host)
        if found is not None:
            why = self.refusal_of_ip(found)
        elif not _is_name(host):
            why = "no host name"
        else:
            why = self._refusal_of_name(host.lower().removesuffix("."))
        if not why and not self._is_listed and port in LOW_PORTS and port not in HTTP_PORTS:
            why = f"port {port} is another service's"
        return why

    def refusal_of_ip(self, found: IpAddress) -> str:
        """Why this IP address is not called; "": it may be."""
        if self._is_listed:
            return "" if any(found in network for network in self._networks) else "not allowed"
        if found.is_link_local or found.is_multicast or found.is_unspecified:
            return "no address of a host"
        if found.is_loopback and not self._is_local:
            return "this machine itself, while no nsqlookupd is on it"
        return ""

    def refusal_resolved(self, host: str, text: str) -> str:
        """Why a name is not called that resolves to this IP address; "": it may be."""
        if self._is_listed and not self._refusal_of_name(host.lower()):
            return ""
        found = parse_ip(text)
        return "no address" if found is None else self.refusal_of_ip(found)

    def _refusal_of_name(self, name: str) -> str:
        if self._is_listed:
            if any(_is_like(name, allowed) for allowed in self._names):
                return ""
            return "" if self._networks else "not allowed"
        if name == "localhost" or name.endswith(".localhost"):
            return "" if self._is_local else "this machine itself, while no nsqlookupd is on it"
        return ""


class GuardedResolver(AbstractResolver):
    """Resolves names as the system does, and leaves out what may not be called."""

    def __init__(self, refusal: Callable[[str, str], str]) -> None:
        """`refusal`: why a name is not called where it resolves to an IP address."""
        self._refusal = refusal
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            OSError: there is none that may be called.
        """
        found = await self._resolver.resolve(host, port, family)
        good = [one for one in found if not self._refusal(host, one["host"])]
        if found and not good:
            raise socket.gaierror(socket.EAI_FAIL, "it is at no address that may be called")
        return good

    async def close(self) -> None:
        """Nothing is kept."""
        await self._resolver.close()


def is_here(host: str) -> bool:
    """Whether a host is this machine, by loopback or by its own name."""
    found = parse_ip(host)
    if found is not None:
        return found.is_loopback
    return host.lower() in ("localhost", socket.gethostname().lower())


def _is_name(text: str) -> bool:
    """Whether it looks like a host's name; of digits and dots only, it would be half an IP."""
    folded = text.lower()
    if not folded or len(folded) > NAME_MAX or not set(folded) <= _NAME_LETTERS:
        return False
    # What some resolvers read as an IPv4 address in an old notation: 2852039166, 0xa9.254.1.
    labels = folded.removesuffix(".").split(".")
    if any(not 0 < len(label) <= LABEL_MAX for label in labels):
        return False
    return not labels[-1].isdigit() and not labels[-1].startswith("0x")


def _is_like(name: str, allowed: str) -> bool:
    if allowed.startswith(ANY_BELOW):
        return name.endswith(allowed.removeprefix("*"))
    return name == allowed.removesuffix(".")
