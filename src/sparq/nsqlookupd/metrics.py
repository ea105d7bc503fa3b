"""`/metrics` of nsqlookupd: how many nsqds, topics and channels it knows (docs/monitoring.md)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from prometheus_client import generate_latest

from sparq.daemon.exposition import Family, labels, process_registry
from sparq.nsqlookupd.registry import Registry
from sparq.protocol.identify import NSQ_VERSION
from sparq.protocol.instant import Instant

REGISTRY: Final = process_registry()


def exposition(registry: Registry, now: Instant) -> bytes:
    """The text that Prometheus reads."""
    build = Family("nsqlookupd_build_info", "gauge", "What runs: always 1")
    build.add(1, labels(version=NSQ_VERSION, sparq_version=version("sparq")))
    producers = Family("nsqlookupd_producers", "gauge", "nsqds that were heard of lately")
    nodes = registry.nodes(now)
    producers.add(len(nodes))
    topics = Family("nsqlookupd_topics", "gauge", "Topics known, with or without a producer")
    names = registry.topics()
    topics.add(len(names))
    channels = Family("nsqlookupd_channels", "gauge", "Channels known, of all topics")
    channels.add(sum(len(registry.channels(name)) for name in names))
    tombstones = Family(
        "nsqlookupd_tombstones", "gauge", "Producers that a topic's consumers do not see"
    )
    tombstones.add(sum(hidden for _, of_node in nodes for _, hidden in of_node))
    found = Family("nsqlookupd_topic_producers", "gauge", "nsqds that consumers are sent to")
    for name in names:
        found.add(len(registry.producers(name, now)), labels(topic=name))
    families = (build, producers, topics, channels, tombstones, found)
    return "".join(family.text() for family in families).encode() + generate_latest(REGISTRY)
