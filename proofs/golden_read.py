"""What a data path holds, as everything that can be seen of it from outside: a plain document.

The same document must come of the same data path with every later version. It has, of each topic
and channel: whether it is paused, what it delivers and in which second of a clock that is moved by
hand, under which id, at which attempt; then all that the log still holds, replayed from its start;
then what the offline check says. Bodies stand in it as the first 16 digits of their SHA-256.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tests.support.v2_client import Message

from proofs.reopened import Reopened
from sparq.log.check import check
from sparq.log.disk import LookingDisk, RealDisk
from sparq.protocol.instant import Instant
from sparq.testing import START_WALL_NS, ManualClock

Document = dict[str, Any]
STOPPED_WALL_NS = START_WALL_NS + 3_600_000_000_000
"""When a golden data path is taken to have been stopped: due times lie about it."""
WATCHED_SECONDS = 30
NEW = b"published by a later version"
REPLAY = "replay"


def digest(body: bytes) -> str:
    """What stands for a body."""
    return hashlib.sha256(body).hexdigest()[:16]


def line(second: int, one: Message) -> str:
    """A delivery: when, which, at which attempt, published when, what."""
    return f"{second} {one.id.decode()} {one.attempts} {one.timestamp_ns} {digest(one.body)}"


def attempts_of(delivery: str) -> int:
    """The attempts in a line that `line` has made."""
    return int(delivery.split(" ")[2])


def describe(data_path: Path) -> Document:
    """Everything that is to be seen; the data path is not the same afterwards."""
    document: Document = {"damages that the check finds": look(data_path)}
    clock = ManualClock(STOPPED_WALL_NS)
    with Reopened(RealDisk(), str(data_path), clock=clock) as home:
        document["node id"] = home.broker.node_id
        document["reports at the start"] = len(home.report)
        document["topics"] = {name: topic_of(home, name) for name in sorted(home.broker.topics)}
        for name in document["topics"]:
            # It keeps the log as it is until the end.
            home.create(name, REPLAY)
            home.broker.seek_channel(name, REPLAY, "earliest", clock.now())
        follow(home, document["topics"])
        replay(home, document["topics"])
    return document


def look(data_path: Path) -> int:
    """How many damages `nsq_check` finds."""
    findings = check(LookingDisk(), str(data_path), Instant(STOPPED_WALL_NS, 1), lambda _size: None)
    assert findings is not None
    return len(findings.all_damage())


def topic_of(home: Reopened, name: str) -> Document:
    """A topic's state, and its channels'."""
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
    """Let half a minute pass, second by second, and note what comes; paused ones first go on."""
    now = home.clock.now()
    consumers = []
    for name, topic in topics.items():
        if topic["paused"]:
            home.broker.pause_topic(name, False, now)
        for channel, state in topic["channels"].items():
            if state["paused"]:
                home.broker.pause_channel(name, channel, False, now)
            consumers.append((home.consumer(name, channel), state["delivered"]))
    for second in range(WATCHED_SECONDS):
        for consumer, delivered in consumers:
            while found := consumer.take(1000):
                delivered += [line(second, one) for one in found]
                consumer.finish(found)
        home.pass_time(1)
    for consumer, _ in consumers:
        consumer.leave()


def replay(home: Reopened, topics: Document) -> None:
    """Note what each log still holds, publish to it, and see that its indexes go on."""
    for name, topic in topics.items():
        found = home.drain(name, REPLAY)
        topic["replayed"] = [f"{one.id.decode()} {digest(one.body)}" for one in found]
        home.publish(name, [NEW])
        (last,) = home.drain(name, REPLAY)
        assert last.body == NEW
        topic["goes on"] = all(one.id < last.id for one in found)
