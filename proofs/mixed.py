"""Topics that come and go for an hour, while nsqd's memory and files must stay flat: `make mixed`.

Topics with a few dozen names are created, published to, read, paused, emptied, moved by `seek` and
deleted, again and again; consumers leave with messages in flight. Each life of a topic has its own
history and messages.

1. Each delivered message was published since its topic was last created, and is intact.
2. After the warm-up, the first sixth of the run, memory, open files, threads and files in the data
   path stay flat: the medians of the first and of the last third of the rest are compared. Medians,
   because each sample depends on how many topics are open at that moment.
3. Beside them, messages are deferred by DPUB, and once more by REQ, for 10 ms to 3 s. None comes
   before its due time, or more than 100 ms after it, not counting what nsqd and the proof waited
   for a processor (lateness.py).

`N=` is minutes. The load is moderate. There are two controls: with `leaking`, which keeps memory
and open files of each deleted topic, both bounds must be exceeded; with `late_timers`, deferred
messages must be late.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.servers import NsqdServer
from tests.support.v2_client import FRAME_MESSAGE, AsyncV2Client, Message, decode_message

from proofs import outcome
from proofs.actors import Actor, Consumer, Publisher, connect
from proofs.checker import History, check
from proofs.lateness import Lateness
from proofs.outcome import Outcome, Plan, progress
from proofs.workload import NSQD, RunningActors, data_folder, make_topic, started, until
from sparq.protocol.commands import dpub, sub

NAMES, WORKERS = 40, 4
CHANNELS = ("one", "two")
COMMANDS, WORK_SECONDS = 20, (0.1, 1.0)
MINUTE_SECONDS, CONTROL_SECONDS = 60.0, 30.0
SAMPLES = 600
WARM_SHARE = 1 / 6
FLAGS = ("--max-bytes-per-file=1048576", "--msg-timeout=4s", "--log-level=warn")
STEPS = (
    "/topic/pause?topic={topic}",
    "/topic/unpause?topic={topic}",
    "/topic/empty?topic={topic}",
    "/channel/pause?topic={topic}&channel=one",
    "/channel/unpause?topic={topic}&channel=one",
    "/channel/empty?topic={topic}&channel=two",
    "/channel/seek?topic={topic}&channel=one&to=earliest",
    "/channel/seek?topic={topic}&channel=two&to=latest",
    "/channel/delete?topic={topic}&channel=two",
)
MIB: Final = 1 << 20
BOUNDS = {"memory MiB": 12.0, "open files": 60.0, "threads": 2.0, "data files": 60.0}
"""Memory: 4 MiB for the fluctuation of a warm allocator, 8 MiB for an hour: 1,300 bytes for each
topic that is created and deleted. An existing topic has two files, most of them open; one file
leaked per topic adds up to thousands in an hour. Threads start on demand."""
COLD_MIB, COLD_SECONDS = 16.0, 600.0
"""Additional memory that a process may take for caches and arenas in its first ten minutes."""
LATER, DEFERRED, DELAY_MS = "later", 10, (10, 3_000)
LATE_SECONDS_MAX = 0.1
"""Promised by P4."""
PROMISES = ("P11", "P4")


class Deferrer(Actor):
    """Defers each message by DPUB and then by REQ, and records when it comes."""

    def __init__(self, address: str, chance: random.Random) -> None:
        super().__init__(address)
        self.chance = chance
        self.due: dict[bytes, float] = {}
        self.came = self.early = 0
        self.lateness = Lateness()
        self.is_subscribed = False

    async def work(self, connection: AsyncV2Client) -> None:
        await connection.send_all(sub(LATER, CHANNELS[0]) + b"RDY 1000\n")
        self.is_subscribed = True
        while True:
            for kind, data in await connection.frames():
                if kind == FRAME_MESSAGE:
                    await connection.send_all(self.answer(decode_message(data)))

    def answer(self, message: Message) -> bytes:
        """Record whether a message is early; return its REQ at first, its FIN after that."""
        now = asyncio.get_running_loop().time()
        due = self.due.pop(message.body, float("inf"))
        self.came += 1
        self.early += now < due
        if now > due:
            self.lateness.note(due, now)
        if message.attempts > 1:
            return b"FIN %s\n" % message.id
        return b"REQ %s %d\n" % (message.id, self.choose_delay(message.body))

    def choose_delay(self, body: bytes) -> int:
        """Choose a delay in milliseconds, and record the earliest due time."""
        delay_ms = self.chance.randint(*DELAY_MS)
        self.due[body] = asyncio.get_running_loop().time() + delay_ms / 1_000
        return delay_ms

    async def defer(self, count: int) -> None:
        """Publish `count` deferred messages."""
        connection = await connect(self.address)
        for _ in range(count):
            body = self.chance.randbytes(16)
            await connection.send_all(dpub(LATER, self.choose_delay(body), body))
        left = count
        while left:
            left -= len(await connection.frames())
        connection.abort()


class BriefPublisher(Publisher):
    """Publishes a few commands, and stops."""

    def command(self) -> bytes:
        """Return the next command; COMMANDS is the last one's number."""
        self.stopping = len(self.commands) + len(self.unanswered) + 1 >= COMMANDS
        return super().command()


class Sample(NamedTuple):
    """Figures of the process, in the order of BOUNDS, without the test's own log file."""

    at: float
    figures: tuple[float, float, float, float]


@dataclass(slots=True)
class Findings:
    """Results of a run."""

    topics: int = 0
    delivered: int = 0
    strange: int = 0
    deferred: int = 0
    early: int = 0
    latest_net: float = 0.0
    samples: list[Sample] = field(default_factory=list)

    def growth(self, seconds: float) -> dict[str, tuple[float, float, float]]:
        """Return each figure's first and last median, and the bound of their difference."""
        warm = seconds * WARM_SHARE
        third = (seconds - warm) / 3
        early = [s.figures for s in self.samples if warm <= s.at < warm + third]
        late = [s.figures for s in self.samples if s.at >= seconds - third]
        cold = COLD_MIB * max(0.0, 1 - warm / COLD_SECONDS)
        medians = [map(statistics.median, zip(*part, strict=True)) for part in (early, late)]
        return {
            name: (first, last, bound + cold * (name == "memory MiB"))
            for (name, bound), first, last in zip(BOUNDS.items(), *medians, strict=True)
        }


class Churn:
    """One nsqd with topics that come and go."""

    def __init__(self, server: NsqdServer, seed: int) -> None:
        self.server, self.seed = server, seed
        self.found = Findings()
        self.free = [f"name.{number}" for number in range(NAMES)]
        self.deferrer = Deferrer(server.tcp, random.Random(f"{seed} delays"))
        self.began = time.monotonic()

    async def run(self, seconds: float) -> Findings:
        """Run for this many seconds."""
        found, deferrer = self.found, self.deferrer
        await asyncio.to_thread(make_topic, self.server, LATER, CHANNELS[:1])
        watching = asyncio.create_task(deferrer.lateness.watch(self.server.pid))
        async with RunningActors(deferrer):
            await until(lambda: deferrer.is_subscribed, "subscribed")
            async with asyncio.TaskGroup() as group:
                for worker in range(WORKERS):
                    group.create_task(self.live(random.Random(f"{self.seed} {worker}"), seconds))
                group.create_task(self.watch(seconds))
            await until(lambda: not deferrer.due, "come")
        watching.cancel()
        found.latest_net = deferrer.lateness.latest_net()
        found.deferred, found.early = deferrer.came, deferrer.early
        return found

    def is_over(self, seconds: float) -> bool:
        """Return whether the time is over."""
        return time.monotonic() - self.began > seconds

    async def live(self, chance: random.Random, seconds: float) -> None:
        """Create topics, one after another, work on each, and delete it."""
        while not self.is_over(seconds):
            topic = self.free.pop(chance.randrange(len(self.free)))
            history = History(chance.getrandbits(32), delays=True)
            await asyncio.to_thread(make_topic, self.server, topic, CHANNELS)
            number = chance.randrange(4)
            actors: list[Actor] = [BriefPublisher(self.server.tcp, topic, history, number)]
            actors += [
                Consumer(self.server.tcp, topic, channel, history, f"{channel} {copy}")
                for channel in CHANNELS
                for copy in range(2)
            ]
            with suppress(ConnectionError):
                async with RunningActors(*actors):
                    await asyncio.sleep(chance.uniform(*WORK_SECONDS))
                    step = chance.choice(STEPS).format(topic=topic)
                    await asyncio.to_thread(self.server.request, "POST", step)
                    await asyncio.sleep(chance.uniform(*WORK_SECONDS))
            await asyncio.to_thread(self.server.post, f"/topic/delete?topic={topic}")
            for verdict in check(history).values():
                self.found.delivered += verdict.delivered
                self.found.strange += verdict.ghosts + verdict.corrupt
            self.found.topics += 1
            self.free.append(topic)
            progress(f"{self.found.topics} topics")

    async def watch(self, seconds: float) -> None:
        """Take samples, and defer messages."""
        while not self.is_over(seconds):
            await self.deferrer.defer(DEFERRED)
            figures = await asyncio.to_thread(figures_of, self.server)
            self.found.samples.append(Sample(time.monotonic() - self.began, figures))
            await asyncio.sleep(seconds / SAMPLES)


def figures_of(server: NsqdServer) -> tuple[float, float, float, float]:
    """Return resident anonymous memory, open files, threads, and files of the data path."""
    folder = Path(f"/proc/{server.pid}")
    lines = (folder / "status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    files = sum(len(names) for _, _, names in os.walk(server.folder)) - 1
    memory_mib = int(status["RssAnon"].split()[0]) / 1024
    return memory_mib, len(os.listdir(folder / "fd")), int(status["Threads"]), files


def attempt(plan: Plan, seconds: float, module: str = NSQD) -> Findings:
    """Do one run in its own folder."""
    keep = plan.keep if module == NSQD else None
    with data_folder(keep) as folder, started(folder, module, FLAGS) as server:
        return asyncio.run(Churn(server, plan.seed).run(seconds))


def line(growth: dict[str, tuple[float, float, float]]) -> str:
    """Return the growth of each figure."""
    return " · ".join(
        f"{name} {first:,.1f} → {last:,.1f} (bound +{bound:,.1f})"
        + " GROWS" * (last - first > bound)
        for name, (first, last, bound) in growth.items()
    )


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    seconds = plan.count * MINUTE_SECONDS
    found = attempt(plan, seconds)
    said = line(found.growth(seconds))
    figures = (
        f"minutes {plan.count} · topics {found.topics:,} · delivered {found.delivered:,} · "
        f"of an earlier life or corrupt {found.strange:,} · {said} · deferred {found.deferred:,}, "
        f"early {found.early:,}, latest {found.latest_net * 1000:,.0f} ms without waits for a "
        "processor"
    )
    held, control = found.delivered > 0 and not found.strange and "GROWS" not in said, ""
    held = held and found.deferred > 0 and not found.early
    held = held and found.latest_net <= LATE_SECONDS_MAX
    if plan.control:
        late = attempt(plan, CONTROL_SECONDS / 3, "late_timers")
        grown = attempt(plan, CONTROL_SECONDS, "leaking").growth(CONTROL_SECONDS)
        said = line({name: grown[name] for name in ("memory MiB", "open files")})
        control = (
            f"with something of each deleted topic kept: {said}; with late timers: latest "
            f"{late.latest_net * 1000:,.0f} ms"
        )
        held = held and said.count("GROWS") == 2 and late.latest_net > LATE_SECONDS_MAX
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("mixed", prove, count=60, of="minutes"))
