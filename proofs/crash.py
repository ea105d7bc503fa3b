"""Kills nsqd at its N-th write, sync, rename ..., for N = 1, 2, 3 and so on: `make crash`.

strace kills nsqd when it enters a system call: everything before the call has happened, and nothing
after it. All N of all calls that change the disk or send a reply together cover every state that a
crash can leave on disk. Only the clients' timing is random.

A chain is a series of crash points on one data path: each nsqd starts on the files that the crash
before it has left, so recoveries crash as well. Publishers (PUB and MPUB) and consumers work on the
channel `live` all the time, and an operator creates and deletes topics. At the end of a chain, nsqd
starts without a crash point, the channel `late` is read for the first time, and the checker counts.

The controls are chains of an nsqd that writes after its OK (`late_commit`), or that writes finished
messages late (`late_finish`).
"""

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from tests.support import strace
from tests.support.servers import NsqdServer

from proofs import faults, outcome
from proofs.checker import Verdict, lost_commands, total
from proofs.operator import Operator
from proofs.outcome import Outcome, Plan, progress, skipped
from proofs.workload import NSQD, Workload, data_folder, started

PROMISES = ("P1", "P3", "P9")
FLAGS = ("--max-bytes-per-file=1048576", "--msg-timeout=60s")
CHAIN_POINTS = 13
CHAINS_AT_ONCE = 2
LOAD_SECONDS = 5.0
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


@dataclass(frozen=True, slots=True)
class Point:
    """A crash point: nsqd dies when one of its threads enters a call for the N-th time."""

    call: str
    number: int

    def prefix(self, opens: int) -> tuple[str, ...]:
        """Return the strace command; `opens`: number of files opened before the first data file."""
        ahead = opens if self.call == "openat" else 0
        return strace.inject(self.call, "signal=KILL", str(ahead + self.number))


def points(count: int, chance: random.Random) -> list[Point]:
    """Return `count` points, N = 1, 2, 3 ... of each call by its share, in random order."""
    whole = sum(SHARES.values())
    found = [
        Point(call, number)
        for call, share in SHARES.items()
        for number in range(1, max(1, round(share * count / whole)) + 1)
    ]
    chance.shuffle(found)
    return found[:count]


def early_point(chance: random.Random) -> Point:
    """Return a point that nsqd reaches soon."""
    return Point(chance.choice(EARLY_CALLS), chance.randint(1, EARLY_NUMBER_MAX))


@dataclass(slots=True)
class Chain:
    """One data path, and an nsqd that dies at each point of a series."""

    workload: Workload
    points: Sequence[Point]
    opens: int
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
        """Start nsqd and wait until it dies at this point.

        Raises:
            AssertionError: nsqd ended otherwise than by SIGKILL.
        """
        server = self.workload.server
        server.prefix = point.prefix(self.opens)
        server.launch()
        status = await asyncio.to_thread(self.wait_for_death, server)
        server.kill9()
        self.workload.history.kills += 1
        if status is not None:
            self.reached[point.call] += 1
            assert status == -signal.SIGKILL, (
                f"nsqd ended with {status} at {point}:\n{server.log_text}"
            )

    def wait_for_death(self, server: NsqdServer) -> int | None:
        """Return the exit status; None if nsqd still runs after LOAD_SECONDS of load."""
        process = server.process
        assert process is not None
        before, deadline, loaded = self.answered(), time.monotonic() + UP_SECONDS, False
        while (status := process.poll()) is None and time.monotonic() < deadline:
            if not loaded and self.answered() > before:
                loaded, deadline = True, time.monotonic() + LOAD_SECONDS
            time.sleep(POLL_SECONDS)
        return status

    def answered(self) -> int:
        """Return the number of publishing commands that have an outcome."""
        return sum(map(len, self.workload.history.publishers.values()))


@dataclass(slots=True)
class Campaign:
    """Chains, CHAINS_AT_ONCE of them in parallel, and their total results."""

    seed: int
    folder: Path
    opens: int
    module: str = NSQD
    verdicts: list[Verdict] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

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
        folder.mkdir()
        server = await asyncio.to_thread(started, folder, self.module, FLAGS)
        with server:
            chain = Chain(Workload(server, seed, late=True), some, self.opens)
            verdict = await chain.run()
        self.verdicts.append(verdict)
        self.reached += chain.reached
        self.slowest = max(self.slowest, chain.recovery_seconds)
        progress(f"{self.module}: {self.reached.total()} crash points")
        if not verdict.holds and self.module == NSQD:
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


def prove(plan: Plan) -> Outcome:
    """Run the crash points and the controls."""
    if needs := strace.missing():
        return skipped(PROMISES, needs)
    with data_folder(plan.keep) as folder:
        opens = faults.before_data(folder)["openat"]
        campaign = Campaign(plan.seed, folder, opens)
        chance = random.Random(f"{plan.seed} points")
        verdict = asyncio.run(campaign.run_until(plan.count, chance))
        held = all(each.holds for each in campaign.verdicts)
        control = ""
        if plan.control:
            failed, control = controls(plan.seed, folder, opens)
            held = held and failed
    return Outcome(PROMISES, figures(campaign, verdict), held, control)


def figures(campaign: Campaign, verdict: Verdict) -> str:
    """Return the results in one line."""
    calls = ", ".join(f"{call} {count}" for call, count in campaign.reached.most_common())
    return (
        f"crash points tried: {campaign.reached.total()} ({calls}) · "
        f"acknowledged {verdict.acknowledged:,} · acknowledged lost: {verdict.lost:,} · "
        f"redelivered after answered FIN: {verdict.returned:,} · "
        f"split MPUBs {verdict.split:,} · ghosts {verdict.ghosts:,} · "
        f"corrupt {verdict.corrupt:,} · "
        f"duplicates {verdict.duplicates:,} (bound {verdict.duplicates_bound:,}) · "
        f"slowest recovery {campaign.slowest * 1000:,.0f} ms"
    )


def controls(seed: int, folder: Path, opens: int) -> tuple[bool, str]:
    """Return whether both controls found violations, and the controls' results in words."""
    late_commit = without_guard("late_commit", seed, folder, opens)
    late_finish = without_guard("late_finish", seed, folder, opens)
    text = (
        f"with the write after the OK: lost {late_commit.lost:,} · "
        f"with finishes written late: redelivered {late_finish.returned:,}"
    )
    return late_commit.lost > 0 and late_finish.returned > 0, text


def without_guard(module: str, seed: int, folder: Path, opens: int) -> Verdict:
    """Return the verdict on the nsqd of this control."""
    deep = [Point(*point) for point in CONTROL_POINTS]
    return asyncio.run(Campaign(seed, folder, opens, module).run(deep))


if __name__ == "__main__":
    sys.exit(outcome.run("crash", prove, count=510, of="crash points"))
