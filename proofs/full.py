"""Runs nsqd on full disks of several kinds: `make full`.

- fill_completely: fills a small file system. Publishes are refused with the reason, and `/ping`
  reports it. Consumers still receive and finish messages, and a kill -9 undoes no FIN. When space
  is freed from outside, publishing resumes by itself.
- short: a limit on the file's size stops the write of an MPUB at a random byte. No part of it is
  stored afterwards.
- crowd: fills disks of 16 MiB, 40 MiB and 1 GiB, each with 1, 20 and 200 topics. Consumers with
  RDY 1 finish one message at a time, for more FINs than the reserve alone could hold, across a
  SIGTERM and a kill -9 (full_parts/crowd.py). The same on disks that were nearly full when nsqd
  started.
- remedies: with no free byte left and the reserve gone, deleting or emptying a topic or channel
  frees the space before it is answered (full_parts/remedies.py).
- points: with strace, the N-th write, creation, rename or reservation of disk space fails with
  ENOSPC, for many N, while publishers and consumers work. Each life ends with kill -9 (faults.py).

The controls are an nsqd without reserved space for FINs (controls/no_reserve.py), and one without
checkpoints that make room (controls/no_checkpoints.py): after the kill, they must deliver finished
messages again.
"""

import asyncio
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest
from tests.support import strace
from tests.support.servers import NsqdServer, spawn_nsqd
from tests.support.small_disk import IMAGE, QUOTA, QUOTA_BYTES, SmallDisk
from tests.support.v2_client import OK, V2Client, drain, fin_each

from proofs import faults, file_systems, outcome
from proofs.checker import Verdict
from proofs.daemon_fixture import NSQD, data_folder, started, wait_until
from proofs.faults import Rig, Rule
from proofs.file_systems import Disks
from proofs.full_parts.crowd import Crowd, Shape, crowd, line_of
from proofs.full_parts.remedies import Remedies, remedies
from proofs.outcome import Outcome, Plan, progress, skipped
from sparq.protocol.commands import mpub, pub, rdy, sub

PROMISES = ("P7",)
NO_RESERVE = "proofs.controls.no_reserve"
NO_CHECKPOINTS = "proofs.controls.no_checkpoints"
SHAPES = (
    *(Shape(mib, topics) for mib in (16, 40, 1024) for topics in (1, 20, 200)),
    Shape(16, 1, starts_full=True),
    Shape(16, 20, starts_full=True),
)
SMALL = Shape(4, 20)
CONTROL = Shape(4, 20, reserves=2)
"""On a busy machine nsqd notes several FINs at once, and one reserve sufficed for them."""
"""For short runs, and for the control."""
ALL_SHAPES_FROM = 100
"""From this many points on, all shapes are tried."""
FULL_REASONS = ("no space left on device", "disk quota exceeded")
TOPIC, CHANNEL = "proof", "late"
MIB = 1 << 20
DISK, FREE_BYTES = "24m", 12 * MIB
IMAGE_MIB = {"ext4": 64, "xfs": 320, "btrfs": 128, "btrfs-quota": 128}
REFUSED = 2_000
"""Number of PUBs to a full disk, in a full run, before the first FIN."""
FINISHES = 10_000
BODY_BYTES = 260
BATCH = 50
FILL_EVERY = 500
"""Number of FINs after which publishers try again."""
READY = 2500
RESUMED_SECONDS = 30.0
SHORT_SHARE, SHORT_BODIES = 0.3, 10
WRITES = "pwrite64,pwritev2"
POINTS = (
    Rule((("pwrite64", "ENOSPC", "4{first}+9"),), 16),
    Rule((("pwritev2", "ENOSPC", "{first}+4"),), 10),
    Rule((("pwrite64,pwritev2", "ENOSPC", "3{first}+5"),), 20),
    Rule((("openat,mkdirat,renameat", "ENOSPC", "{first}+2"),), 6, in_topic=True),
    Rule((("fallocate", "ENOSPC", "1"), ("pwrite64", "ENOSPC", "3{first}+7")), 16),
    # As a quota does, until the kill.
    Rule((("ftruncate,renameat", "EDQUOT", "1+"), (WRITES, "EDQUOT", "3{first}+5")), 30),
    Rule((("ftruncate,renameat", "EDQUOT", "1+"), (WRITES, "EDQUOT", "9{first}+")), 30),
)
LIVES_MAX = 40


@dataclass(slots=True)
class CompletelyFull:
    """Results of the completely filled disk.

    Attributes:
        acknowledged: number of acknowledged messages.
        refused: number of commands answered with an error.
        lost, stored: acknowledged messages that did not come, and refused ones that did.
        finished, redelivered: messages finished on the full disk, and those delivered again.
        resumed_seconds: seconds from the moment there was space to the first OK.
        wrong: descriptions of other violations.
    """

    acknowledged: int
    refused: int
    lost: int
    stored: int
    finished: int
    redelivered: int
    resumed_seconds: float
    wrong: list[str]


class Filler:
    """A publisher of unique bodies; keeps the acknowledged and the refused ones."""

    def __init__(self, server: NsqdServer, seed: int) -> None:
        self.server = server
        self.chance = random.Random(f"{seed} full")
        self.acknowledged: list[bytes] = []
        self.refused: list[bytes] = []
        self.refusals = 0
        self.wrong: list[str] = []

    def publish(self, line: V2Client, count: int, *reasons: str) -> bool:
        """Send a PUB or an MPUB; return whether it was acknowledged. Check an error's text."""
        bodies = [self.chance.randbytes(BODY_BYTES) for _ in range(count)]
        name, command = ("PUB", pub(TOPIC, bodies[0])) if count == 1 else ("MPUB", b"")
        kind, text = answer = line.ask(command or mpub(TOPIC, bodies))
        if answer == OK:
            self.acknowledged += bodies
            return True
        given = text.decode().removeprefix(f"E_{name}_FAILED {name} failed ")
        if given not in (reasons or FULL_REASONS):
            self.wrong.append(f"{name} was answered {kind} {text!r}")
        self.refused += bodies
        self.refusals += 1
        return False

    def fill(self, line: V2Client) -> None:
        """Publish until nsqd accepts neither a batch nor a single message."""
        for count in (BATCH, 1):
            while self.publish(line, count):
                pass

    def expect(self, what: str, holds: bool) -> None:
        """Record `what` as a violation, unless `holds`."""
        if not holds:
            self.wrong.append(what)


def fill_completely(
    folder: Path, seed: int, finishes: int, module: str = NSQD, file_system: str = ""
) -> CompletelyFull:
    """Fill a disk, finish messages, kill nsqd, free space, and drain."""
    own = folder / "nsqd"
    with disk_at(own, file_system) as disk:
        wanted = max(FREE_BYTES * finishes // FINISHES, FREE_BYTES // 4)
        disk.leave(wanted, QUOTA_BYTES if file_system == "btrfs-quota" else None)
        place = folder if module == NSQD else own
        with started(place, module, (f"--max-bytes-per-file={MIB}",), disk.prefix) as server:
            create(server)
            filler = Filler(server, seed)
            with V2Client(server) as line:
                filler.fill(line)
                for _ in range(REFUSED * finishes // FINISHES):
                    filler.publish(line, 1)
            filler.expect("/ping does not say it", not is_healthy(server))
            finished = finish(filler, finishes)
            server.restart()
            seconds = resumed(filler, disk)
            came = Counter(drain(server, TOPIC, CHANNEL))
    due = Counter(filler.acknowledged) - Counter(finished)
    return CompletelyFull(
        acknowledged=len(filler.acknowledged),
        refused=filler.refusals,
        lost=(due - came).total(),
        stored=(came & Counter(filler.refused)).total(),
        finished=len(finished),
        redelivered=(came & Counter(finished)).total(),
        resumed_seconds=seconds,
        wrong=filler.wrong,
    )


def disk_at(folder: Path, file_system: str) -> SmallDisk:
    """A small disk of this kind; "": a tmpfs."""
    if not file_system:
        return SmallDisk(folder, DISK)
    folder.mkdir(parents=True)
    image = folder.parent / "image"
    file_systems.make(image, file_system, IMAGE_MIB[file_system])
    return SmallDisk(folder, str(image), QUOTA if file_system == "btrfs-quota" else IMAGE)


def create(server: NsqdServer) -> None:
    """Create the topic, with a channel from its first message on."""
    server.post(f"/topic/create?topic={TOPIC}")
    server.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")


def finish(filler: Filler, count: int) -> list[bytes]:
    """Finish `count` messages on the full disk, about half of those that come; return their bodies.

    The others are requeued, so that the finished messages form many ranges. Meanwhile publishers
    use any space that finished segments free; they must not get the reserved space.
    """
    finished: list[bytes] = []
    with V2Client(filler.server) as line, V2Client(filler.server) as filling:
        filler.expect("SUB is refused", line.ask(sub(TOPIC, CHANNEL)) == OK)
        line.send(rdy(READY))
        while len(finished) < count:
            (taken,) = line.messages(1)
            if filler.chance.random() < 0.5:
                line.send(b"REQ %s 0\n" % taken.id)
                continue
            line.send(fin_each([taken]))
            finished.append(taken.body)
            if not len(finished) % FILL_EVERY:
                filler.fill(filling)
        filler.expect("CLS is refused", line.ask(b"CLS\n") == (0, b"CLOSE_WAIT"))
    return finished


def resumed(filler: Filler, disk: SmallDisk) -> float:
    """Free space; return after how many seconds an MPUB is acknowledged, without a restart."""
    with V2Client(filler.server) as line:
        filler.fill(line)
        disk.drop_ballast()
        began = time.monotonic()
        wait_until(lambda: filler.publish(line, BATCH), "resumed", RESUMED_SECONDS)
        seconds = time.monotonic() - began
        filler.expect("a later PUB is refused", filler.publish(line, 1))
    wait_until(lambda: is_healthy(filler.server), "healthy", RESUMED_SECONDS)
    return seconds


def is_healthy(server: NsqdServer) -> bool:
    """Return whether /ping is answered with 200."""
    return server.request("GET", "/ping")[0] == 200


@dataclass(slots=True)
class Short:
    """Results of the writes that stopped in the middle."""

    points: int
    lost: int
    stored: int
    wrong: list[str]


def short(folder: Path, seed: int, points: int) -> Short:
    """Send MPUBs whose write stops at a random byte, each after a publish that is acknowledged."""
    with spawn_nsqd(folder, name="short") as server:
        create(server)
        (topic,) = (path for path in (server.folder / "topics").iterdir() if TOPIC in path.name)
        filler = Filler(server, seed)
        with V2Client(server) as line:
            for _ in range(points):
                filler.publish(line, 1 + filler.chance.randrange(3))
                segment = max(topic.glob("*.log"))
                before = log_bytes(server)
                cut = filler.chance.randrange(1, SHORT_BODIES * BODY_BYTES)
                limit_file_size(server, before + cut)
                taken = filler.publish(line, SHORT_BODIES, "file too large")
                filler.expect(f"a write cut at {cut} was taken", not taken)
                filler.expect("its part is there", segment.stat().st_size == before)
                limit_file_size(server, resource.RLIM_INFINITY)
        server.restart()
        came = Counter(drain(server, TOPIC, CHANNEL))
    acknowledged = Counter(filler.acknowledged)
    return Short(points, (acknowledged - came).total(), (came - acknowledged).total(), filler.wrong)


def log_bytes(server: NsqdServer) -> int:
    """Return the offset of the next batch: the end of the last one, before any preallocation."""
    (topic,) = server.get_json(f"/stats?format=json&topic={TOPIC}")["topics"]
    return int(topic["log_bytes"])


def limit_file_size(server: NsqdServer, size_bytes: int) -> None:
    """Limit the size of files that nsqd writes; a write that crosses the limit is cut short."""
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


async def lives(rig: Rig, plan: Plan) -> Verdict:
    """Run lives until `plan.count` calls found no space; return the final verdict."""
    chance = random.Random(f"{plan.seed} points")
    async with rig.actors:
        for number, rule in zip(range(LIVES_MAX), cycle(POINTS), strict=False):
            if number and rig.tally.faults.total() >= plan.count:
                break
            await rig.load(faults.placed(rule, first=chance.randint(1, 9)))
            progress(f"{rig.tally.faults.total()} points")
        return await rig.end()


def prove(plan: Plan) -> Outcome:
    """Run all parts and the controls."""
    if needs := strace.missing():
        return skipped(PROMISES, needs)
    finishes = min(FINISHES, plan.count * 80)
    with data_folder(plan.keep) as folder:
        try:
            full = fill_completely(
                folder / "fill_completely", plan.seed, finishes, NSQD, plan.file_system
            )
        except pytest.skip.Exception as without:
            return skipped(PROMISES, str(without))
        cut = short(folder, plan.seed, max(4, round(plan.count * SHORT_SHARE)))
        shapes = SHAPES if plan.count >= ALL_SHAPES_FROM else (SMALL,)
        crowds = list(crowded(folder, shapes))
        remedied = remedies(folder / "remedies")
        rig = faults.rig(folder / "points", plan.seed)
        with rig.server:
            rig.server.kill9()
            verdict = asyncio.run(lives(rig, plan))
        held, control = holds(full, cut, rig, verdict), ""
        held = held and all(found.holds for found in crowds) and not remedied.wrong
        if plan.control:
            unreserved = fill_completely(
                folder / "control", plan.seed, finishes, NO_RESERVE, plan.file_system
            )
            crowded_out = crowd(folder / "crowd-control", CONTROL, NO_CHECKPOINTS)
            control = (
                f"without reserved space: FINs undone {unreserved.redelivered:,} · "
                f"without checkpoints: FINs undone {crowded_out.redelivered:,}"
            )
            held = held and unreserved.redelivered > 0 and crowded_out.redelivered > 0
    wrongs = [wrong for found in crowds for wrong in found.wrong]
    for wrong in (*full.wrong, *cut.wrong, *rig.tally.deaths, *wrongs, *remedied.wrong):
        print(f"\nwrong: {wrong}")
    parts = figures(full, cut, rig, verdict), line_of(shapes, crowds), of_remedies(remedied)
    return Outcome(PROMISES, " · ".join(parts), held, control)


def crowded(folder: Path, shapes: Sequence[Shape]) -> Iterator[Crowd]:
    """Yield the results of each of these disks."""
    for shape in shapes:
        started_full = "-late" if shape.starts_full else ""
        progress(f"{shape.disk_mib} MiB, {shape.topics} topics{started_full}")
        yield crowd(folder / f"crowd-{shape.disk_mib}-{shape.topics}{started_full}", shape)


def of_remedies(found: Remedies) -> str:
    """Return the results of the remedies in one line."""
    return (
        f"remedies with no byte left {found.tried - len(found.wrong)}/{found.tried}, "
        f"publishing again after {found.slowest_seconds:.2f} s at most"
    )


def holds(full: CompletelyFull, cut: Short, rig: Rig, verdict: Verdict) -> bool:
    """Return whether there was no violation."""
    brimming = (full.lost, full.stored, full.redelivered, *full.wrong)
    shortened = (cut.lost, cut.stored, *cut.wrong)
    pointed = (verdict.lost, verdict.ghosts, verdict.corrupt, verdict.split)
    kept = (verdict.refused_yet_delivered, *rig.tally.deaths)
    return verdict.delivered > 0 and not any((*brimming, *shortened, *pointed, *kept))


def figures(full: CompletelyFull, cut: Short, rig: Rig, verdict: Verdict) -> str:
    """Return the results in one line."""
    faulty = rig.tally.faults
    calls = ", ".join(f"{call} {count}" for call, count in faulty.most_common())
    acknowledged = full.acknowledged + verdict.acknowledged
    return (
        f"ENOSPC points {faulty.total()} ({calls}) · short writes {cut.points} · "
        f"commands refused on the full disk {full.refused:,} · "
        f"acknowledged {acknowledged:,} · "
        f"acknowledged lost: {full.lost + cut.lost + verdict.lost:,} · "
        f"refused yet stored {full.stored + cut.stored + verdict.refused_yet_delivered:,} · "
        f"split MPUBs {verdict.split:,} · server deaths {len(rig.tally.deaths)} · "
        f"FINs kept while full {full.finished - full.redelivered:,}/{full.finished:,} · "
        f"resumed after {full.resumed_seconds:.2f} s without restart"
    )


if __name__ == "__main__":
    sys.exit(outcome.run("full", prove, count=130, of="points without space", disks=Disks.GIVEN))
