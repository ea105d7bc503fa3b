"""The nodes of a cluster and their answers; nodes come from nsqlookupds or from the configuration.

1. Daemons are queried concurrently. If one fails, only its part of the result is missing, and
   `Gathered.errors` says why.
2. Only nodes that are configured, or that a configured nsqlookupd lists, are ever called. A node
   that registered with a forbidden address (`reach`) is reported in the errors, and not called.
3. While no nsqlookupd answers, the last known nodes are returned, marked as `failed`.
4. The requests are NSQ's (`/nodes`, `/lookup`, `/stats`, `/info`), so Go's daemons answer them too.
5. Data from peers is validated: a node without a valid address is left out, an invalid version
   counts as the lowest, and names that NSQ does not allow are dropped.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from sparq.cluster.figures import NsqdFigures, checked, read
from sparq.cluster.upstream import OK, AddressRule, Upstream, UpstreamError, error_text
from sparq.protocol import lookup
from sparq.protocol.address import PORT_MAX, Address, bare_host, lookupd_url
from sparq.protocol.lookup import topics_of
from sparq.protocol.names import SHOWN_MAX, one_line

NODES_MAX: Final = 1000
NOT_TOLD: Final = "N/A"
TEXTS: Final = (
    *("broadcast_address", "hostname", "version", "remote_address"),
    *("topology_zone", "topology_region"),
)
NSQS_FIELDS: Final = (
    *("remote_addresses", "remote_address", "hostname", "broadcast_address"),
    *("tcp_port", "http_port", "version"),
)
PLACES: Final = ("topology_zone", "topology_region")
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_VERSION = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})(-.*)?")


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
        found: dict[str, Any] = {name: getattr(self, name) for name in NSQS_FIELDS}
        found |= {name: getattr(self, name) for name in PLACES if getattr(self, name)}
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
        entry = {**entry, "broadcast_address": host}
    texts: dict[str, Any] = {}
    for name in TEXTS:
        told = entry.get(name)
        told = told[:SHOWN_MAX] if isinstance(told, str) else ""
        texts[name] = told if told.isprintable() else one_line(told)
    texts["broadcast_address"] = bare_host(texts["broadcast_address"])
    address = str(Address(texts["broadcast_address"], port))
    tcp_port: Any = entry.get("tcp_port")
    # -1 is valid: sparq's nsqd reports it if it listens on a unix socket instead of a TCP port.
    is_port = type(tcp_port) is int and -1 <= tcp_port <= PORT_MAX
    return Node(
        address=address,
        at=at or address,
        http_port=port,
        tcp_port=tcp_port if is_port else 0,
        topics=tuple(sorted(topics_of(entry))),
        authenticated=entry.get("authenticated") is True,
        **texts,
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


LOOKUPD: Final = "nsqlookupd"
NSQD: Final = "nsqd"
LOOKUPS_AT_ONCE: Final = 32
FIGURES: Final = {"format": "json", "include_clients": "false", "include_mem": "false"}
"""Query of `/stats` without clients and memory statistics."""

NSQD_HINT: Final = "is this nsqd's HTTP port (4151 by default)?"

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """The combined result of several daemons, and the errors of those that failed.

    Attributes:
        value: the result from the daemons that answered.
        errors: why the others failed, by address.
        asked: the kind of daemon: `nsqlookupd` or `nsqd`.
        failed: no daemon answered, or there is none.
    """

    value: T
    errors: dict[str, str] = field(default_factory=dict)
    asked: str = NSQD
    failed: bool = False

    @property
    def text(self) -> str:
        """The errors in NSQ's form, one per line; "" if there are none."""
        return "\n".join(error_text(address, reason) for address, reason in self.errors.items())

    @property
    def failure(self) -> str:
        """NSQ's error text for a request that no daemon answered."""
        return f"failed to query any {self.asked}: {self.text}"


class UnknownNode(Exception):
    """The cluster has no such node."""


class Fleet:
    """The nodes of one cluster.

    Args:
        upstream: the HTTP client for this cluster only; the fleet sets which addresses it may call.
        nsqds: HTTP addresses of nsqds, if there is no nsqlookupd.
        lookupds: HTTP addresses of nsqlookupds, `host:port` or URL.
        reach: restricts the addresses of nodes that nsqlookupds list; None: `AddressRule`'s default
            rule.

    Raises:
        ValueError: an address is invalid.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        nsqds: Iterable[str] = (),
        lookupds: Iterable[str] = (),
        reach: AddressRule | None = None,
    ) -> None:
        self.upstream = upstream
        self.nsqds = tuple(dict.fromkeys(nsqds))
        self.lookupds: tuple[str, ...] = ()
        self._given_reach = reach
        self._last: list[Node] = []
        self.set_lookupds(lookupds)

    def set_lookupds(self, lookupds: Iterable[str]) -> None:
        """Query these nsqlookupds from now on.

        Raises:
            ValueError: an address is invalid; nothing changes then.
        """
        lookupds = tuple(dict.fromkeys(lookupds))
        for address in (*self.nsqds, *lookupds):
            lookupd_url(address)
        self.lookupds = lookupds
        self._reach = self._given_reach or AddressRule(lookupds)
        self.upstream.reach = self._reach
        self.upstream.set_configured((*self.nsqds, *lookupds))

    async def nodes(self) -> Gathered[list[Node]]:
        """All nodes, sorted by host name; without an nsqlookupd in the configured order."""
        if not self.lookupds:
            return await self._given_nodes()
        answers, errors = await self._look_up("nodes")
        lists = [
            (address, self._listed(address, answer, errors)) for address, answer in answers.items()
        ]
        if not answers:
            return Gathered(self._last, errors, LOOKUPD, failed=True)
        self._last = merged(lists)
        places = self.trusted(self._last)
        # An nsqlookupd that did not answer may still list nodes known from before: those stay
        # allowed. Once all answer, only the nodes that they list now are allowed.
        if len(lists) < len(self.lookupds):
            self.upstream.add_listed(places)
        else:
            self.upstream.set_listed(places)
        return Gathered(self._last, errors, LOOKUPD)

    async def producers(self, topic: str) -> Gathered[list[Node]]:
        """The nodes that have a topic, except those where it is tombstoned."""
        if not self.lookupds:
            return await self._given_nodes(topic)
        answers, errors = await self._look_up("lookup", topic=topic)
        found: dict[str, Node] = {}
        for address, answer in answers.items():
            listed = self._listed(address, answer, errors)
            self.upstream.add_listed(self.trusted(listed))
            for node in listed:
                found.setdefault(node.address, node)
        return Gathered([*found.values()], errors, LOOKUPD, failed=not answers)

    async def node(self, address: str) -> Node:
        """The node with this address.

        Raises:
            UnknownNode: there is none.
        """
        for node in (await self.nodes()).value:
            if node.address == address:
                return node
        raise UnknownNode(address)

    async def stats(
        self,
        topic: str = "",
        channel: str = "",
        *,
        clients: bool = False,
        nodes: Sequence[Node] | None = None,
    ) -> Gathered[dict[str, NsqdFigures]]:
        """`/stats` of nodes, by the nodes' addresses.

        Args:
            topic: only this topic; "": all.
            channel: only this channel; "": all.
            clients: include the clients of each channel.
            nodes: the nodes to query; None: all.
        """
        errors: dict[str, str] = {}
        if nodes is None:
            everybody = await self.nodes()
            nodes, errors = everybody.value, dict(everybody.errors)
            if everybody.failed and not nodes:
                return Gathered({}, errors, everybody.asked, failed=True)
        answers, failures = await self.each(
            nodes, lambda n: self.node_stats(n.at, topic, channel, clients=clients)
        )
        return Gathered(answers, {**errors, **failures}, NSQD, failed=not answers)

    async def node_stats(
        self,
        at: str,
        topic: str = "",
        channel: str = "",
        *,
        clients: bool = False,
        client: str = "",
    ) -> NsqdFigures:
        """`/stats` of the node at this address; the other arguments are those of `stats`.

        With `client`, the lists of clients of sparq's nsqd have only the one with this address.

        Raises:
            UpstreamError: the request failed, or the answer is unreadable.
        """
        query = {**FIGURES, "topic": topic, "channel": channel, "client": client}
        # `Upstream` leaves empty parameters out, and nsqd lists clients by default.
        query |= {"include_clients": ""} if clients else {}
        try:
            return read(await self.upstream.read(at, "/stats", **query))
        except UpstreamError as error:
            raise error.hinted(NSQD_HINT) from None
        except ValueError as error:
            raise UpstreamError(at, str(error), OK) from None

    async def topics(self) -> Gathered[list[str]]:
        """The names of all topics, sorted."""
        if not self.lookupds:
            return await self._names_at_nsqds()
        return await self._names("topics")

    async def channels(self, topic: str) -> Gathered[list[str]]:
        """The names of a topic's channels, sorted."""
        if not self.lookupds:
            return await self._names_at_nsqds(topic)
        return await self._names("channels", topic=topic)

    async def _names_at_nsqds(self, topic: str = "") -> Gathered[list[str]]:
        """The names of all topics, or of a topic's channels, without nsqlookupds."""
        answers, errors = await gathered(self.nsqds, lambda at: self.node_stats(at, topic))
        topics = [each for stats in answers.values() for each in stats.topics]
        names = {each.topic_name for each in topics}
        if topic:
            names = {channel.channel_name for each in topics for channel in each.channels}
        return Gathered(sorted(names), errors, NSQD, failed=not answers)

    async def without_producers(self) -> Gathered[dict[str, list[str]]]:
        """Topics registered with nsqlookupds that no node has, with their channels."""
        if not self.lookupds:
            return Gathered({}, {}, NSQD)
        topics = await self.topics()
        nodes = await self.nodes()
        had = {name for n in nodes.value for name, hidden in n.topics if not hidden}
        lookups = asyncio.Semaphore(LOOKUPS_AT_ONCE)

        async def query(topic: str) -> tuple[str, Gathered[list[str]]]:
            async with lookups:
                return topic, await self.channels(topic)

        found = await asyncio.gather(*(query(name) for name in topics.value if name not in had))
        errors = {**topics.errors, **nodes.errors}
        value = {topic: channels.value for topic, channels in found}
        return Gathered(value, errors, LOOKUPD, failed=topics.failed)

    async def _look_up(self, route: str, **query: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Query all nsqlookupds: the answers and the errors, both by address."""
        return await gathered(self.lookupds, lambda at: self.upstream.look_up(at, route, **query))

    async def get(self, node: Node, path: str, /, **query: str) -> Any:
        """Send a GET request to a node; see `Upstream.get`."""
        return await self.upstream.get(node.at, path, **query)

    async def read(self, node: Node, path: str, form: type[U], /, **query: str) -> U:
        """Send a GET request to a node; return its answer as a value of this form.

        Raises:
            UpstreamError: the request failed, or the answer has another form.
        """
        return checked_answer(node, await self.upstream.get(node.at, path, **query), form)

    async def post(self, node: Node, path: str, body: bytes = b"", /, **query: str) -> Any:
        """Send a POST request to a node; see `Upstream.post`."""
        return await self.upstream.post(node.at, path, body, **query)

    async def each(
        self, nodes: Iterable[Node], ask: Callable[[Node], Awaitable[U]]
    ) -> tuple[dict[str, U], dict[str, str]]:
        """Query nodes concurrently: the answers and the errors, both by the nodes' addresses."""
        by_address = {node.address: node for node in nodes}
        return await gathered(by_address, lambda address: ask(by_address[address]))

    def trusted(self, nodes: Iterable[Node]) -> dict[str, bool]:
        """Return the addresses of listed nodes, and whether each may get the operator's token."""
        return {node.at: node.authenticated or self._reach.vouches for node in nodes}

    def _listed(self, lookupd: str, answer: Any, errors: dict[str, str]) -> list[Node]:
        """The nodes in an nsqlookupd's answer that may be called."""
        try:
            listed = lookup.listed(answer, "producers")
        except ValueError as error:
            errors[lookupd] = str(error)
            return []
        found = []
        for entry in listed[:NODES_MAX]:
            node = read_node(entry) if isinstance(entry, dict) else None
            if node is None:
                continue
            why = self._reach.refusal(node.broadcast_address, node.http_port)
            if why:
                errors[node.address] = (
                    f"a node registered with this address; it is not called: {why}"
                )
            else:
                found.append(node)
        return found

    async def _given_nodes(self, topic: str = "") -> Gathered[list[Node]]:
        async def ask(at: str) -> Node | None:
            stats, info = await asyncio.gather(
                self.node_stats(at, topic), self.upstream.get(at, "/info")
            )
            names = [each.topic_name for each in stats.topics]
            if topic and topic not in names:
                return None
            told_of = info if isinstance(info, dict) else {}
            return read_node({**told_of, "topics": names, "remote_address": ""}, at)

        answers, errors = await gathered(self.nsqds, ask)
        found: dict[str, Node] = {}
        for at, node in answers.items():
            if node is not None:  # nodes that report the same address keep their configured ones
                double = node.address in found
                named = replace(node, address=str(given_address(at))) if double else node
                found[named.address] = named
        return Gathered([*found.values()], errors, NSQD, failed=not answers)

    async def _names(self, route: str, **query: str) -> Gathered[list[str]]:
        answers, errors = await self._look_up(route, **query)
        found: set[str] = set()
        for address, answer in answers.items():
            try:
                found.update(lookup.names(answer, route)[0])
            except ValueError as error:
                errors[address] = str(error)
        return Gathered(sorted(found), errors, LOOKUPD, failed=not answers)


def checked_answer(node: Node, answer: Any, form: type[U]) -> U:
    """Read a node's parsed answer. Raises UpstreamError: it has another form."""
    try:
        return checked(answer, form)
    except ValueError as error:
        raise UpstreamError(node.at, str(error)) from None


async def gathered(
    addresses: Iterable[str], ask: Callable[[str], Awaitable[U]]
) -> tuple[dict[str, U], dict[str, str]]:
    """Call `ask` for all addresses concurrently: the answers and the errors, both by address."""
    addresses = tuple(addresses)
    # Without `return_exceptions`, the first failure would end the wait for all other answers.
    found = await asyncio.gather(*map(ask, addresses), return_exceptions=True)
    answers: dict[str, U] = {}
    errors: dict[str, str] = {}
    for address, answer in zip(addresses, found, strict=True):
        if isinstance(answer, UpstreamError):
            errors[address] = answer.reason
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[address] = answer
    return answers, errors
