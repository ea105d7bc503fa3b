"""kill -9 at the N-th write, sync, rename ... of nsqd, for N = 1, 2, 3 and so on: `make crash`.

strace kills nsqd at the entrance of a system call, so that everything before it has happened and
nothing after it: with all N of all calls that change the disk or send an answer, each state that a
crash can leave behind is met. Nothing is left to luck but what the clients do meanwhile.

Each nsqd is started on what the crash before it has left, so that recoveries are crashed as well,
again and again: a chain of points on one data path. All the while publishers (PUB and MPUB) and
consumers work on the channel `live`, and an operator makes and deletes topics. At a chain's end
nsqd is started in peace, the channel `late` is read for the first time, and the checker counts.

The controls are chains of an nsqd that writes behind its OK, or writes late what is finished.
"""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from tests.support import strace
from tests.support.servers import NsqdServer

from proofs import faults, outcome
from proofs.checker import Verdict, check, lost_commands, total
from proofs.daemon_fixture import (
    DRAIN_SECONDS,
    NSQD,
    Crew,
    data_folder,
    is_drained,
    started,
    wait_until,
)
from proofs.history import History
from proofs.kill import FLAGS, LATE_COMMIT, LATE_FINISH
from proofs.operator import Operator
from proofs.outcome import Outcome, Plan, progress, skipped
from proofs.witness import HABITS, READY_COUNTS, Consumer, Publisher

PROMISES = ("P1", "P3", "P9")
TOPIC, LIVE, LATE = "proof", "live", "late"
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
    "unlink": 12,
    "mkdir": 7,
    "rename": 1,
}
"""How many of 520 points fall on which call: about as many as there are in a life of a second."""
CONTROL_POINTS = (("writev", 20), ("pwrite64", 30), ("writev", 40), ("pwrite64", 30))
"""Under full load: there is something to lose."""
CONTROL_DRAIN_SECONDS = 10.0
ROUNDS_MAX = 4
EARLY_CALLS, EARLY_NUMBER_MAX = ("pwrite64", "fdatasync", "writev"), 25
SHOWN_MAX = 20
LOG_SHOWN = 4000


@dataclass(frozen=True, slots=True)
class Point:
    """Where nsqd dies: at the entrance of a call, when some thread makes it for the n-th time."""

    call: str
    number: int

    def prefix(self, opens: int) -> tuple[str, ...]:
        """The tracer; `opens` are files that Python opens for itself before any of the data."""
        ahead = opens if self.call == "openat" else 0
        return strace.inject(self.call, "signal=KILL", str(ahead + self.number))


def points(count: int, chance: random.Random) -> list[Point]:
    """So many points, N = 1, 2, 3 ... of each call by its share, in any order."""
    whole = sum(SHARES.values())
    found = [
        Point(call, number)
        for call, share in SHARES.items()
        for number in range(1, max(1, round(share * count / whole)) + 1)
    ]
    chance.shuffle(found)
    return found[:count]


def early_point(chance: random.Random) -> Point:
    """A point that is soon reached."""
    return Point(chance.choice(EARLY_CALLS), chance.randint(1, EARLY_NUMBER_MAX))


@dataclass(slots=True)
class Chain:
    """One data path, and an nsqd on it that dies at each of some points."""

    seed: int
    points: Sequence[Point]
    opens: int
    server: NsqdServer
    history: History = field(init=False)
    reached: Counter[str] = field(default_factory=Counter)
    recovery_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.history = History(run=self.seed & 0xFFFFFFFF)

    async def run(self) -> Verdict:
        """Die at each point, drain, and check."""
        for path in (f"topic/create?topic={TOPIC}", *map(channel_path, (LIVE, LATE))):
            await asyncio.to_thread(self.server.post, f"/{path}")
        self.server.kill9()
        publishers = [
            Publisher(self.server.tcp, TOPIC, self.history, number) for number in range(len(HABITS))
        ]
        consumers = [self.consumer(LIVE, number) for number in range(len(READY_COUNTS))]
        async with Crew(*publishers, *consumers, Operator(self.server.http, self.seed)):
            for point in self.points:
                await self.life(point)
            for publisher in publishers:
                publisher.stopping = True
            await self.drain()
        return total(check(self.history).values())

    def consumer(self, channel: str, number: int) -> Consumer:
        return Consumer(self.server.tcp, TOPIC, channel, self.history, f"{channel} {number}")

    async def life(self, point: Point) -> None:
        """From a start to the death at this point.

        Raises:
            AssertionError: nsqd ended in another way.
        """
        self.server.prefix = point.prefix(self.opens)
        self.server.launch()
        process = self.server.process
        assert process is not None
        status = await asyncio.to_thread(self.wait_for_death, process)
        self.server.kill9()
        self.history.kills += 1
        if status is not None:
            self.reached[point.call] += 1
            assert status == -signal.SIGKILL, (
                f"nsqd ended with {status} at {point}:\n{self.server.log_text}"
            )

    def wait_for_death(self, process: subprocess.Popen[bytes]) -> int | None:
        """The exit status; None when nsqd has been under load for a while and still lives."""
        before, deadline, loaded = self.answered(), time.monotonic() + UP_SECONDS, False
        while (status := process.poll()) is None and time.monotonic() < deadline:
            if not loaded and self.answered() > before:
                loaded, deadline = True, time.monotonic() + LOAD_SECONDS
            time.sleep(POLL_SECONDS)
        return status

    def answered(self) -> int:
        """How many commands of the publishers have come to an end."""
        return sum(map(len, self.history.publishers.values()))

    async def drain(self) -> None:
        """A start in peace, and both channels to their ends."""
        self.server.prefix = ()
        began = time.monotonic()
        await asyncio.to_thread(self.server.start)
        self.recovery_seconds = time.monotonic() - began
        async with Crew(self.consumer(LATE, 3), self.consumer(LATE, 4)):
            await asyncio.to_thread(self.wait_drained)

    def wait_drained(self) -> None:
        """Until both channels are empty; an nsqd without its guard may never come to that."""
        guarded = self.server.module == NSQD
        seconds = DRAIN_SECONDS if guarded else CONTROL_DRAIN_SECONDS
        with nullcontext() if guarded else suppress(AssertionError):
            wait_until(lambda: is_drained(self.server, TOPIC, (LIVE, LATE)), "drained", seconds)


def channel_path(channel: str) -> str:
    return f"channel/create?topic={TOPIC}&channel={channel}"


@dataclass(slots=True)
class Campaign:
    """Chains, some at once, and the sums of what they came to."""

    seed: int
    folder: Path
    opens: int
    module: str = NSQD
    verdicts: list[Verdict] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0

    async def run(self, points: Sequence[Point]) -> Verdict:
        """Die at each of these points."""
        left = iter(list(enumerate(chunks(points), len(self.verdicts))))
        await asyncio.gather(*(self.work(left) for _ in range(CHAINS_AT_ONCE)))
        return summed(self.verdicts)

    async def run_until(self, count: int, chance: random.Random) -> Verdict:
        """Die at so many points: those that a slow machine does not reach are made up for."""
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
        """One chain, noted."""
        seed = self.seed + number
        folder = self.folder / f"{self.module} {number}"
        folder.mkdir()
        server = await asyncio.to_thread(started, folder, self.module, FLAGS)
        with server:
            chain = Chain(seed, some, self.opens, server)
            verdict = await chain.run()
        self.verdicts.append(verdict)
        self.reached += chain.reached
        self.slowest = max(self.slowest, chain.recovery_seconds)
        progress(f"{self.module}: {self.reached.total()} crash points")
        if not verdict.holds and self.module == NSQD:
            print(f"\nchain {number}, {some}: {verdict.line()}")
            print("\n".join(islice(lost_commands(chain.history), SHOWN_MAX)))


def chunks(whole: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """The points of one chain after the other."""
    for first in range(0, len(whole), CHAIN_POINTS):
        yield whole[first : first + CHAIN_POINTS]


def summed(verdicts: Sequence[Verdict]) -> Verdict:
    """Verdicts of several runs as one: unlike channels of one run, each has published by itself."""
    return replace(
        total(verdicts),
        attempted=sum(verdict.attempted for verdict in verdicts),
        acknowledged=sum(verdict.acknowledged for verdict in verdicts),
    )


def prove(plan: Plan) -> Outcome:
    """The crash points and the controls."""
    if needs := strace.lack():
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
    """The line of the proof."""
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
    """Whether each guard is seen to be needed, and what the proof said without it."""
    late_commit = without_guard(LATE_COMMIT, seed, folder, opens)
    late_finish = without_guard(LATE_FINISH, seed, folder, opens)
    text = (
        f"with the write behind the OK: lost {late_commit.lost:,} · "
        f"with finishes written late: redelivered {late_finish.returned:,}"
    )
    return late_commit.lost > 0 and late_finish.returned > 0, text


def without_guard(module: str, seed: int, folder: Path, opens: int) -> Verdict:
    """What the checker says of an nsqd that this module has spoilt."""
    deep = [Point(*point) for point in CONTROL_POINTS]
    return asyncio.run(Campaign(seed, folder, opens, module).run(deep))


if __name__ == "__main__":
    sys.exit(outcome.run("crash", prove, count=510, of="crash points"))
