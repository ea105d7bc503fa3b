"""SIGTERM to an nsqd under load with a large backlog, repeatedly: `make term`.

Publishers and consumers work on one topic; another topic holds a backlog without
consumers (1 GiB at the full count). Each stop must end the process with status 0 within two
seconds, not counting the time that nsqd waits for a processor because of other programs. After the
last stop everything is drained and checked: no acknowledged message may be lost, no answered FIN
undone, no message redelivered unless it was in flight at a stop, and the backlog must be complete.

Two controls must fail: an nsqd that ends at once, with OKs sent before their writes
(`immediate_stop`), loses messages; one that writes FINs late (`late_finish`) redelivers finished
messages.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.support.v2_client import OK

from proofs import outcome
from proofs.actors import connect
from proofs.checker import Verdict, lost_commands
from proofs.outcome import Outcome, Plan, progress
from proofs.workload import NSQD, Workload, make_topic, started
from sparq.protocol.commands import mpub

PROMISES = ("P15", "P3")
BACKLOG, WAITING = "backlog", "waiting"
LOAD_SECONDS = (0.2, 0.9)
LIMIT_SECONDS = 2.0
STOP_SECONDS_MAX = 60.0
FLAGS = ("--max-bytes-per-file=8388608", "--msg-timeout=60s")
BACKLOG_BYTES_OF_STOP = 52 << 20
"""With this size per stop, 20 stops have a backlog of 1 GiB."""
BODY_BYTES = 1 << 18
BODIES_OF_MPUB = 16
CONTROL_STOPS = 3
SHOWN_MAX = 40


@dataclass
class Proof:
    """One run against one nsqd.

    Attributes:
        backlog: messages that must be waiting at the end as at the beginning.
        seconds: duration of each stop, without the time that nsqd waited for a processor.
        by_the_clock: duration of each stop.
        statuses: exit statuses other than 0.
        kept: messages of the backlog that are left at the end.
    """

    workload: Workload
    chance: random.Random = field(init=False)
    backlog: int = 0
    kept: int = 0
    seconds: list[float] = field(default_factory=list)
    by_the_clock: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = self.workload.server
        self.chance = random.Random(f"{self.workload.seed} stops")

    async def run(self, stops: int, backlog_bytes: int) -> Verdict:
        """Fill the backlog, stop `stops` times, drain, and check."""
        await asyncio.to_thread(self.workload.make_topic)
        await asyncio.to_thread(make_topic, self.server, BACKLOG, (WAITING,))
        await self.fill(backlog_bytes // BODY_BYTES)
        async with self.workload.running():
            for _ in range(stops):
                await asyncio.sleep(self.chance.uniform(*LOAD_SECONDS))
                await asyncio.to_thread(self.stop)
                await asyncio.to_thread(self.server.start)
                progress(f"{len(self.seconds)} stops, the last took {self.seconds[-1]:.2f} s")
            await self.workload.drained()
        self.kept = int((await asyncio.to_thread(self.server.channel, BACKLOG, WAITING))["depth"])
        return self.workload.verdict()

    async def fill(self, count: int) -> None:
        """Publish the backlog."""
        body = self.chance.randbytes(BODY_BYTES)
        connection = await connect(self.server.tcp)
        for first in range(0, count, BODIES_OF_MPUB):
            batch = [body] * min(BODIES_OF_MPUB, count - first)
            await connection.send_all(mpub(BACKLOG, batch))
            assert await connection.frames() == [OK]
        connection.abort()
        self.backlog = count

    def stop(self) -> None:
        """Send SIGTERM, and measure the time until the process ends."""
        process = self.server.process
        assert process is not None
        began, idle = time.monotonic(), seconds_ready_to_run(process.pid)
        waiting, own = 0.0, seconds_ready_to_run(threading.get_native_id())
        process.send_signal(signal.SIGTERM)
        while process.poll() is None and time.monotonic() - began < STOP_SECONDS_MAX:
            waiting = max(waiting, seconds_ready_to_run(process.pid) - idle)
            own = seconds_ready_to_run(threading.get_native_id())
            time.sleep(0.005)
        took = time.monotonic() - began
        # The process may have ended while this thread waited for a processor itself.
        waiting += seconds_ready_to_run(threading.get_native_id()) - own
        self.by_the_clock.append(took)
        self.seconds.append(took - waiting)
        status = self.server.terminate()
        self.workload.history.kills += 1
        if status:
            self.statuses.append(status)


def seconds_ready_to_run(thread: int) -> float:
    """Return the seconds that a thread was ready to run but had to wait; a pid: its main thread.

    Return 0 if the kernel does not count that: then the stop's full duration counts.
    """
    try:
        _, delayed_ns, _ = Path(f"/proc/{thread}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(delayed_ns) / 1e9


def attempt(
    seed: int, stops: int, backlog_bytes: int = 0, module: str = NSQD
) -> tuple[Verdict, Proof]:
    """Do one run in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="sparq-term-") as folder,
        started(Path(folder), module, FLAGS) as server,
    ):
        proof = Proof(Workload(server, seed, late=True))
        return asyncio.run(proof.run(stops, backlog_bytes)), proof


def prove(plan: Plan) -> Outcome:
    """Run the proof and its controls."""
    verdict, proof = attempt(plan.seed, plan.count, plan.count * BACKLOG_BYTES_OF_STOP)
    for line in islice(lost_commands(proof.workload.history), SHOWN_MAX):
        print(f"  lost on {line}")
    slowest = max(proof.seconds)
    figures = (
        f"stops {len(proof.seconds):,} · backlog {proof.backlog * BODY_BYTES / 2**30:.2f} GiB, "
        f"kept {proof.kept:,} of {proof.backlog:,} messages · {verdict.line()} · "
        f"exit statuses other than 0: {len(proof.statuses):,} · "
        f"slowest {slowest:.2f} s (bound {LIMIT_SECONDS:g} s), "
        f"by the clock of a shared machine {max(proof.by_the_clock):.2f} s"
    )
    held = verdict.holds and not proof.statuses and proof.kept == proof.backlog
    held = held and slowest <= LIMIT_SECONDS
    control = ""
    if plan.control:
        immediate, _ = attempt(plan.seed, CONTROL_STOPS, module="immediate_stop")
        late, _ = attempt(plan.seed, CONTROL_STOPS, module="late_finish")
        control = (
            f"ended at once, writes after the OK: lost {immediate.lost:,} · "
            f"finishes written late: returned {late.returned:,}"
        )
        held = held and immediate.lost > 0 and late.returned > 0
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("term", prove, count=20, of="stops"))
