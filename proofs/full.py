"""A full disk: `make full`.

A small file system is filled. Publishes are refused with the reason, and `/ping` reports it.
Consumers still receive and finish messages, and a kill -9 undoes no FIN. When space is freed from
outside, publishing resumes by itself.

`make simulate` fills disks with many topics (`simulate_parts/full_disk.py`), and `make crash` lets
single calls find no space. The control is an nsqd without reserved space for FINs
(`no_reserve`): after the kill, it must deliver finished messages again.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.servers import NsqdServer
from tests.support.small_disk import IMAGE, QUOTA, QUOTA_BYTES, SmallDisk
from tests.support.v2_client import OK, V2Client, drain, fin_each

from proofs import file_systems, outcome
from proofs.file_systems import Disks
from proofs.outcome import Outcome, Plan, progress, skipped
from proofs.workload import NSQD, data_folder, make_topic, started, wait_until
from sparq.protocol.commands import mpub, pub, rdy, sub

PROMISES = ("P7",)
FULL_REASONS = ("no space left on device", "disk quota exceeded")
TOPIC, CHANNEL = "proof", "late"
MIB = 1 << 20
DISK, FREE_BYTES = "24m", 12 * MIB
IMAGE_MIB = {"ext4": 64, "xfs": 320, "btrfs": 128, "btrfs-quota": 128}
REFUSED_SHARE = 0.2
"""PUBs to the full disk before the first FIN, for each FIN."""
FINISHES = 10_000
BODY_BYTES = 260
BATCH = 50
FILL_EVERY = 500
"""Number of FINs after which publishers try again."""
READY = 2500
RESUMED_SECONDS = 30.0


@dataclass(slots=True)
class Findings:
    """Results of a run.

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

    @property
    def holds(self) -> bool:
        """Whether there was no violation."""
        wrong = (self.lost, self.stored, self.redelivered, *self.wrong)
        return self.acknowledged > 0 and not any(wrong)


class Filler:
    """A publisher of unique bodies; keeps the acknowledged and the refused ones."""

    def __init__(self, server: NsqdServer, seed: int) -> None:
        self.server = server
        self.chance = random.Random(f"{seed} full")
        self.acknowledged: list[bytes] = []
        self.refused: list[bytes] = []
        self.refusals = 0
        self.wrong: list[str] = []

    def publish(self, line: V2Client, count: int) -> bool:
        """Send a PUB or an MPUB; return whether it was acknowledged. Check an error's text."""
        bodies = [self.chance.randbytes(BODY_BYTES) for _ in range(count)]
        name, command = ("PUB", pub(TOPIC, bodies[0])) if count == 1 else ("MPUB", b"")
        kind, text = answer = line.ask(command or mpub(TOPIC, bodies))
        if answer == OK:
            self.acknowledged += bodies
            return True
        given = text.decode().removeprefix(f"E_{name}_FAILED {name} failed ")
        self.expect(f"{name} was answered {kind} {text!r}", given in FULL_REASONS)
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


def attempt(folder: Path, plan: Plan, module: str = NSQD) -> Findings:
    """Fill a disk, finish messages, kill nsqd, free space, and drain."""
    own, finishes, file_system = folder / "nsqd", plan.count, plan.file_system
    with disk_at(own, file_system) as disk:
        wanted = max(FREE_BYTES * finishes // FINISHES, FREE_BYTES // 4)
        disk.leave(wanted, QUOTA_BYTES if file_system == "btrfs-quota" else None)
        place = folder if module == NSQD else own
        with started(place, module, (f"--max-bytes-per-file={MIB}",), disk.prefix) as server:
            make_topic(server, TOPIC, (CHANNEL,))
            filler = Filler(server, plan.seed)
            with V2Client(server) as line:
                filler.fill(line)
                for _ in range(int(REFUSED_SHARE * finishes)):
                    filler.publish(line, 1)
            filler.expect("/ping does not say it", not is_healthy(server))
            progress("full")
            finished = finish(filler, finishes)
            server.restart()
            seconds = resumed(filler, disk)
            came = Counter(drain(server, TOPIC, CHANNEL))
    due = Counter(filler.acknowledged) - Counter(finished)
    return Findings(
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
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not file_system:
        return SmallDisk(folder, DISK)
    folder.mkdir(parents=True)
    image = folder.parent / "image"
    file_systems.make(image, file_system, IMAGE_MIB[file_system])
    return SmallDisk(folder, str(image), QUOTA if file_system == "btrfs-quota" else IMAGE)


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


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    with data_folder(plan.keep) as folder:
        try:
            found = attempt(folder / "full", plan)
        except pytest.skip.Exception as without:
            return skipped(PROMISES, str(without))
        held, control = found.holds, ""
        if plan.control:
            unreserved = attempt(folder / "control", plan, "no_reserve")
            control = f"without reserved space: FINs undone {unreserved.redelivered:,}"
            held = held and unreserved.redelivered > 0
    for wrong in found.wrong:
        print(f"\nwrong: {wrong}")
    figures = (
        f"commands refused on the full disk {found.refused:,} · "
        f"acknowledged {found.acknowledged:,} · acknowledged lost {found.lost:,} · "
        f"refused yet stored {found.stored:,} · "
        f"FINs kept while full {found.finished - found.redelivered:,}/{found.finished:,} · "
        f"resumed after {found.resumed_seconds:.2f} s without restart"
    )
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("full", prove, count=FINISHES, of="FINs", disks=Disks.GIVEN))
