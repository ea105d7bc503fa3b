"""Limits on nsqlookupd's peers (SECURITY.md, A-4): connections, addresses, registrations.

Consumers and nsqadmin connect to the addresses that nsqlookupd returns, so a peer that may register
controls where they connect. Without these options every peer may register anything, as with NSQ.

1. A broadcast address is compared, never resolved: a name's address can change a moment later.
2. A refusal is answered, then the connection is closed (see `nsqlookupd.tcp`).
3. `--max-names` refuses only new names; names already known may still be registered, within
   `--max-registrations`.
4. With `--require-token`, an nsqd sends its token in IDENTIFY (`"token": "nsq_..."`). Go's
   nsqlookupd ignores that field; Go's nsqd does not send it, so it is refused. To register a topic,
   an nsqd needs the role `register` for it; to connect at all, it needs the role for at least one
   topic. If a token expires or is removed from the file, its connection is closed, which removes
   its registrations.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from sparq.daemon.access.access import EXPIRED, FORBIDDEN
from sparq.daemon.access.rules import Caller, Role
from sparq.nsqlookupd.options import NsqlookupdOptions
from sparq.program.lifecycle import StartError
from sparq.protocol.address import parse_ip

if TYPE_CHECKING:
    from sparq.daemon.access.access import Access
    from sparq.nsqlookupd.registry import RegisteredNsqd, Registry

PEER = "peer"
ANY_BELOW = "*."
PORTS = range(1, 1 << 16)

Rule = Callable[[str, str], bool]
"""Takes a broadcast address and the peer's IP address; returns whether the address is allowed."""


logger = logging.getLogger(__name__)


class Guard:
    """The limits of one nsqlookupd, and its count of connections."""

    def __init__(self, options: NsqlookupdOptions, access: Access | None = None) -> None:
        """`access` has the tokens, for nsqds that must show one.

        Raises:
            StartError: an allowed address is invalid, or tokens are required without a token file.
        """
        if options.require_token and not options.access.token_file:
            raise StartError("--require-token needs --token-file with the tokens of nsqds")
        self._access = access if options.require_token else None
        self._rules = [_rule(text) for text in options.allow_broadcast_addresses]
        self._connections_max = options.max_connections
        self._per_address_max = options.max_connections_per_address
        self._registrations_max = options.max_registrations
        self._names_max = options.max_names
        self._connected: Counter[str] = Counter()
        self._count = 0
        self._is_full = False

    def admit(self, host: str) -> bool:
        """Count a new connection; False: a limit is reached. A unix socket's peer has host ""."""
        here = self._connected.get(host, 0) if host else 0
        is_full = 0 < self._connections_max <= self._count or 0 < self._per_address_max <= here
        if is_full and not self._is_full:
            logger.warning(
                "TCP: refusing nsqds: %d are connected, %d from %s", self._count, here, host
            )
        self._is_full = is_full
        if is_full:
            return False
        self._count += 1
        self._connected[host] += 1
        return True

    def forget(self, host: str) -> None:
        """Uncount a connection, when it is closed."""
        self._count -= 1
        self._connected[host] -= 1
        if not self._connected[host]:
            # A `Counter` keeps zeros: one for each address that ever connected.
            del self._connected[host]

    def identify(self, shown: str, remote: str) -> tuple[Caller | None, str]:
        """Return the nsqd that shows a token in IDENTIFY, and why it is refused, or "".

        None: no token is required. `remote`: the nsqd's address.
        """
        if self._access is None:
            return None, ""
        caller = self._access.identify(shown, remote)
        if caller.may(Role.REGISTER, None):
            return caller, ""
        self._access.refuse(caller, "IDENTIFY")
        if caller.reason == FORBIDDEN:
            return caller, "this token may not register"
        if caller.reason == EXPIRED:
            return caller, "this token has expired"
        return caller, "unknown token" if shown else "a token is required (nsqd's --lookupd-token)"

    def may_register(self, caller: Caller | None, topic: str) -> bool:
        """Whether an nsqd has the role `register` for a topic; a refusal is recorded."""
        may = self._access is None or (caller is not None and caller.may(Role.REGISTER, topic))
        if not may and self._access is not None and caller is not None:
            self._access.refuse(caller, "REGISTER", reason=FORBIDDEN, topic=topic)
        return may

    def review(self, caller: Caller, *, again: bool) -> Caller | None:
        """Return a connected nsqd with its present rights; None: its token is no longer valid.

        `again`: the token file was read again, not only time has passed.
        """
        access = self._access
        if access is None or not (again or access.now() >= caller.expires):
            return caller
        found = access.review(caller)
        if found.may(Role.REGISTER, None):
            return found
        access.refuse(found, "IDENTIFY")
        return None

    def may_claim(self, address: str, ports: tuple[int, int], host: str) -> bool:
        """Whether a peer at `host` may register this broadcast address and these ports."""
        if not self._rules:
            return True
        return all(port in PORTS for port in ports) and any(
            rule(address, host) for rule in self._rules
        )

    def refusal(
        self, registry: Registry, producer: RegisteredNsqd, topic: str, channel: str
    ) -> str:
        """Return why a producer may not register this; empty: it may."""
        if len(producer.topics) + len(producer.channels) >= self._registrations_max > 0:
            return "too many registrations"
        if 0 < self._names_max < registry.name_count + registry.missing(topic, channel):
            return "too many topics and channels"
        return ""


def _rule(text: str) -> Rule:
    if text == PEER:
        return _is_peers_own
    if "/" in text or parse_ip(text) is not None:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise StartError(
                f"--allow-broadcast-address={text} is not a network: write it as 10.0.0.0/8"
            ) from None
        return lambda address, _host: _is_in(address, network)
    if text.startswith(ANY_BELOW):
        # The dot stays: *.example.com must not match badexample.com.
        domain = text.removeprefix("*").lower()
        if domain != ".":
            return lambda address, _host: _folded(address).endswith(domain)
    elif text and "*" not in text:
        return lambda address, _host: _folded(address) == _folded(text)
    raise StartError(
        f"--allow-broadcast-address={text} is not valid: write peer, an IP address, a network, a"
        " host name or *.domain"
    )


def _is_peers_own(address: str, host: str) -> bool:
    found = parse_ip(address)
    return found is not None and found == parse_ip(host)


def _is_in(address: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    found = parse_ip(address)
    return found is not None and found in network


def _folded(name: str) -> str:
    """Normalize a host name for comparison; "", which matches none, if it is not a host name."""
    name = name.lower().removesuffix(".")
    good = name.isascii() and all(part.replace("-", "").isalnum() for part in name.split("."))
    return name if good else ""
