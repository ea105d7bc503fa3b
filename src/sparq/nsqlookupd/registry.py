"""The registry: nsqds and the topics and channels that they registered, in memory, without a clock.

1. A topic or channel stays when its last nsqd disconnects, until it is deleted over HTTP, so that
   consumers can ask for it before its nsqds are back. An `#ephemeral` one does not stay.
2. A producer is one connection of an nsqd. It is listed while it has been heard from recently. In a
   topic it can be tombstoned: hidden from consumers for a while, even if it registers again.
   Unregistering the topic removes the tombstone.
3. A channel can be known without its topic, and a topic without channels.
4. Registrations are also stored by producer, so that removing a producer takes time in proportion
   to its own registrations, not to the size of the registry.

Lists are sorted by name; producers are listed in order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from sparq.protocol.instant import Instant
from sparq.protocol.names import is_ephemeral

NEVER = Instant(0, 0)


@dataclass(slots=True, eq=False)
class RegisteredNsqd:
    """One nsqd, with its data from IDENTIFY.

    Attributes:
        draining: whether it refuses publishes, so that producers go elsewhere; consumers go on.
            None: the nsqd does not support draining.
        draining_topics: single topics that refuse publishes, registered or not.
        authenticated: whether it had to show a valid token, and did.
    """

    id: str
    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str
    topology_region: str
    last_update: Instant
    draining: bool | None = None
    authenticated: bool = False
    draining_topics: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    channels: set[tuple[str, str]] = field(default_factory=set)

    def drains(self, topic: str) -> bool:
        """Whether the producer refuses publishes to a topic."""
        return bool(self.draining) or topic in self.draining_topics


@dataclass(slots=True)
class Registration:
    """A producer's entry in a topic, a channel or the list of nodes.

    `tombstoned_at` is NEVER until the producer is tombstoned in that topic.
    """

    producer: RegisteredNsqd
    tombstoned_at: Instant = NEVER


Producers: TypeAlias = dict[str, Registration]


class Registry:
    """The producers, topics and channels known to one nsqlookupd."""

    def __init__(self, inactive_timeout_ns: int, tombstone_lifetime_ns: int) -> None:
        self._inactive_timeout_ns = inactive_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        self._nodes: Producers = {}
        self._topics: dict[str, Producers] = {}
        self._channels: dict[str, dict[str, Producers]] = {}
        self._channel_count = 0

    # Commands of producers

    def add(self, producer: RegisteredNsqd) -> None:
        """Add a producer, after its IDENTIFY."""
        self._nodes[producer.id] = Registration(producer)

    def remove(self, producer: RegisteredNsqd) -> None:
        """Remove a producer from every topic and channel, when it disconnects."""
        for topic, channel in list(producer.channels):
            self.unregister_channel(producer, topic, channel)
        for topic in list(producer.topics):
            # Not `unregister_topic`: it goes through all channels of the topic, also those that
            # only other nsqds have (rule 4).
            self._leave_topic(producer, topic)
        self._nodes.pop(producer.id, None)

    def register(self, producer: RegisteredNsqd, topic: str, channel: str) -> None:
        """Register a producer for a topic and, if `channel` is not empty, for a channel of it."""
        if channel:
            producers = self._make_channel(topic, channel)
            producers.setdefault(producer.id, Registration(producer))
            producer.channels.add((topic, channel))
        producers = self._topics.setdefault(topic, {})
        # Not assigned: a new `Registration` would lose the tombstone (rule 2).
        producers.setdefault(producer.id, Registration(producer))
        producer.topics.add(topic)

    def unregister_channel(self, producer: RegisteredNsqd, topic: str, channel: str) -> None:
        """Remove a producer from a channel."""
        producer.channels.discard((topic, channel))
        producers = self._channels.get(topic, {}).get(channel)
        if producers is not None:
            producers.pop(producer.id, None)
            if not producers and is_ephemeral(channel):
                self.delete_channel(topic, channel)

    def unregister_topic(self, producer: RegisteredNsqd, topic: str) -> None:
        """Remove a producer from a topic and its channels."""
        for channel in list(self._channels.get(topic, ())):
            if (topic, channel) in producer.channels:
                self.unregister_channel(producer, topic, channel)
        self._leave_topic(producer, topic)

    def _leave_topic(self, producer: RegisteredNsqd, topic: str) -> None:
        producer.topics.discard(topic)
        producers = self._topics.get(topic)
        if producers is not None:
            producers.pop(producer.id, None)
            if not producers and is_ephemeral(topic):
                del self._topics[topic]

    # Commands of operators

    def create_topic(self, topic: str) -> None:
        """Add a topic, if it is not known."""
        self._topics.setdefault(topic, {})

    def create_channel(self, topic: str, channel: str) -> None:
        """Add a channel and its topic, if they are not known."""
        self._make_channel(topic, channel)
        self.create_topic(topic)

    def _make_channel(self, topic: str, channel: str) -> Producers:
        channels = self._channels.setdefault(topic, {})
        self._channel_count += channel not in channels
        return channels.setdefault(channel, {})

    def delete_topic(self, topic: str) -> None:
        """Remove a topic and its channels, whichever producers have them."""
        for channel in list(self._channels.get(topic, ())):
            self.delete_channel(topic, channel)
        for registration in self._topics.pop(topic, {}).values():
            registration.producer.topics.discard(topic)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove a channel; False: it is not known."""
        channels = self._channels.get(topic, {})
        if channel not in channels:
            return False
        self._channel_count -= 1
        for registration in channels.pop(channel).values():
            registration.producer.channels.discard((topic, channel))
        if not channels:
            del self._channels[topic]
        return True

    def tombstone(self, topic: str, node: str, now: Instant) -> None:
        """Hide the producer `broadcast_address:http_port` from a topic's consumers."""
        for registration in self._topics.get(topic, {}).values():
            host, port = registration.producer.broadcast_address, registration.producer.http_port
            # nsqadmin has brackets around an IPv6 address, NSQ's none.
            if node in (f"{host}:{port}", f"[{host}]:{port}"):
                registration.tombstoned_at = now

    # Counts

    @property
    def name_count(self) -> int:
        """Number of known topics and channels."""
        return len(self._topics) + self._channel_count

    def missing(self, topic: str, channel: str) -> int:
        """Return how many new names a registration would add."""
        is_new = bool(channel) and channel not in self._channels.get(topic, ())
        return (topic not in self._topics) + is_new

    # Queries of consumers

    def has_topic(self, topic: str) -> bool:
        """Whether a topic is known."""
        return topic in self._topics

    def topics(self) -> list[str]:
        """Return all known topics, sorted."""
        return sorted(self._topics)

    def channels(self, topic: str) -> list[str]:
        """Return all known channels of a topic, sorted."""
        return sorted(self._channels.get(topic, ()))

    def producers(self, topic: str, now: Instant) -> list[RegisteredNsqd]:
        """Return a topic's producers for consumers: active ones without a tombstone."""
        return [
            registration.producer
            for registration in self._topics.get(topic, {}).values()
            if self._is_active(registration, now) and not self.is_hidden(registration, now)
        ]

    def nodes(self, now: Instant) -> list[tuple[RegisteredNsqd, list[tuple[str, bool]]]]:
        """Return the active producers, each with its topics and whether it is tombstoned there."""
        return [
            (registration.producer, list(self._topics_of(registration.producer, now)))
            for registration in self._nodes.values()
            if self._is_active(registration, now)
        ]

    def registrations(self) -> Iterator[tuple[str, str, str, list[Registration]]]:
        """Yield all entries: category (client, topic, channel), key, subkey, registrations."""
        yield "client", "", "", list(self._nodes.values())
        for topic in self.topics():
            yield "topic", topic, "", list(self._topics[topic].values())
        for topic in sorted(self._channels):
            for channel in self.channels(topic):
                yield "channel", topic, channel, list(self._channels[topic][channel].values())

    def is_hidden(self, registration: Registration, now: Instant) -> bool:
        """Whether a tombstone is still in force."""
        # NEVER is 0 on the monotonic clock, which is recent just after the machine's start: so the
        # age alone does not tell.
        age_ns = now.mono_ns - registration.tombstoned_at.mono_ns
        return registration.tombstoned_at is not NEVER and age_ns < self._tombstone_lifetime_ns

    def _is_active(self, registration: Registration, now: Instant) -> bool:
        silent_ns = now.mono_ns - registration.producer.last_update.mono_ns
        return silent_ns <= self._inactive_timeout_ns

    def _topics_of(self, producer: RegisteredNsqd, now: Instant) -> Iterator[tuple[str, bool]]:
        for topic in sorted(producer.topics):
            yield topic, self.is_hidden(self._topics[topic][producer.id], now)
