"""Kills nsqd under load with kill -9, many times, and counts lost messages: `make kill`.

Four publishers (PUB and MPUB, one at a time and pipelined) and three consumers (RDY 1, 200, 2500)
work on one topic with two channels. `live` is consumed continuously. `late` is consumed only at
the end of each round, so its messages must survive on disk through every kill of the round. Some
kills hit nsqd while it recovers from the previous kill. Segments are small, so that kills also hit
the creation and deletion of segments.

After the last round everything is drained and the checker counts. Two controls must fail: with
writes after the OK (controls/late_commit.py) messages are lost, with FINs written late
(controls/late_finish.py) finished messages return. Every run prints its seed.
"""

import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.support.servers import NsqdServer

from proofs import outcome
from proofs.actors import HABITS, READY_COUNTS, Consumer, Publisher
from proofs.checker import Verdict, check, lost_commands, total
from proofs.daemon_fixture import NSQD, RunningActors, data_folder, is_drained, started, wait_until
from proofs.history import History
from proofs.outcome import Outcome, Plan, progress

TOPIC = "proof"
LIVE, LATE = "live", "late"
ROUND_KILLS = 10
LOAD_SECONDS = (0.05, 1.2)
KILLED_WHILE_STARTING = 0.15
STARTING_SECONDS = (0.02, 0.6)
FLAGS = ("--max-bytes-per-file=1048576", "--msg-timeout=60s")
CONTROL_KILLS = 5
SHOWN_MAX = 40
LATE_COMMIT, LATE_FINISH = "proofs.controls.late_commit", "proofs.controls.late_finish"
PROMISES = ("P1", "P3", "P9")


@dataclass(slots=True)
class Proof:
    """One run against one nsqd: its random generator, its actors, its history."""

    seed: int
    server: NsqdServer
    history: History = field(init=False)
    chance: random.Random = field(init=False)
    recoveries: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = History(run=self.seed & 0xFFFFFFFF)
        self.chance = random.Random(f"{self.seed} kills")

    async def run(self, kills: int) -> Verdict:
        """Kill nsqd until there were `kills` kills, drain, and check."""
        for channel in (LIVE, LATE):
            await self.post("topic/create", f"topic={TOPIC}")
            await self.post("channel/create", f"topic={TOPIC}&channel={channel}")
        consumers = [self.consumer(LIVE, number) for number in range(len(READY_COUNTS))]
        publishers = [
            Publisher(self.server.tcp, TOPIC, self.history, number) for number in range(len(HABITS))
        ]
        async with RunningActors(*publishers, *consumers):
            while self.history.kills < kills:
                await self.round(min(kills, self.history.kills + ROUND_KILLS))
            for publisher in publishers:
                publisher.stopping = True
            await self.drain()
        return total(check(self.history).values())

    def consumer(self, channel: str, number: int) -> Consumer:
        return Consumer(self.server.tcp, TOPIC, channel, self.history, f"{channel} {number}")

    async def round(self, until: int) -> None:
        """Kill nsqd until `until` kills, then consume `late` until one more kill."""
        while self.history.kills < until:
            await asyncio.sleep(self.chance.uniform(*LOAD_SECONDS))
            self.kill()
            await self.recover()
        async with RunningActors(self.consumer(LATE, 1), self.consumer(LATE, 2)):
            await asyncio.sleep(self.chance.uniform(*LOAD_SECONDS))
            self.kill()
        # The consumers end only after the kill, so that no message has to wait for its timeout.
        await self.recover()

    def kill(self) -> None:
        """Send kill -9 and count it."""
        self.server.kill9()
        self.history.kills += 1

    async def recover(self) -> None:
        """Start nsqd again; sometimes kill it during recovery first."""
        if self.chance.random() < KILLED_WHILE_STARTING:
            await self.kill_while_starting()
        began = time.monotonic()
        await asyncio.to_thread(self.server.start)
        self.recoveries.append(time.monotonic() - began)
        progress(f"{self.history.kills} kills")

    async def kill_while_starting(self) -> None:
        start = asyncio.create_task(asyncio.to_thread(self.server.start))
        await asyncio.sleep(self.chance.uniform(*STARTING_SECONDS))
        if self.server.process is not None:
            self.server.process.kill()
        # Either it had started already, or the kill made its start fail.
        await asyncio.gather(start, return_exceptions=True)
        self.server.kill9()
        self.history.kills += 1

    async def drain(self) -> None:
        """Consume both channels until they are empty."""
        async with RunningActors(self.consumer(LATE, 3), self.consumer(LATE, 4)):
            await asyncio.to_thread(
                wait_until, lambda: is_drained(self.server, TOPIC, (LIVE, LATE)), "drained"
            )

    async def post(self, action: str, query: str) -> None:
        await asyncio.to_thread(self.server.post, f"/{action}?{query}")


def attempt(
    seed: int, kills: int, module: str = NSQD, keep: Path | None = None
) -> tuple[Verdict, Proof]:
    """One run in a folder of its own; returns the checker's verdict and the run."""
    with data_folder(keep) as folder, started(folder, module, FLAGS) as server:
        proof = Proof(seed, server)
        return asyncio.run(proof.run(kills)), proof


def prove(plan: Plan) -> Outcome:
    """The proof and its controls."""
    verdict, proof = attempt(plan.seed, plan.count, keep=plan.keep)
    for line in islice(lost_commands(proof.history), SHOWN_MAX):
        print(f"  lost on {line}")
    slowest = max(proof.recoveries) * 1000
    figures = (
        f"kills {proof.history.kills:,} · {verdict.line()} · slowest recovery {slowest:,.0f} ms"
    )
    held, control = verdict.holds, ""
    if plan.control:
        failed, control = controls(plan.seed)
        held = held and failed
    return Outcome(PROMISES, figures, held, control)


def controls(seed: int) -> tuple[bool, str]:
    """Whether the proof fails in both controls, and the text for the report."""
    late_commit, _ = attempt(seed, CONTROL_KILLS, LATE_COMMIT)
    late_finish, _ = attempt(seed, CONTROL_KILLS, LATE_FINISH)
    text = (
        f"with the write after the OK: lost {late_commit.lost:,} · "
        f"with finishes written late: returned {late_finish.returned:,}"
    )
    return late_commit.lost > 0 and late_finish.returned > 0, text


if __name__ == "__main__":
    sys.exit(outcome.run("kill", prove, count=50, of="kills"))
