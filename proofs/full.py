"""nsqd on a disk that is full, in each way in which a disk can be: `make full`.

- brim: a small file system of its own is filled up to the brim. Publishes are refused with the
  reason, `/ping` says it, consumers go on receiving and finishing, a kill -9 takes nothing of that
  back; and when somebody else makes space, publishing goes on by itself.
- short: a write of an MPUB stops in its middle (a limit on the file's size), anywhere. Nothing of
  it is there afterwards.
- crowd: disks of 16 MB, 40 MB and 1 GB, each with 1, 20 and 200 topics, are filled up; consumers at
  RDY 1 finish one message at a time until long after the reserve would be gone, over a SIGTERM and
  a kill -9 (full_parts/crowd.py). So on a disk that was nearly full when nsqd was started.
- remedies: with not a byte left and the reserve gone, deleting and emptying topics and channels
  frees the space before it is answered (full_parts/remedies.py).
- points: strace lets the N-th write, creation, cut or reservation find no space, for many N, while
  publishers and consumers work; each life ends with kill -9 (faults.py).

The controls are an nsqd that keeps no space back for what is finished (no_reserve.py), and one in
which no checkpoint makes room (no_checkpoints.py): after the kill messages must come again whose
FINs were taken in.
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
from tests.support.small_disk import SmallDisk
from tests.support.v2_client import OK, V2Client, drain, fin_each

from proofs import faults, outcome
from proofs.checker import Verdict
from proofs.daemon_fixture import NSQD, data_folder, started, wait_until
from proofs.faults import Rig, Rule
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
"""For a short run, and for the control."""
ALL_SHAPES_FROM = 100
"""So many points, and all shapes are tried."""
TOPIC, CHANNEL = "proof", "late"
MIB = 1 << 20
DISK, DISK_BYTES, FREE_BYTES = "24m", 24 * MIB, 12 * MIB
REFUSED = 2_000
"""So many PUBs are refused before anything else."""
FINISHES = 10_000
BODY_BYTES = 260
BATCH = 50
PRESS_EVERY = 500
"""After so many FINs publishers try again."""
READY = 2500
RESUMED_SECONDS = 30.0
SHORT_SHARE, SHORT_BODIES = 0.3, 10
POINTS = (
    Rule((("pwrite64", "ENOSPC", "4{first}+9"),), 16),
    Rule((("pwritev2", "ENOSPC", "{first}+4"),), 10),
    Rule((("pwrite64,pwritev2", "ENOSPC", "3{first}+5"),), 20),
    Rule((("openat,mkdir,rename", "ENOSPC", "{first}+2"),), 6, in_topic=True),
    Rule((("fallocate", "ENOSPC", "1"), ("pwrite64", "ENOSPC", "3{first}+7")), 16),
)
LIVES_MAX = 40


@dataclass(slots=True)
class Brim:
    """What the full disk showed.

    Attributes:
        refused: commands answered with an error.
        lost, stored: messages that should have come and did not, or came though refused.
        finished, redelivered: FINs while the disk was full, and how many of them came again.
        resumed_seconds: from the moment there was space to the first OK.
        wrong: what was not as promised, in words.
    """

    acknowledged: int
    refused: int
    lost: int
    stored: int
    finished: int
    redelivered: int
    resumed_seconds: float
    wrong: list[str]


class Press:
    """A publisher of unique bodies who keeps what was acknowledged and what was refused."""

    def __init__(self, server: NsqdServer, seed: int) -> None:
        self.server = server
        self.chance = random.Random(f"{seed} full")
        self.acknowledged: list[bytes] = []
        self.refused: list[bytes] = []
        self.refusals = 0
        self.wrong: list[str] = []

    def publish(self, line: V2Client, count: int, reason: str = "no space left on device") -> bool:
        """One PUB or MPUB; whether it was acknowledged."""
        bodies = [self.chance.randbytes(BODY_BYTES) for _ in range(count)]
        name, command = ("PUB", pub(TOPIC, bodies[0])) if count == 1 else ("MPUB", b"")
        kind, text = answer = line.ask(command or mpub(TOPIC, bodies))
        if answer == OK:
            self.acknowledged += bodies
            return True
        if text != f"E_{name}_FAILED {name} failed {reason}".encode():
            self.wrong.append(f"{name} was answered {kind} {text!r}")
        self.refused += bodies
        self.refusals += 1
        return False

    def fill(self, line: V2Client) -> None:
        """Publish until nothing more is taken, not the smallest either."""
        for count in (BATCH, 1):
            while self.publish(line, count):
                pass

    def expect(self, what: str, holds: bool) -> None:
        """Note what is not as it should be."""
        if not holds:
            self.wrong.append(what)


def brim(folder: Path, seed: int, finishes: int, module: str = NSQD) -> Brim:
    """Fill a disk, finish, be killed, and have space again."""
    own = folder / "nsqd"
    with SmallDisk(own, DISK) as disk:
        disk.ballast(DISK_BYTES - max(FREE_BYTES * finishes // FINISHES, FREE_BYTES // 4))
        place = folder if module == NSQD else own
        with started(place, module, (f"--max-bytes-per-file={MIB}",), disk.prefix) as server:
            create(server)
            press = Press(server, seed)
            with V2Client(server) as line:
                press.fill(line)
                for _ in range(REFUSED * finishes // FINISHES):
                    press.publish(line, 1)
            press.expect("/ping does not say it", not is_healthy(server))
            finished = finish(press, finishes)
            server.restart()
            seconds = resumed(press, disk)
            came = Counter(drain(server, TOPIC, CHANNEL))
    due = Counter(press.acknowledged) - Counter(finished)
    return Brim(
        acknowledged=len(press.acknowledged),
        refused=press.refusals,
        lost=(due - came).total(),
        stored=(came & Counter(press.refused)).total(),
        finished=len(finished),
        redelivered=(came & Counter(finished)).total(),
        resumed_seconds=seconds,
        wrong=press.wrong,
    )


def create(server: NsqdServer) -> None:
    """The topic, with a channel that gets everything."""
    server.post(f"/topic/create?topic={TOPIC}")
    server.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")


def finish(press: Press, count: int) -> list[bytes]:
    """Finish so many messages on the full disk, about every second one that comes.

    The others are sent back, so that what is finished is no single range. Publishers take at once
    what becomes free when files are finished: but the space that is kept back is not for them.
    """
    finished: list[bytes] = []
    with V2Client(press.server) as line, V2Client(press.server) as pressing:
        press.expect("SUB is refused", line.ask(sub(TOPIC, CHANNEL)) == OK)
        line.send(rdy(READY))
        while len(finished) < count:
            (taken,) = line.messages(1)
            if press.chance.random() < 0.5:
                line.send(b"REQ %s 0\n" % taken.id)
                continue
            line.send(fin_each([taken]))
            finished.append(taken.body)
            if not len(finished) % PRESS_EVERY:
                press.fill(pressing)
        press.expect("CLS is refused", line.ask(b"CLS\n") == (0, b"CLOSE_WAIT"))
    return finished


def resumed(press: Press, disk: SmallDisk) -> float:
    """The seconds from the moment there is space until an MPUB is taken, without a restart."""
    with V2Client(press.server) as line:
        press.fill(line)
        disk.drop_ballast()
        began = time.monotonic()
        wait_until(lambda: press.publish(line, BATCH), "resumed", RESUMED_SECONDS)
        seconds = time.monotonic() - began
        press.expect("a later PUB is refused", press.publish(line, 1))
    wait_until(lambda: is_healthy(press.server), "healthy", RESUMED_SECONDS)
    return seconds


def is_healthy(server: NsqdServer) -> bool:
    """Whether /ping has nothing to complain of."""
    return server.request("GET", "/ping")[0] == 200


@dataclass(slots=True)
class Short:
    """What writes that stopped in their middle showed."""

    points: int
    lost: int
    stored: int
    wrong: list[str]


def short(folder: Path, seed: int, points: int) -> Short:
    """MPUBs whose write stops anywhere, each followed by one that is taken."""
    with spawn_nsqd(folder, name="short") as server:
        create(server)
        (topic,) = (path for path in (server.folder / "topics").iterdir() if TOPIC in path.name)
        press = Press(server, seed)
        with V2Client(server) as line:
            for _ in range(points):
                press.publish(line, 1 + press.chance.randrange(3))
                segment = max(topic.glob("*.log"))
                before = log_bytes(server)
                cut = press.chance.randrange(1, SHORT_BODIES * BODY_BYTES)
                limit_file_size(server, before + cut)
                taken = press.publish(line, SHORT_BODIES, "file too large")
                press.expect(f"a write cut at {cut} was taken", not taken)
                press.expect("its part is there", segment.stat().st_size == before)
                limit_file_size(server, resource.RLIM_INFINITY)
        server.restart()
        came = Counter(drain(server, TOPIC, CHANNEL))
    acknowledged = Counter(press.acknowledged)
    return Short(points, (acknowledged - came).total(), (came - acknowledged).total(), press.wrong)


def log_bytes(server: NsqdServer) -> int:
    """Where the next batch begins: behind the last one, whatever filling the file has there."""
    (topic,) = server.get_json(f"/stats?format=json&topic={TOPIC}")["topics"]
    return int(topic["log_bytes"])


def limit_file_size(server: NsqdServer, size_bytes: int) -> None:
    """Let nsqd's writes stop at this size of a file, in their middle if need be."""
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


async def lives(rig: Rig, plan: Plan) -> Verdict:
    """Loads without space at so many points, and the end."""
    chance = random.Random(f"{plan.seed} points")
    async with rig.crew:
        for number, rule in zip(range(LIVES_MAX), cycle(POINTS), strict=False):
            if number and rig.tally.faults.total() >= plan.count:
                break
            await rig.load(faults.placed(rule, first=chance.randint(1, 9)))
            progress(f"{rig.tally.faults.total()} points")
        return await rig.end()


def prove(plan: Plan) -> Outcome:
    """The three ways and the control."""
    if needs := strace.lack():
        return skipped(PROMISES, needs)
    finishes = min(FINISHES, plan.count * 80)
    with data_folder(plan.keep) as folder:
        try:
            full = brim(folder / "brim", plan.seed, finishes)
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
            spoilt = brim(folder / "control", plan.seed, finishes, NO_RESERVE)
            crowded_out = crowd(folder / "crowd-control", SMALL, NO_CHECKPOINTS)
            control = (
                f"with no space kept back: FINs undone {spoilt.redelivered:,} · "
                f"with no checkpoint to make room: FINs undone {crowded_out.redelivered:,}"
            )
            held = held and spoilt.redelivered > 0 and crowded_out.redelivered > 0
    wrongs = [wrong for found in crowds for wrong in found.wrong]
    for wrong in (*full.wrong, *cut.wrong, *rig.tally.deaths, *wrongs, *remedied.wrong):
        print(f"\nwrong: {wrong}")
    parts = figures(full, cut, rig, verdict), line_of(shapes, crowds), of_remedies(remedied)
    return Outcome(PROMISES, " · ".join(parts), held, control)


def crowded(folder: Path, shapes: Sequence[Shape]) -> Iterator[Crowd]:
    """What each of these disks showed."""
    for shape in shapes:
        started_full = "-late" if shape.starts_full else ""
        progress(f"{shape.disk_mib} MiB, {shape.topics} topics{started_full}")
        yield crowd(folder / f"crowd-{shape.disk_mib}-{shape.topics}{started_full}", shape)


def of_remedies(found: Remedies) -> str:
    """Their figures."""
    return (
        f"remedies with no byte left {found.tried - len(found.wrong)}/{found.tried}, "
        f"publishing again after {found.slowest_seconds:.2f} s at most"
    )


def holds(full: Brim, cut: Short, rig: Rig, verdict: Verdict) -> bool:
    """Whether nothing at all was wrong."""
    brimming = (full.lost, full.stored, full.redelivered, *full.wrong)
    shortened = (cut.lost, cut.stored, *cut.wrong)
    pointed = (verdict.lost, verdict.ghosts, verdict.corrupt, verdict.split)
    kept = (verdict.refused_yet_delivered, *rig.tally.deaths)
    return verdict.delivered > 0 and not any((*brimming, *shortened, *pointed, *kept))


def figures(full: Brim, cut: Short, rig: Rig, verdict: Verdict) -> str:
    """The line of the proof."""
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
    sys.exit(outcome.run("full", prove, count=130, of="points without space"))
