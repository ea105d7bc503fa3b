"""SIGTERM to an nsqd under load with a large backlog, repeatedly: `make term`.

Publishers and consumers work on one topic, as in kill.py; another topic holds a backlog without
consumers (1 GiB at the full count). Each stop must end the process with status 0 within two
seconds, not counting the time that nsqd waits for a processor because of other programs. After the
last stop everything is drained and checked: no acknowledged message may be lost, no answered FIN
undone, no message redelivered unless it was in flight at a stop, and the backlog must be complete.

Two controls must fail: an nsqd that ends at once, with OKs sent before their writes
(controls/immediate_stop.py), loses messages; one that writes FINs late (controls/late_finish.py)
redelivers finished messages.
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

from tests.support.servers import NsqdServer
from tests.support.v2_client import OK

from proofs import outcome
from proofs.actors import HABITS, READY_COUNTS, Consumer, Publisher, connect
from proofs.checker import Verdict, check, lost_commands, total
from proofs.daemon_fixture import NSQD, RunningActors, is_drained, started, wait_until
from proofs.history import History
from proofs.outcome import Outcome, Plan, progress
from sparq.protocol.commands import mpub

PROMISES = ("P15", "P3")
TOPIC, BACKLOG = "proof", "backlog"
LIVE, LATE, WAITING = "live", "late", "waiting"
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
IMMEDIATE_STOP, LATE_FINISH = "proofs.controls.immediate_stop", "proofs.controls.late_finish"


@dataclass(slots=True)
class Proof:
    """One run against one nsqd.

    Attributes:
        backlog: messages that must be waiting at the end as at the beginning.
        seconds: duration of each stop, without the time that nsqd waited for a processor.
        by_the_clock: duration of each stop.
        statuses: exit statuses other than 0.
        kept: messages of the backlog that are left at the end.
    """

    seed: int
    server: NsqdServer
    history: History = field(init=False)
    chance: random.Random = field(init=False)
    backlog: int = 0
    kept: int = 0
    seconds: list[float] = field(default_factory=list)
    by_the_clock: list[float] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = History(run=self.seed & 0xFFFFFFFF)
        self.chance = random.Random(f"{self.seed} stops")

    async def run(self, stops: int, backlog_bytes: int) -> Verdict:
        """Fill the backlog, stop `stops` times, drain, and check."""
        await asyncio.to_thread(self.prepare)
        await self.fill(backlog_bytes // BODY_BYTES)
        consumers = [self.consumer(LIVE, number) for number in range(len(READY_COUNTS))]
        publishers = [
            Publisher(self.server.tcp, TOPIC, self.history, number) for number in range(len(HABITS))
        ]
        async with RunningActors(*publishers, *consumers):
            for _ in range(stops):
                await asyncio.sleep(self.chance.uniform(*LOAD_SECONDS))
                await asyncio.to_thread(self.stop)
                await asyncio.to_thread(self.server.start)
                progress(f"{len(self.seconds)} stops, the last took {self.seconds[-1]:.2f} s")
            for publisher in publishers:
                publisher.stopping = True
            await self.drain()
        self.kept = await asyncio.to_thread(self.waiting)
        return total(check(self.history).values())

    def prepare(self) -> None:
        """Create the topics and channels."""
        for topic, channels in {TOPIC: (LIVE, LATE), BACKLOG: (WAITING,)}.items():
            self.server.post(f"/topic/create?topic={topic}")
            for channel in channels:
                self.server.post(f"/channel/create?topic={topic}&channel={channel}")

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

    def consumer(self, channel: str, number: int) -> Consumer:
        return Consumer(self.server.tcp, TOPIC, channel, self.history, f"{channel} {number}")

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
        self.history.kills += 1
        if status:
            self.statuses.append(status)

    async def drain(self) -> None:
        """Consume both channels to their ends."""
        async with RunningActors(self.consumer(LATE, 3), self.consumer(LATE, 4)):
            await asyncio.to_thread(
                wait_until, lambda: is_drained(self.server, TOPIC, (LIVE, LATE)), "drained"
            )

    def waiting(self) -> int:
        """Return the number of messages left in the backlog."""
        return int(self.server.channel(BACKLOG, WAITING)["depth"])


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
        proof = Proof(seed, server)
        return asyncio.run(proof.run(stops, backlog_bytes)), proof


def prove(plan: Plan) -> Outcome:
    """Run the proof and its controls."""
    verdict, proof = attempt(plan.seed, plan.count, plan.count * BACKLOG_BYTES_OF_STOP)
    for line in islice(lost_commands(proof.history), SHOWN_MAX):
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
        immediate, _ = attempt(plan.seed, CONTROL_STOPS, module=IMMEDIATE_STOP)
        late, _ = attempt(plan.seed, CONTROL_STOPS, module=LATE_FINISH)
        control = (
            f"ended at once, writes after the OK: lost {immediate.lost:,} · "
            f"finishes written late: returned {late.returned:,}"
        )
        held = held and immediate.lost > 0 and late.returned > 0
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("term", prove, count=20, of="stops"))
