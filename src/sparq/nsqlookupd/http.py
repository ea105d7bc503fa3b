"""nsqlookupd's HTTP endpoints over the registry (docs/http.md, "nsqlookupd").

Each answer is the state of the registry at one moment, including which producers are inactive or
tombstoned. `/metrics` has the numbers of known nsqds, topics and channels (docs/monitoring.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import generate_latest

from sparq.daemon.access.rules import Role
from sparq.daemon.debug import Debug
from sparq.daemon.http import Call, Content, HttpError, Route, topic_channel
from sparq.daemon.prometheus_text import (
    CONTENT_TYPE,
    Family,
    access_families,
    labels,
    process_registry,
)
from sparq.nsqlookupd.registry import NEVER, RegisteredNsqd, Registration, Registry
from sparq.protocol import NSQ_VERSION, SPARQ_VERSION
from sparq.protocol.instant import Instant
from sparq.protocol.names import is_valid_name

if TYPE_CHECKING:
    from sparq.daemon.access.access import Access

PROCESS: Final = process_registry()
TOLD: Final = (
    *("remote_address", "hostname", "broadcast_address", "tcp_port", "http_port", "version"),
    *("topology_zone", "topology_region"),
)
"""The fields of a producer that consumers get."""


class NsqlookupdEndpoints:
    """The HTTP handlers; `now` reads the clocks."""

    def __init__(
        self,
        registry: Registry,
        now: Callable[[], Instant],
        *,
        debug_routes: bool = True,
        access: Access | None = None,
    ) -> None:
        self._registry = registry
        self._now = now
        self._debug_routes = debug_routes
        self._access = access

    def routes(self) -> list[Route]:
        """The table of endpoints."""
        return [
            Route("GET", "/ping", lambda _call: "OK", plain=True, log=False),
            Route("GET", "/live", lambda _call: "OK", plain=True, log=False),
            Route("GET", "/info", lambda _call: {"version": NSQ_VERSION}),
            Route("GET", "/topics", self.topics),
            Route("GET", "/channels", self.channels),
            Route("GET", "/lookup", self.lookup),
            Route("GET", "/nodes", self.nodes),
            Route("POST", "/topic/create", self.create_topic),
            Route("POST", "/topic/delete", self.delete_topic),
            Route("POST", "/topic/tombstone", self.tombstone_topic),
            Route("POST", "/channel/create", self.create_channel),
            Route("POST", "/channel/delete", self.delete_channel),
            Route("GET", "/metrics", self.metrics, plain=True, log=False),
            *([Route("GET", "/debug", self.debug)] if self._debug_routes else ()),
            *(Debug().routes() if self._debug_routes else ()),
        ]

    def topics(self, call: Call) -> dict[str, list[str]]:
        """Return all known topics."""
        # Read for its error: a query that cannot be parsed is refused, though none is needed.
        _ = call.query
        return {"topics": self._registry.topics()}

    def channels(self, call: Call) -> dict[str, list[str]]:
        """Return a topic's known channels."""
        # No 404 for an unknown topic, unlike `lookup`: as in NSQ.
        return {"channels": self._registry.channels(call.argument("topic"))}

    def lookup(self, call: Call) -> dict[str, Any]:
        """Return a topic's channels, and the producers that have it."""
        topic = call.argument("topic")
        if not self._registry.has_topic(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        producers = self._registry.producers(topic, self._now())
        return {
            "channels": self._registry.channels(topic),
            "producers": [
                {**describe(each), **({"draining": True} if each.drains(topic) else {})}
                for each in producers
            ],
        }

    def nodes(self, call: Call) -> dict[str, Any]:
        """Return all active nsqds with their topics; with a token, those that it has a role for."""
        nodes, access = [], self._access
        for producer, topics in self._registry.nodes(self._now()):
            shown = {
                topic: hidden
                for topic, hidden in topics
                if access is None or access.allows(call, Role.FIND, topic)
            }
            names = {"tombstones": list(shown.values()), "topics": list(shown)}
            nodes.append({**describe(producer), **names, **drains_of(producer)})
        return {"producers": nodes}

    def debug(self, _call: Call) -> dict[str, Any]:
        """Return the registrations that have a producer, as NSQ does."""
        found = {
            f"{category}:{key}:{subkey}": [describe_entry(entry) for entry in entries]
            for category, key, subkey, entries in self._registry.registrations()
            if entries
        }
        return dict(sorted(found.items()))

    def create_topic(self, call: Call) -> None:
        """Add a topic without a producer."""
        topic = call.argument("topic")
        if not is_valid_name(topic):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        self._registry.create_topic(topic)

    def delete_topic(self, call: Call) -> None:
        """Remove a topic and its channels."""
        self._registry.delete_topic(call.argument("topic"))

    def tombstone_topic(self, call: Call) -> None:
        """Hide one nsqd from a topic's consumers for the lifetime of a tombstone."""
        topic, node = call.argument("topic"), call.argument("node")
        self._registry.tombstone(topic, node, self._now())

    def create_channel(self, call: Call) -> None:
        """Add a channel, and its topic, without a producer."""
        self._registry.create_channel(*topic_channel(call))

    def delete_channel(self, call: Call) -> None:
        """Remove a channel."""
        if not self._registry.delete_channel(*topic_channel(call)):
            raise HttpError(404, "CHANNEL_NOT_FOUND")

    def metrics(self, _call: Call) -> Content:
        """Return the registry's figures for Prometheus."""
        registry, now = self._registry, self._now()
        topics, nodes = registry.topics(), registry.nodes(now)
        channels = sum(len(registry.channels(topic)) for topic in topics)
        hidden = sum(is_hidden for _, of_node in nodes for _, is_hidden in of_node)
        versions = labels(version=NSQ_VERSION, sparq_version=SPARQ_VERSION)
        found = {labels(topic=name): len(registry.producers(name, now)) for name in topics}
        draining = sum(bool(producer.draining) for producer, _ in nodes)
        families = [
            Family(f"nsqlookupd_{name}", "gauge", text, samples)
            for name, text, samples in (
                ("build_info", "Versions of the running program; always 1", {versions: 1}),
                (
                    *("producers", "nsqds heard from within --inactive-producer-timeout"),
                    {"": len(nodes)},
                ),
                ("topics", "Known topics, with or without a producer", {"": len(topics)}),
                ("channels", "Known channels of all topics", {"": channels}),
                (
                    *("tombstones", "Producers hidden from a topic's consumers by a tombstone"),
                    {"": hidden},
                ),
                ("draining", "nsqds that are draining", {"": draining}),
                ("topic_producers", "nsqds returned to the topic's consumers", found),
            )
        ]
        families += access_families(self._access, "nsqlookupd")
        text = "".join(family.text() for family in families)
        return Content(text.encode() + generate_latest(PROCESS), CONTENT_TYPE)


def describe(producer: RegisteredNsqd) -> dict[str, Any]:
    """Return a producer's fields for consumers.

    `authenticated` is there only if it is true, so that the JSON stays NSQ's: nsqadmin and the
    tools send their token to no other node.
    """
    found = {name: getattr(producer, name) for name in TOLD}
    return {**found, "authenticated": True} if producer.authenticated else found


def drains_of(producer: RegisteredNsqd) -> dict[str, Any]:
    """Return which parts of a producer drain; {} without drains, so that the JSON stays NSQ's."""
    fields: dict[str, Any] = {"draining": True} if producer.draining else {}
    topics = sorted(producer.draining_topics)
    return {**fields, **({"draining_topics": topics} if topics else {})}


def describe_entry(entry: Registration) -> dict[str, Any]:
    """Return a registration in the form of /debug."""
    producer = entry.producer
    facts = describe(producer)
    # NSQ's /debug has no such field: its `id` is the remote address.
    del facts["remote_address"]
    found = {
        "id": producer.id,
        **facts,
        "last_update": producer.last_update.wall_ns,
        "tombstoned": entry.tombstoned_at is not NEVER,
        "tombstoned_at": entry.tombstoned_at.wall_ns,
    }
    # In NSQ this is a map, which Go's encoder sorts.
    return {**dict(sorted(found.items())), **drains_of(producer)}
