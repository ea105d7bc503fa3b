"""Describes everything that clients can see of a data path, in a plain document.

Every later version must produce the same document from the same data path. It contains, for each
topic and channel: whether it is paused, and its deliveries, each with its second on a manual clock,
its id and its attempt; then all messages still in the log, replayed from its start; and the number
of damages that the offline check finds. The first 16 hex digits of their SHA-256 replace bodies.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.broker.harness import Message

from proofs.reopened import Consumer, Reopened
from sparq.log.check import check
from sparq.log.disk import ReadOnlyDisk, RealDisk
from sparq.protocol.instant import Instant
from sparq.testing import START_WALL_NS, ManualClock

Document = dict[str, Any]
STOPPED_WALL_NS = START_WALL_NS + 3_600_000_000_000
"""Time at which golden data paths were written, and are opened: due times are close to it."""
WATCHED_SECONDS = 30
NEW = b"published by a later version"
REPLAY = "replay"


def digest(body: bytes) -> str:
    """Return the first 16 hex digits of a body's SHA-256."""
    return hashlib.sha256(body).hexdigest()[:16]


def line(second: int, one: Message) -> str:
    """Return a delivery as text: second, id, attempt, publish time and digest."""
    return f"{second} {one.id.decode()} {one.attempts} {one.timestamp_ns} {digest(one.body)}"


def attempts_of(delivery: str) -> int:
    """Return the attempts from a text made by `line`."""
    return int(delivery.split(" ")[2])


def describe(data_path: Path) -> Document:
    """Return the document of a data path. This changes the data path."""
    document: Document = {"damages that the check finds": count_damages(data_path)}
    clock = ManualClock(STOPPED_WALL_NS)
    with Reopened(RealDisk(), str(data_path), clock=clock) as home:
        document["node id"] = home.broker.node_id
        document["reports at the start"] = len(home.report)
        document["topics"] = {name: topic_of(home, name) for name in sorted(home.broker.topics)}
        for name in document["topics"]:
            # The replay channel keeps all messages in the log until the end.
            home.create(name, REPLAY)
            home.broker.seek(name, REPLAY, "earliest", clock.now())
        follow(home, document["topics"])
        replay(home, document["topics"])
    return document


def count_damages(data_path: Path) -> int:
    """Return the number of damages that `nsq_check` finds."""
    findings = check(
        ReadOnlyDisk(), str(data_path), Instant(STOPPED_WALL_NS, 1), lambda _size: None
    )
    assert findings is not None
    return len(findings.all_damage())


def topic_of(home: Reopened, name: str) -> Document:
    """Return the state of a topic and its channels."""
    topic = home.topic(name)
    return {
        "paused": topic.paused,
        "depth": topic.depth,
        "messages in the log": topic.log_messages,
        "channels": {
            channel.channel_name: {
                "paused": channel.paused,
                "depth": channel.depth,
                "deferred": channel.deferred_count,
                "delivered": [],
            }
            for channel in sorted(topic.channels, key=lambda channel: channel.channel_name)
        },
    }


def follow(home: Reopened, topics: Document) -> None:
    """Unpause all, then record deliveries for WATCHED_SECONDS, second by second."""
    now = home.clock.now()
    consumers = []
    for name, topic in topics.items():
        if topic["paused"]:
            home.broker.pause_topic(name, False, now)
        for channel, state in topic["channels"].items():
            if state["paused"]:
                home.broker.pause_channel(name, channel, False, now)
            consumers.append((Consumer(home, name, channel), state["delivered"]))
    for second in range(WATCHED_SECONDS):
        for consumer, delivered in consumers:
            while found := consumer.take(1000):
                delivered += [line(second, one) for one in found]
                consumer.finish(found)
        home.pass_time(1)
    for consumer, _ in consumers:
        consumer.close()


def replay(home: Reopened, topics: Document) -> None:
    """Record all messages in each log, publish one more, and check that its id is the highest."""
    for name, topic in topics.items():
        found = home.drain(name, REPLAY)
        topic["replayed"] = [f"{one.id.decode()} {digest(one.body)}" for one in found]
        home.publish(name, NEW)
        (last,) = home.drain(name, REPLAY)
        assert last.body == NEW
        topic["goes on"] = all(one.id < last.id for one in found)
