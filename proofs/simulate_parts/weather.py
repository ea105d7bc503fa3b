"""The conditions of one simulated run: the broker's options, its clients, and the chance of faults.

Everything is drawn from the run's seed. The ranges are deliberately small: with files of a few
batches, commits of a few messages and timeouts of seconds, every run takes the rare paths.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass

from sparq.broker.options import BrokerOptions
from sparq.options.limits import IdentifyLimits
from sparq.options.units import MILLISECOND, SECOND
from sparq.testing import Fault

CHANGES = ("write", "sync", "create", "truncate", "syncdir", "mkdir", "unlink", "rename", "reserve")
"""Operations that may fail several times in a row without losing a stored message."""
DAY_NS = 86_400 * SECOND


@dataclass(frozen=True, slots=True)
class Weather:
    """One run's options and chances.

    Attributes:
        options: the broker's options.
        capacity_bytes: size of the disk.
        lives: number of times that the broker is started.
        publishers: number of publishers to the lasting topic.
        consumers: number of consumers that share its channel `two`.
        short_lived: whether there is a topic that is deleted now and then.
        faults: chance of a disk error in a round.
        cuts: chance that a connection breaks, for each, in a round.
        stalls: chance that a connection stalls for a while, for each, in a round.
        jumps: chance that the wall clock is set, in a round.
        work: chance that a thread of the broker makes progress, in a round.
        inline: chance that a commit that may run in the event loop does.
        unread_bytes_max: above this number of unread bytes the broker delivers nothing more.
        share_min: number of commits waiting together from which on they share a sync.
        journal_bytes: size of a journal file.
        ttl_ns: maximum age of a message that the channel `aged` delivers.
        lag_bytes: maximum unread bytes of the channel `late`.
    """

    options: BrokerOptions
    capacity_bytes: int
    lives: int
    publishers: int
    consumers: int
    short_lived: bool
    faults: float
    cuts: float
    stalls: float
    jumps: float
    work: float
    inline: float
    unread_bytes_max: int
    share_min: int
    journal_bytes: int
    ttl_ns: int
    lag_bytes: int


def draw(chance: random.Random, *, together: bool) -> Weather:
    """Draw the conditions of a run; together: whether a start syncs all topics at once."""
    limits = IdentifyLimits(
        msg_timeout_ms=chance.choice([1_000, 5_000, 60_000]), max_req_timeout_ms=3_600_000
    )
    options = BrokerOptions(
        limits=limits,
        max_bytes_per_file=chance.choice([3_000, 20_000, 20_000, 200_000, 100 << 20]),
        sync_every=chance.choice([1, 1, 1, 1, 9, 2_500]),
        sync_timeout_ns=chance.choice([50, 2_000]) * MILLISECOND,
        commit_count=chance.choice([4, 64, 4_096]),
        output_bytes_max=chance.choice([2_000, 1 << 20]),
        cache_bytes=chance.choice([1, 20_000, 64 << 20]),
        requeue_on_disconnect=chance.random() < 0.2,
        topics_synced_together=1 if together else 64,
    )
    return Weather(
        options=options,
        capacity_bytes=chance.choice([250_000, 4 << 20, 4 << 20, 4 << 20]),
        lives=chance.randint(4, 7),
        publishers=chance.randint(1, 3),
        consumers=chance.choice([1, 2, 2, 2, 8]),
        short_lived=chance.random() < 0.3,
        faults=chance.choice([0, 0.02, 0.1, 0.3]),
        cuts=chance.choice([0, 0.01, 0.05]),
        stalls=chance.choice([0, 0.05]),
        jumps=chance.choice([0, 0.02, 0.1]),
        work=chance.choice([0.3, 0.9, 1.0]),
        inline=chance.choice([0.0, 0.5, 1.0]),
        unread_bytes_max=chance.choice([500, 64 << 10]),
        share_min=chance.choice([1, 1, 2, 5]),
        journal_bytes=chance.choice([1_500, 6_000, 8 << 20]),
        ttl_ns=chance.choice([300, 3_000, 60_000]) * MILLISECOND,
        lag_bytes=chance.choice([1_000, 20_000]),
    )


def fault(chance: random.Random) -> Fault:
    """Draw a disk error: now or soon, in one kind of operation or any, once or several times."""
    number = chance.choice([errno.EIO, errno.EIO, errno.ENOSPC])
    part = chance.choice([0.0, chance.random(), 1.0])
    operations = chance.choice([frozenset(CHANGES), frozenset({chance.choice(CHANGES)})])
    if "sync" in operations:
        operations |= {"syncfs"}
    if chance.random() < 0.2:
        return Fault(chance.randint(1, 3), errno.EIO, frozenset({"read"}))
    return Fault(chance.randint(1, 4), number, operations, chance.choice([1, 1, 2, 5]), part)


def jump_ns(chance: random.Random) -> int:
    """Draw by how much the wall clock is set."""
    return chance.choice([-DAY_NS, DAY_NS, chance.randint(-10, 10) * SECOND])


def pause_ns(chance: random.Random) -> int:
    """Draw how long a round takes."""
    kind = chance.random()
    if kind < 0.85:
        return chance.randint(0, 5) * MILLISECOND
    if kind < 0.97:
        return chance.randint(10, 1_500) * MILLISECOND
    return chance.randint(2, 70) * SECOND
