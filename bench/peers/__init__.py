"""The brokers of the bench: sparq, Go's nsqd, and brokers that Debian packages.

One module per broker. `CONTESTANTS` lists the brokers with their settings, in the order of the
table. Brokers that are not installed are printed as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers import beanstalkd, go_nsqd, nats, nsq, rabbitmq, redis
from bench.peers.peer import Peer, needs


@dataclass(frozen=True, slots=True)
class Contestant:
    """A broker with its settings.

    Attributes:
        key: its name on the command line.
        label: its name in the table.
        make: makes the broker; its data go to a new folder.
        missing: returns why it cannot run here; "" if it can.
        parts: the parts of the bench, "speed" or "backlog", in which it takes part.
    """

    key: str
    label: str
    make: Callable[[Path], Peer]
    missing: Callable[[], str]
    parts: frozenset[str] = frozenset({"speed", "backlog"})


SPEED, BACKLOG = frozenset({"speed"}), frozenset({"backlog"})


def never_missing() -> str:
    """Return "": sparq is always available."""
    return ""


CONTESTANTS: tuple[Contestant, ...] = (
    Contestant("sparq", "sparq, sync before OK", nsq.Sparq, never_missing),
    Contestant("sparq-later", "sparq, NSQ's sync policy", nsq.SparqLater, never_missing, SPEED),
    Contestant("go", "Go's nsqd, in memory", go_nsqd.GoInMemory, go_nsqd.missing, SPEED),
    Contestant("go-disk", "Go's nsqd, on disk", go_nsqd.GoOnDisk, go_nsqd.missing, SPEED),
    Contestant("go-synced", "Go's nsqd, on disk, synced", go_nsqd.GoSynced, go_nsqd.missing, SPEED),
    Contestant("go-default", "Go's nsqd, defaults", go_nsqd.GoNsqd, go_nsqd.missing, BACKLOG),
    Contestant("redis", "Redis Streams, always", redis.Redis, needs("redis-server"), SPEED),
    Contestant(
        "redis-later", "Redis Streams, everysec", redis.RedisEverySecond, needs("redis-server")
    ),
    Contestant("nats", "NATS JetStream, file", nats.Nats, needs("nats-server")),
    Contestant("rabbitmq", "RabbitMQ, durable", rabbitmq.Rabbitmq, rabbitmq.missing),
    Contestant(
        "beanstalkd", "beanstalkd, sync each", beanstalkd.Beanstalkd, needs("beanstalkd"), SPEED
    ),
    Contestant(
        "beanstalkd-later", "beanstalkd, 50 ms", beanstalkd.BeanstalkdLater, needs("beanstalkd")
    ),
)


def chosen(part: str, keys: Sequence[str]) -> tuple[Contestant, ...]:
    """The contestants of a part of the bench, or only those with these keys, installed or not."""
    return tuple(
        contestant
        for contestant in CONTESTANTS
        if part in contestant.parts and (not keys or contestant.key in keys)
    )


def present(contestants: Sequence[Contestant]) -> list[Contestant]:
    """The contestants that can run here; print the others, with the reason."""
    found = []
    for contestant in contestants:
        reason = contestant.missing()
        if reason:
            print(f"absent: {contestant.label} ({reason})")
        else:
            found.append(contestant)
    return found
