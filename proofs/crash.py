"""Ends nsqd at its N-th write, sync, rename ..., or lets that call fail: `make crash`.

strace kills nsqd when it enters a system call: everything before the call has happened, and nothing
after it. All N of all calls that change the disk or send a reply together cover every state that a
crash can leave on disk. Only the clients' timing is random. At one point in ten, nsqd gets SIGTERM
instead, and must end with status 0.

A chain is a series of such points on one data path: each nsqd starts on the files that the crash
before it has left, so recoveries crash as well. Publishers (PUB and MPUB) and consumers work on the
channel `live` all the time, and an operator creates and deletes topics. At the end of a chain, nsqd
starts undisturbed, the channel `late` is read for the first time, and the checker counts.

In further chains, the N-th call and some or all later ones fail, as on a broken or full disk, until
kill -9. nsqd must start, or refuse with a reason, and go on; while every sync fails, it must
acknowledge nothing. What was refused may still appear after the kill, since its removal may have
failed as well. `make simulate` draws such errors for every operation; here they come through the
kernel, and at starts.

The controls are chains of an nsqd that writes after its OK (`late_commit`), that writes finished
messages late (`late_finish`), or that ignores failed syncs (`ignored_sync_error`).
"""

import asyncio
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from itertools import cycle, islice, takewhile
from pathlib import Path

from tests.support import strace
from tests.support.servers import NsqdServer

from proofs import outcome
from proofs.checker import Outcome as Answer
from proofs.checker import Verdict, lost_commands, total
from proofs.operator import Operator
from proofs.outcome import Outcome, Plan, progress, skipped
from proofs.workload import NSQD, TOPIC, Workload, data_folder, started, wait_until

PROMISES = ("P1", "P3", "P8", "P9", "P15")
FLAGS = ("--max-bytes-per-file=1048576", "--msg-timeout=60s")
CHAIN_POINTS = 13
CHAINS_AT_ONCE = 2
LOAD_SECONDS, FAULTY_SECONDS = 5.0, 1.0
UP_SECONDS = 60.0
POLL_SECONDS = 0.01
SHARES = {
    "pwrite64": 150,
    "fdatasync": 110,
    "write": 70,
    "writev": 60,
    "pwritev2": 40,
    "fsync": 30,
    "openat": 40,
    "unlinkat": 12,
    "mkdirat": 7,
    "renameat": 1,
}
"""Points per system call, out of 520: about as many as nsqd makes of each in a second."""
CONTROL_POINTS = (("writev", 20), ("pwrite64", 30), ("writev", 40), ("pwrite64", 30))
"""Points reached under full load, when there are messages to lose."""
CONTROL_DRAIN_SECONDS = 10.0
ROUNDS_MAX = 4
EARLY_CALLS, EARLY_NUMBER_MAX = ("pwrite64", "fdatasync", "writev"), 25
SHOWN_MAX = 20

CHANGES = "pwrite64,pwritev2,ftruncate,renameat,unlinkat,mkdirat,fallocate,fdatasync,fsync"
FAULTS = (
    *(("fdatasync", "EIO", 4), ("pwrite64", "EIO", 9), ("fsync", "EIO", 3), ("pread64", "EIO", 31)),
    *(("pwritev2,ftruncate", "EIO", 4), ("openat", "EMFILE", 3), ("flock", "EIO", 0)),
    *(("unlinkat,renameat,mkdirat", "EIO", 2), ("pwrite64", "ENOSPC", 9), ("openat", "EIO", 0)),
    *(("fallocate,pwrite64", "ENOSPC", 3), ("ftruncate,renameat", "EDQUOT", 1)),
    *(("unlinkat", "EROFS", 1), ("mkdirat,fallocate", "EDQUOT", 1), (CHANGES, "EROFS", 1)),
)
"""Calls, the error with which the N-th fails, and which later ones fail too (see `Point.every`)."""

STATUSES = {"KILL": -signal.SIGKILL, "TERM": 0}
"""How nsqd must end after a signal."""

STOPPED = 10
"""One SIGTERM among this many points."""

FAULTY_SHARE = 4
"""One life with failing calls for this many crash points."""

IN_DATA = re.compile(r'at\(\d+, "')
"""A call that begins at a folder's descriptor: nsqd's calls on its data do."""
CALL = re.compile(r"^\d+ +(\w+)\(")


@dataclass(frozen=True, slots=True)
class Point:
    """Where nsqd is disturbed: one of its threads enters a call for the N-th time.

    Attributes:
        calls: names of system calls, with commas between them.
        number: N.
        effect: the signal that nsqd gets, KILL or TERM, or the errno with which the call fails.
        every: each so-many-th later call fails too; 0: none.
    """

    calls: str
    number: int
    effect: str = "KILL"
    every: int = 0

    @property
    def is_faulty(self) -> bool:
        """Whether calls fail."""
        return self.effect not in STATUSES

    @property
    def is_dark(self) -> bool:
        """Whether no sync succeeds, so that no publish may be acknowledged."""
        return self == DARK

    def prefix(self, before: Mapping[str, int]) -> tuple[str, ...]:
        """Return the strace command; `before`: how often nsqd makes each call before its first
        data file, since Python loads modules."""
        when = str(self.number + before.get(self.calls, 0))
        effect = f"{'error' if self.is_faulty else 'signal'}={self.effect}"
        return strace.inject(self.calls, effect, when + f"+{self.every}" * bool(self.every))


DARK = Point("fdatasync", 1, "EIO", 1)


def points(count: int, chance: random.Random) -> list[Point]:
    """Return `count` points, N = 1, 2, 3 ... of each call by its share, in random order."""
    whole = sum(SHARES.values())
    found = [
        Point(call, number)
        for call, share in SHARES.items()
        for number in range(1, max(1, round(share * count / whole)) + 1)
    ]
    chance.shuffle(found)
    stops = [replace(point, effect="TERM") for point in found[: count // STOPPED]]
    return [*stops, *found[len(stops) : count]]


def faulty_points(count: int, chance: random.Random) -> list[Point]:
    """Return `count` points at which calls fail: of all kinds in turn, each from a random N on."""
    kinds = islice(cycle((*FAULTS, None)), count)
    return [
        Point(kind[0], chance.randint(1, EARLY_NUMBER_MAX), *kind[1:]) if kind else DARK
        for kind in kinds
    ]


def early_point(chance: random.Random) -> Point:
    """Return a point that nsqd reaches soon."""
    return Point(chance.choice(EARLY_CALLS), chance.randint(1, EARLY_NUMBER_MAX))


@dataclass(slots=True)
class Faulty:
    """What nsqds have done whose calls failed.

    Attributes:
        lives: how many of them there were.
        refused_starts: how many of them refused to start, with a reason.
        acknowledged: messages acknowledged while no sync succeeded.
        damaged: messages reported as lost to damage.
    """

    lives: int = 0
    refused_starts: int = 0
    acknowledged: int = 0
    damaged: int = 0


@dataclass(slots=True)
class Chain:
    """One data path, and an nsqd that is disturbed at each point of a series, and dies."""

    workload: Workload
    points: Sequence[Point]
    before: Mapping[str, int]
    faulty: Faulty
    reached: Counter[str] = field(default_factory=Counter)
    recovery_seconds: float = 0.0

    async def run(self) -> Verdict:
        """Crash at each point, drain, and check."""
        workload, server = self.workload, self.workload.server
        await asyncio.to_thread(workload.make_topic)
        server.kill9()
        async with workload.running(Operator(server, workload.seed)):
            for point in self.points:
                await self.life(point)
            server.prefix = ()
            began = time.monotonic()
            await asyncio.to_thread(server.start)
            self.recovery_seconds = time.monotonic() - began
            if server.module == NSQD:
                await workload.drained()
            else:
                with suppress(AssertionError):  # a control may never get there
                    await workload.drained(CONTROL_DRAIN_SECONDS)
        return workload.verdict()

    async def life(self, point: Point) -> None:
        """Start nsqd and wait until it dies at this point, or kill it after some faults.

        Raises:
            AssertionError: nsqd ended in another way.
        """
        server = self.workload.server
        server.prefix = point.prefix(self.before)
        begin = len(server.log_text)
        server.launch()
        status = await asyncio.to_thread(self.wait_for_death, server, faulty=point.is_faulty)
        if point.is_faulty and status is None:
            await asyncio.to_thread(self.note_damage)
        server.kill9()
        self.workload.history.kills += 1
        said = server.log_text[begin:]
        if point.is_faulty:
            assert status is None or (status == 1 and "Traceback" not in said), (
                f"nsqd ended with {status} at {point}:\n{said}"
            )
            await self.note_faults(point, is_refused=status is not None)
        elif status is not None:
            self.reached["SIGTERM" if point.effect == "TERM" else point.calls] += 1
            assert status == STATUSES[point.effect], f"nsqd ended with {status} at {point}:\n{said}"

    def wait_for_death(self, server: NsqdServer, *, faulty: bool) -> int | None:
        """Return the exit status; None if nsqd still runs after some seconds of load."""
        process = server.process
        assert process is not None
        before, deadline, loaded = self.answered(), time.monotonic() + UP_SECONDS, False
        while (status := process.poll()) is None and time.monotonic() < deadline:
            if not loaded and self.answered() > before and (not faulty or self.is_up()):
                seconds = FAULTY_SECONDS if faulty else LOAD_SECONDS
                loaded, deadline = True, time.monotonic() + seconds
            time.sleep(POLL_SECONDS)
        return status

    def is_up(self) -> bool:
        """Return whether nsqd answers /ping, with any status: its disk may be failing."""
        with suppress(OSError, HTTPException):
            return self.workload.server.request("GET", "/ping")[0] > 0
        return False

    def note_damage(self) -> None:
        """Add the messages reported as lost to damage; the next life counts from 0 again."""
        stats = self.workload.server.get_json(f"/stats?format=json&topic={TOPIC}")
        self.faulty.damaged += sum(
            int(topic["damaged_messages"]) for topic in stats["topics"] or ()
        )

    async def note_faults(self, point: Point, *, is_refused: bool) -> None:
        """Count a life with failing calls, once the publishers have read all its replies."""
        self.faulty.lives += 1
        self.faulty.refused_starts += is_refused
        await asyncio.to_thread(wait_until, self.workload.is_unheard, "noticed by the publishers")
        if point.is_dark:
            life = self.workload.history.kills - 1
            self.faulty.acknowledged += sum(
                command.count
                for command in self.workload.commands()
                if command.outcome is Answer.OK and command.after_kill == life
            )

    def answered(self) -> int:
        """Return the number of publishing commands that have an outcome."""
        return sum(map(len, self.workload.history.publishers.values()))


@dataclass(slots=True)
class Campaign:
    """Chains, CHAINS_AT_ONCE of them in parallel, and their total results."""

    seed: int
    folder: Path
    before: Mapping[str, int]
    module: str = NSQD
    verdicts: list[Verdict] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    faulty: Faulty = field(default_factory=Faulty)
    slowest: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether no chain has a violation; with failing calls, only reported damage may lose."""
        if not self.faulty.lives:
            return all(verdict.holds for verdict in self.verdicts)
        found = summed(self.verdicts)
        wrong = (found.ghosts, found.corrupt, found.split, self.faulty.acknowledged)
        return found.delivered > 0 and not any(wrong) and found.lost <= self.faulty.damaged

    async def run(self, points: Sequence[Point]) -> Verdict:
        """Crash at each of these points, and return the total verdict."""
        left = iter(list(enumerate(chunks(points), len(self.verdicts))))
        await asyncio.gather(*(self.work(left) for _ in range(CHAINS_AT_ONCE)))
        return summed(self.verdicts)

    async def run_until(self, count: int, chance: random.Random) -> Verdict:
        """Crash at `count` points; points that are not reached are replaced by early ones."""
        verdict = await self.run(points(count, chance))
        for _ in range(ROUNDS_MAX):
            missing = count - self.reached.total()
            if missing > 0:
                verdict = await self.run([early_point(chance) for _ in range(missing)])
        return verdict

    async def work(self, left: Iterator[tuple[int, Sequence[Point]]]) -> None:
        for number, some in left:
            await self.chain(number, some)

    async def chain(self, number: int, some: Sequence[Point]) -> None:
        """Run one chain and record its results."""
        seed = self.seed + number
        folder = self.folder / f"{self.module} {number}"
        folder.mkdir(parents=True)
        server = await asyncio.to_thread(started, folder, self.module, FLAGS)
        with server:
            chain = Chain(Workload(server, seed, late=True), some, self.before, self.faulty)
            verdict = await chain.run()
        self.verdicts.append(verdict)
        self.reached += chain.reached
        self.slowest = max(self.slowest, chain.recovery_seconds)
        progress(f"{self.module}: {self.reached.total()} crash points, {self.faulty.lives} faulty")
        if not self.holds and self.module == NSQD:
            print(f"\nchain {number}, {some}: {verdict.line()}")
            print("\n".join(islice(lost_commands(chain.workload.history), SHOWN_MAX)))


def chunks(whole: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Yield the points of each chain."""
    for first in range(0, len(whole), CHAIN_POINTS):
        yield whole[first : first + CHAIN_POINTS]


def summed(verdicts: Sequence[Verdict]) -> Verdict:
    """Add up verdicts of several runs, including their published messages."""
    return replace(
        total(verdicts),
        attempted=sum(verdict.attempted for verdict in verdicts),
        acknowledged=sum(verdict.acknowledged for verdict in verdicts),
    )


def calls_before_data(scratch: Path) -> Counter[str]:
    """Count the calls that nsqd makes before it opens its first data file."""
    record, folder = scratch / "calls", scratch / "counted"
    folder.mkdir()
    prefix = (*strace.FAST, "-o", str(record), "-e", "trace=openat,pread64")
    with started(folder, prefix=prefix) as server:
        server.terminate()
    lines = record.read_text(errors="replace").splitlines()
    python = takewhile(lambda line: not IN_DATA.search(line), lines)
    return Counter(call[1] for line in python if (call := CALL.search(line)))


def prove(plan: Plan) -> Outcome:
    """Run the crash points, the failing calls and the controls."""
    if needs := strace.missing():
        return skipped(PROMISES, needs)
    with data_folder(plan.keep) as folder:
        before = calls_before_data(folder)
        crashes = Campaign(plan.seed, folder / "crashes", before)
        faults = Campaign(plan.seed, folder / "faults", before)
        chance = random.Random(f"{plan.seed} points")
        verdict = asyncio.run(crashes.run_until(plan.count, chance))
        faulty = asyncio.run(faults.run(faulty_points(max(1, plan.count // FAULTY_SHARE), chance)))
        held, control = crashes.holds and faults.holds, ""
        if plan.control:
            failed, control = controls(plan.seed, folder / "controls", before)
            held = held and failed
    return Outcome(PROMISES, figures(crashes, verdict, faults.faulty, faulty), held, control)


def figures(campaign: Campaign, verdict: Verdict, faults: Faulty, faulty: Verdict) -> str:
    """Return the results in one line."""
    calls = ", ".join(f"{call} {count}" for call, count in campaign.reached.most_common())
    return (
        f"crash points tried: {campaign.reached.total()} ({calls}) · "
        f"acknowledged {verdict.acknowledged:,} · acknowledged lost: {verdict.lost:,} · "
        f"redelivered after answered FIN: {verdict.returned:,} · "
        f"split MPUBs {verdict.split:,} · ghosts {verdict.ghosts:,} · "
        f"corrupt {verdict.corrupt:,} · "
        f"duplicates {verdict.duplicates:,} (bound {verdict.duplicates_bound:,}) · "
        f"slowest recovery {campaign.slowest * 1000:,.0f} ms · "
        f"lives with failing calls {faults.lives:,} (starts refused with a reason "
        f"{faults.refused_starts:,}) · acknowledged {faulty.acknowledged:,} · acknowledged lost "
        f"{faulty.lost:,} (reported as damaged {faults.damaged:,}) · split MPUBs {faulty.split:,} "
        f"· ghosts {faulty.ghosts:,} · corrupt {faulty.corrupt:,} · "
        f"OK sent while every sync failed {faults.acknowledged:,}"
    )


def controls(seed: int, folder: Path, before: Mapping[str, int]) -> tuple[bool, str]:
    """Return whether all controls found violations, and the controls' results in words."""
    deep = [Point(*point) for point in CONTROL_POINTS]
    late_commit = asyncio.run(Campaign(seed, folder, before, "late_commit").run(deep))
    late_finish = asyncio.run(Campaign(seed, folder, before, "late_finish").run(deep))
    trusting = Campaign(seed, folder, before, "ignored_sync_error")
    asyncio.run(trusting.run([DARK]))
    text = (
        f"with the write after the OK: lost {late_commit.lost:,} · "
        f"with finishes written late: redelivered {late_finish.returned:,} · "
        f"with failed syncs ignored: OK sent while every sync failed "
        f"{trusting.faulty.acknowledged:,}"
    )
    found = (late_commit.lost, late_finish.returned, trusting.faulty.acknowledged)
    return all(found), text


if __name__ == "__main__":
    sys.exit(outcome.run("crash", prove, count=510, of="crash points"))
