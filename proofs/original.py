"""An undamaged data path in memory, with its messages. bitrot.py damages copies of it.

It has two topics: `small` with one short segment, `clicks` with several. Channel `whole` of
`clicks` has delivered nothing yet. Channel `partly` has FINs out of order, requeued messages and a
checkpoint.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from proofs import layout
from proofs.damages import Files, segments
from proofs.layout import Stored
from proofs.reopened import Consumer, Reopened, replaced
from sparq.log import ledger
from sparq.testing import ManualClock, MemoryDisk

PATH = "/data"
TOPIC, SMALL = "clicks", "small"
WHOLE, PARTLY = "whole", "partly"
CHANNELS = ((TOPIC, WHOLE), (TOPIC, PARTLY), (SMALL, WHOLE))
OPTIONS = {"node_id": 513, "max_bytes_per_file": 24_000}
DISK_BYTES = 4 << 20
"""A small disk, because the reserve takes a share of it: so copies are fast."""
SIZES = (12, 40, 200, 200, 330)
STOPPED_NS = 60_000_000_000


def disk_with(files: Files) -> MemoryDisk:
    """A memory disk with these files."""
    disk = MemoryDisk(capacity_bytes=DISK_BYTES)
    for path, data in files.items():
        disk.make_directory(path.rpartition("/")[0])
        disk.create(path).append([data], 0)
    return disk


@dataclass(slots=True)
class Original:
    """An undamaged data path.

    Attributes:
        files: its files, without the reserve, which has no content.
        wall_ns: time of its clean stop.
        foreign: a segment of another log.
        batches: batches of both topics.
        bodies: bodies by topic and index.
        finished: indexes of the messages that PARTLY has finished.
    """

    files: Files
    wall_ns: int
    foreign: bytes
    finished: set[int]
    batches: list[Stored] = field(default_factory=list)
    bodies: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in segments(self.files):
            for stored in layout.batches(path, self.files[path]):
                self.batches.append(stored)
                bodies = self.bodies.setdefault(topic_of(path), {})
                bodies.update(zip(stored.indexes, stored.bodies, strict=True))

    def files_of(self, topic: str) -> Files:
        """Files of the topic."""
        return {path: data for path, data in self.files.items() if topic_of(path) == topic}

    def clock(self) -> ManualClock:
        """A clock for a start `STOPPED_NS`, a minute, after the stop."""
        return ManualClock(self.wall_ns + STOPPED_NS)


def topic_of(path: str) -> str:
    """Topic that a file belongs to; empty for files of the data path itself."""
    return path.partition("/topics/t-")[2].partition("/")[0]


def make(seed: int) -> Original:
    """Create the data path for this seed."""
    chance = random.Random(f"{seed} original")
    clock, disk = ManualClock(), MemoryDisk(capacity_bytes=DISK_BYTES)
    with Reopened(disk, PATH, clock=clock, **OPTIONS) as home:
        for topic, channel in CHANNELS:
            home.create(topic, channel)
        for size in (4, 1, 3):
            home.publish(SMALL, *some_bodies(chance, size))
        for _ in range(60):
            home.publish(TOPIC, *some_bodies(chance, chance.randint(1, 9)))
            clock.advance(1_000_000)
        finished = work(home, chance)
    files = {path: bytes(disk.data(path)) for path in disk.paths() if "/reserve" not in path}
    return Original(files, clock.wall_ns, other_segment(chance), finished)


def some_bodies(chance: random.Random, count: int) -> list[bytes]:
    """`count` bodies of random bytes, which makes each one unique."""
    return [chance.randbytes(chance.choice(SIZES)) for _ in range(count)]


def work(home: Reopened, chance: random.Random) -> set[int]:
    """Finish 100 messages of PARTLY, with a checkpoint in between, and requeue 20.

    Returns the indexes of the finished messages.
    """
    consumer = Consumer(home, TOPIC, PARTLY)
    taken = consumer.take(150)
    chance.shuffle(taken)
    consumer.finish(taken[:60])
    with replaced(ledger, "CHECKPOINT_BYTES", 0):
        consumer.finish(taken[60:70])
        home.pass_time(3)
    consumer.finish(taken[70:100])
    consumer.requeue(taken[100:120], 0)
    consumer.close()
    home.pass_time(3)
    return {one.index for one in taken[:100]}


def other_segment(chance: random.Random) -> bytes:
    """A segment of a log from another data path."""
    disk = MemoryDisk(capacity_bytes=DISK_BYTES)
    with Reopened(disk, PATH, clock=ManualClock(), **OPTIONS) as home:
        home.publish(TOPIC, *some_bodies(chance, 20))
    (segment,) = (bytes(disk.data(path)) for path in disk.paths() if path.endswith(".log"))
    return segment
