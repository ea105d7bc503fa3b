"""Which addresses nsqadmin calls: an nsqlookupd names nodes, and whoever registers there chooses.

Someone who may register an nsqd could otherwise have nsqadmin send requests to anything that its
machine reaches: a cloud's metadata service, or a port of the machine itself.

1. Without `--allow-node-address` every node may be called, but no link-local, multicast or
   unspecified address, a loopback one only if the nsqlookupd that names it is on this machine, and
   of the ports below 1024 only 80 and 443: no nsqd is behind the others.
2. With it, a node must be one of those that it names. Nodes of `--nsqd-http-address` are the
   operator's own words, and not asked about here.
3. A name says nothing about where it leads: what it resolves to is asked about as well.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

from sparq.nsqadmin.access import networks
from sparq.nsqadmin.access.networks import Address, Networks

_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?")
PORTS = range(1024, 1 << 16)
WEB_PORTS = (80, 443)


class NodeRules:
    """The addresses that may be called."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Raises ValueError: one is no address, network, name or `*.domain`."""
        texts = list(allowed)
        literal = [text for text in texts if "/" in text or networks.ip(text) is not None]
        self._networks = Networks(literal)
        self._names = [_folded(text) for text in texts if text not in literal]
        self._is_open = not texts

    def may_call(self, host: str, port: int, *, source: str = "") -> bool:
        """Whether a node may be called that an nsqlookupd names.

        Args:
            host: its broadcast address.
            port: its HTTP port.
            source: the host of the nsqlookupd that names it.
        """
        if port not in PORTS and (port not in WEB_PORTS if self._is_open else not 0 < port < 1024):
            return False
        address = networks.ip(host)
        if address is not None:
            return self.may_connect(host, source=source)
        name = host.lower().removesuffix(".")
        if not _NAME.fullmatch(host) or host.startswith("*"):
            return False
        if name == "localhost" or name.endswith(".localhost"):
            return self._is_named(name) or (self._is_open and _is_here(source))
        return self._is_open or self._is_named(name) or bool(self._networks)

    def may_connect(self, resolved: str, *, source: str = "", name: str = "") -> bool:
        """Whether an IP address may be called: a node's own, or what its name resolves to."""
        address = networks.ip(resolved)
        if address is None or _is_nowhere(address):
            return False
        if self._is_open:
            return not address.is_loopback or _is_here(source)
        return resolved in self._networks or (bool(name) and self._is_named(name.lower()))

    def _is_named(self, name: str) -> bool:
        return any(
            name.endswith(rule[1:]) if rule.startswith("*.") else name == rule
            for rule in self._names
        )


def _folded(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no address, network or host name")
    return text.lower().removesuffix(".")


def _is_here(source: str) -> bool:
    address = networks.ip(source)
    is_named = source in ("localhost", socket.gethostname())
    return is_named or (address is not None and address.is_loopback)


def _is_nowhere(address: Address) -> bool:
    return address.is_link_local or address.is_multicast or address.is_unspecified
