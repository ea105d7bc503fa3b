"""Topics on a full disk: single FINs, more of them than the reserve alone could hold.

1. Consumers have RDY 1, and each FIN is followed by an answered command. Such FINs need the most
   space, since each gets its own ledger record. The channel's name is long, as each record repeats
   it.
2. The daemon ends twice, by SIGTERM and by kill -9, each time on the full disk. Messages finished
   before must not come again; all others must come.
3. When all messages are finished, publishing resumes without a restart.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.support.servers import NsqdServer
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import OK, Message, V2Client, fin_each

from proofs.daemon_fixture import NSQD, started, wait_until
from sparq.protocol.commands import mpub, rdy, sub

CHANNEL = "c" * 64
BATCH = 50
KEY_BYTES = 12
FINISH_BYTES = 184
"""Bytes that a single FIN of a turn adds to the ledger, with this channel's name."""
NEARLY_FULL_BYTES = 300_000
OVERHEAD_BYTES = 80
SMALLEST_BODY = 40
SECONDS_MAX = 30.0
RESUMED_SECONDS_MAX = 1.0
READY = 500
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """A disk and its content.

    Attributes:
        disk_mib: size of the disk in MiB.
        topics: number of topics that fill it.
        starts_full: nsqd starts on a nearly full disk; the space is freed after that.
        reserves: how many reserves its FINs would fill, a quarter more than each.
    """

    disk_mib: int
    topics: int
    starts_full: bool = False
    reserves: int = 1

    @property
    def finishes(self) -> int:
        """Number of FINs before the first end: a quarter more than the reserves hold."""
        reserve_bytes = min(16 * MIB, self.disk_mib * MIB // 8)
        return self.reserves * reserve_bytes * 5 // 4 // FINISH_BYTES

    @property
    def finishes_after(self) -> int:
        """Number of FINs between the first and the second end."""
        return self.finishes // 8

    @property
    def body_bytes(self) -> int:
        """Body size with which the disk holds about a quarter more messages than single FINs."""
        messages = 5 * (self.finishes + self.finishes_after) // 4
        return max(SMALLEST_BODY, self.disk_mib * MIB * 3 // 4 // messages - OVERHEAD_BYTES)


@dataclass(slots=True)
class Crowd:
    """Results of one disk, as consumers and publishers see them.

    Attributes:
        bodies: keys of the acknowledged messages, by topic.
        finished: keys of messages whose FIN was followed by an answered command, by topic.
        came: deliveries of finished messages, by topic.
        missing: acknowledged messages that are neither finished nor delivered.
        resumed_seconds: seconds from the last FIN until every topic accepts messages again.
        wrong: descriptions of other violations.
    """

    bodies: dict[str, set[bytes]] = field(default_factory=dict)
    finished: dict[str, set[bytes]] = field(default_factory=dict)
    came: Counter[str] = field(default_factory=Counter)
    missing: int = 0
    resumed_seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def finishes(self) -> int:
        """Number of FINs that were followed by an answered command."""
        return sum(map(len, self.finished.values()))

    @property
    def holds(self) -> bool:
        """Whether there was no violation, and publishing resumed in time."""
        quickly = self.resumed_seconds <= RESUMED_SECONDS_MAX
        return quickly and not (self.redelivered or self.missing or self.wrong)

    @property
    def redelivered(self) -> int:
        """Number of deliveries of finished messages."""
        return self.came.total()

    def expect(self, what: str, holds: bool) -> None:
        """Record `what` as a violation, unless `holds`."""
        if not holds:
            self.wrong.append(what)

    def note(self, topic: str, message: Message) -> None:
        """Record a delivery if its message was finished before."""
        if key_of(message) in self.finished[topic]:
            self.came[topic] += 1


def key_of(message: Message) -> bytes:
    """Return the beginning of the body, which is unique."""
    return message.body[:KEY_BYTES]


def crowd(folder: Path, shape: Shape, module: str = NSQD) -> Crowd:
    """Fill the disk, finish messages one by one, end nsqd twice, and drain the rest."""
    own = folder / "nsqd"
    found = Crowd()
    with SmallDisk(own, f"{shape.disk_mib}m") as disk:
        if shape.starts_full:
            facts = os.statvfs(disk.seen)
            disk.ballast(facts.f_bavail * facts.f_frsize - NEARLY_FULL_BYTES)
        place = folder if module == NSQD else own
        with started(place, module, ("--msg-timeout=10m",), disk.prefix) as server:
            topics = [f"topic{number}" for number in range(shape.topics)]
            for topic in topics:
                found.bodies[topic], found.finished[topic] = set(), set()
                server.post(f"/topic/create?topic={topic}")
                server.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
            if shape.starts_full:
                disk.drop_ballast()
            fill(server, found, shape.body_bytes)
            status, health = server.request("GET", "/ping")
            found.expect("/ping does not say it", status == 500 and b"enough for" in health)
            finish(server, found, shape.finishes)
            found.expect("the exit status of SIGTERM is not 0", server.terminate() == 0)
            server.start()
            finish(server, found, shape.finishes_after)
            server.restart()
            drain(server, found)
            resume(server, found)
    return found


def fill(server: NsqdServer, found: Crowd, body_bytes: int) -> None:
    """Publish to all topics in turn until none accepts even a single message."""
    number = 0
    with V2Client(server) as line:
        for count in (BATCH, 1):
            open_topics = list(found.bodies)
            while open_topics:
                for topic in tuple(open_topics):
                    bodies = [b"%0*d" % (KEY_BYTES, number + at) for at in range(count)]
                    number += count
                    padded = [body.ljust(body_bytes, b".") for body in bodies]
                    if line.ask(mpub(topic, padded)) == OK:
                        found.bodies[topic].update(bodies)
                    else:
                        open_topics.remove(topic)


def finish(server: NsqdServer, found: Crowd, count: int) -> None:
    """Finish `count` messages across all topics, one at a time per topic."""
    lines = {topic: V2Client(server) for topic in found.bodies}
    for topic, line in lines.items():
        found.expect("SUB is refused", line.ask(sub(topic, CHANNEL)) == OK)
        line.send(rdy(1))
    done = 0
    while done < count and lines:
        sent: list[tuple[str, Message]] = []
        for topic, line in lines.items():
            (message,) = line.messages(1)
            found.note(topic, message)
            # The second FIN gets an error, as its message is no longer in flight.
            line.send(fin_each([message]) * 2)
            sent.append((topic, message))
        for topic, message in sent:
            kind, text = lines[topic].ask(b"")
            found.expect(f"FIN: {kind} {text!r}", text.startswith(b"E_FIN_FAILED"))
            found.finished[topic].add(key_of(message))
            done += 1
            if len(found.finished[topic]) == len(found.bodies[topic]):
                lines.pop(topic).close()
    for line in lines.values():
        line.close()


def drain(server: NsqdServer, found: Crowd) -> None:
    """Receive and finish the remaining messages, and count those that are missing."""
    left = {topic: bodies - found.finished[topic] for topic, bodies in found.bodies.items()}
    lines = {topic: V2Client(server) for topic in left}
    for topic, line in lines.items():
        found.expect("SUB is refused", line.ask(sub(topic, CHANNEL)) == OK)
        line.send(rdy(READY))
    deadline = time.monotonic() + SECONDS_MAX
    while waiting(server) and time.monotonic() < deadline:
        for topic, line in lines.items():
            while messages := line.messages_within(0.001):
                for message in messages:
                    found.note(topic, message)
                    left[topic].discard(key_of(message))
                line.send(fin_each(messages))
    found.missing = sum(map(len, left.values()))
    for line in lines.values():
        found.expect("CLS is refused", line.ask(b"CLS\n") == (0, b"CLOSE_WAIT"))
        line.close()


def waiting(server: NsqdServer) -> int:
    """Return the number of unfinished messages."""
    topics = json.loads(server.request("GET", "/stats?format=json&include_clients=false")[1])
    channels = [channel for topic in topics["topics"] for channel in topic["channels"]]
    return sum(channel["depth"] + channel["in_flight_count"] for channel in channels)


def accepts(line: V2Client, topic: str) -> bool:
    """Publish a batch, and return whether nsqd has accepted it."""
    return line.ask(mpub(topic, [b"again"] * BATCH)) == OK


def resume(server: NsqdServer, found: Crowd) -> None:
    """Wait until every topic accepts messages again, now that all are finished."""
    began = time.monotonic()
    with V2Client(server) as line:
        for topic in found.bodies:
            wait_until(partial(accepts, line, topic), "open", SECONDS_MAX)
    found.resumed_seconds = time.monotonic() - began


def line_of(shapes: Sequence[Shape], all_found: Sequence[Crowd]) -> str:
    """Return the results of all shapes in one line."""
    finishes = sum(found.finishes for found in all_found)
    disks = sorted({shape.disk_mib for shape in shapes})
    topics = sorted({shape.topics for shape in shapes})
    return (
        f"disks of {'/'.join(map(str, disks))} MiB x {'/'.join(map(str, topics))} topics: "
        f"single FINs {finishes:,}, redelivered "
        f"{sum(found.redelivered for found in all_found):,}, "
        f"lost {sum(found.missing for found in all_found):,}, publishing again after "
        f"{max(found.resumed_seconds for found in all_found):.2f} s at most"
    )
