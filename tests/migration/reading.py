"""Helpers that read queues of Go's nsqd, written by the tests' own writer."""

import random
from pathlib import Path

from sparq.log.disk import RealDisk
from sparq.migration.queues import GoQueue, read_queue, survey
from sparq.migration.records import BadBytes, GoRecords

NAME = "clicks:archive"
DISK = RealDisk()


def found(folder: Path, name: str = NAME) -> GoQueue:
    """Return a queue as ``survey`` finds it."""
    (queue,) = [queue for queue in survey(DISK, str(folder)).queues() if queue.name == name]
    return queue


def read(folder: Path, name: str = NAME) -> tuple[list[bytes], list[BadBytes]]:
    """Return the bodies of a queue in order, and the parts that could not be read."""
    bodies: list[bytes] = []
    bad: list[BadBytes] = []
    for piece in read_queue(DISK, str(folder), found(folder, name)):
        if isinstance(piece, GoRecords):
            bodies += map(bytes, piece.bodies())
        else:
            bad.append(piece)
    return bodies, bad


def numbered(count: int, size: int = 20) -> list[bytes]:
    """Return different bodies of one size."""
    return [b"%0*d" % (size, number) for number in range(count)]


def various(count: int, seed: int = 5) -> list[bytes]:
    """Return bodies of random bytes and sizes."""
    chance = random.Random(seed)
    return [b"%d:" % n + chance.randbytes(chance.randint(1, 400)) for n in range(count)]


def without(bodies: list[bytes], *positions: int) -> list[bytes]:
    return [body for at, body in enumerate(bodies) if at not in positions]
