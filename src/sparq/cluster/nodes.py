"""One nsqd, as nsqlookupds list it or as it describes itself.

Data from peers is validated: a node without a valid address is left out, an invalid version counts
as the lowest, and names that NSQ does not allow are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from sparq.protocol.address import PORT_MAX, Address, lookupd_url
from sparq.protocol.lookup import topics_of
from sparq.protocol.names import bare_host, is_valid_name, one_line

NODES_MAX: Final = 1000
NOT_TOLD: Final = "N/A"
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})(-.*)?")

is_name = lru_cache(maxsize=1 << 16)(is_valid_name)
"""Whether NSQ allows a name; cached, since the same names are checked every two seconds."""


@dataclass(frozen=True, slots=True)
class Node:
    """An nsqd.

    Attributes:
        address: `broadcast_address:http_port`, which identifies the node.
        at: the address to call: the same, or the one that the operator configured.
        topics: each topic with whether it is tombstoned there.
        remote_addresses: `nsqlookupd/peer` for each nsqlookupd that lists it; None: configured.
        out_of_date: another node has a higher version.
        authenticated: it showed the nsqlookupd that lists it a valid token.
    """

    address: str
    at: str
    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""
    remote_address: str = ""
    remote_addresses: tuple[str, ...] | None = None
    topics: tuple[tuple[str, bool], ...] = ()
    out_of_date: bool = False
    authenticated: bool = False

    def is_on(self, lookupd: str) -> bool:
        """Whether this nsqlookupd lists the node."""
        return any(each.startswith(f"{lookupd}/") for each in self.remote_addresses or ())

    def document(self) -> dict[str, Any]:
        """The JSON object in the shape of NSQ's `/api/nodes`."""
        found: dict[str, Any] = {
            "remote_addresses": None if self.remote_addresses is None else [*self.remote_addresses],
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
        }
        if self.topology_zone:
            found["topology_zone"] = self.topology_zone
        if self.topology_region:
            found["topology_region"] = self.topology_region
        topics = [{"topic": name, "tombstoned": hidden} for name, hidden in self.topics]
        return {**found, "topics": topics or None, "out_of_date": self.out_of_date}


def read_node(entry: Mapping[str, Any], at: str = "") -> Node | None:
    """Parse a node from an entry of `/nodes` or `/lookup`, or from `/info`; None: no address.

    Args:
        entry: the entry.
        at: the node's configured address; "": an nsqlookupd lists it.
    """
    host, port = entry.get("broadcast_address"), entry.get("http_port")
    if not isinstance(host, str) or type(port) is not int or not 0 < port <= PORT_MAX:
        if not at:
            return None
        host, port = given_address(at)
    host = bare_host(one_line(host))
    address = str(Address(host, port))
    return Node(
        address=address,
        at=at or address,
        broadcast_address=host,
        hostname=_text(entry, "hostname"),
        http_port=port,
        tcp_port=_port(entry.get("tcp_port")),
        version=_text(entry, "version"),
        topology_zone=_text(entry, "topology_zone"),
        topology_region=_text(entry, "topology_region"),
        remote_address=_text(entry, "remote_address"),
        topics=tuple(sorted(topics_of(entry))),
        authenticated=entry.get("authenticated") is True,
    )


def given_node(at: str) -> Node:
    """A configured node that was not queried yet. Raises the errors of `given_address`."""
    address = given_address(at)
    return Node(str(address), at, address.host, "", address.port, 0, "")


def given_address(at: str) -> Address:
    """Host and port of a daemon that is configured as ``host:port`` or as a URL.

    Raises:
        ValueError: the text is neither.
    """
    url = urlsplit(lookupd_url(at))
    return Address(url.hostname or "", url.port or DEFAULT_PORTS[url.scheme])


def merged(lists: Iterable[tuple[str, Iterable[Node]]]) -> list[Node]:
    """Merge the nodes of several nsqlookupds, sort them by host name, and set `out_of_date`.

    Args:
        lists: each nsqlookupd's address, with the nodes that it lists.
    """
    by_tcp: dict[tuple[str, int], Node] = {}
    sources: dict[tuple[str, int], list[str]] = {}
    authenticated = set()
    for lookupd, nodes in lists:
        for node in nodes:
            key = (node.broadcast_address, node.tcp_port)  # NSQ's own key
            # The first nsqlookupd's entry counts; the others only add the address they know it by.
            by_tcp.setdefault(key, node)
            if node.authenticated:
                authenticated.add(node.address)
            sources.setdefault(key, []).append(f"{lookupd}/{node.remote_address or NOT_TOLD}")
    newest = max((version_of(node.version) for node in by_tcp.values()), default=())
    found = [
        replace(
            node,
            remote_addresses=tuple(sources[key]),
            out_of_date=version_of(node.version) < newest,
            authenticated=node.address in authenticated,
        )
        for key, node in by_tcp.items()
    ]
    return sorted(found, key=lambda node: (node.hostname, node.address))[:NODES_MAX]


def version_of(text: str) -> tuple[int, ...]:
    """A version as a comparable tuple; pre-releases are lower, an invalid version is lowest."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return (0, 0, 0, 1)
    major, minor, patch, before = found.groups()
    return (int(major), int(minor), int(patch), 0 if before else 1)


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return one_line(value) if isinstance(value, str) else ""


def _port(value: Any) -> int:
    # -1 is valid: sparq's nsqd reports it if it listens on a unix socket instead of a TCP port.
    return value if type(value) is int and -1 <= value <= PORT_MAX else 0
