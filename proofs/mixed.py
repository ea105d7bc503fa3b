"""Mixed load with every feature at once, for an hour: `make mixed`.

Two nsqds get the same mix: topics with 200 names that are continuously created, published to, read,
paused, emptied, moved by `seek` and deleted; every command of the protocol and of the HTTP API;
names that end in #ephemeral; consumers that hang, leave with messages in flight, and reconnect. One
nsqd keeps running, to show whether its memory or files grow. The other is killed (kill -9) or
stopped (SIGTERM) at random, and started again. Each nsqd also has one topic that is never deleted,
emptied or moved, with a writer, two channels, and readers that work until the end.

1. If a topic was not deleted, emptied or moved, each of its acknowledged messages is delivered.
   Each delivered message was published since the topic was last created, and is intact. No message
   is delivered again after a confirmed FIN. Of an MPUB all messages are delivered, or none. A
   deleted topic stays deleted.
2. After the warm-up memory, open files, threads and files in the data path stay flat: in the nsqd
   that keeps running over its whole life, in the other at the same age of each of its processes.
   mixed_samples.py has the bounds and the reasons for them.
3. SIGTERM always ends nsqd with status 0. No response is an internal error, and nsqd's log has no
   traceback.

`N=` is minutes. The load is constant and moderate: a fraction of one core. One run has both
controls: an nsqd that leaks memory and open files of each deleted topic (controls/mixed_leaking.py)
must exceed both bounds, and one that writes after its OK (controls/late_commit.py) must lose
messages.
"""

import asyncio
import logging
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from tests.support.servers import NsqdServer
from tests.support.v2_client import AsyncV2Client

from proofs import mixed_noise, outcome
from proofs.checker import Verdict, check, lost_commands
from proofs.daemon_fixture import NSQD, RunningActors, data_folder, started
from proofs.history import History
from proofs.mixed_actors import Place, Reader, Writer, ask, post_until_answered
from proofs.mixed_lives import Life
from proofs.mixed_samples import Growth, Watch
from proofs.outcome import Outcome, Plan, progress

NAMES, NAMES_MIN, SECONDS_A_NAME = 200, 8, 4
"""A short run has fewer names, so that its warm-up uses each name several times."""
WORKERS = 4
REST_SECONDS = (0.1, 0.6)
KEPT, KEPT_CHANNELS = "kept", ("one", "two")
KEPT_PAUSE_SECONDS = 0.1
SAMPLE_SECONDS, SAMPLES_MIN = 2.0, 60
UP_SECONDS, UP_SHARE = (5.0, 40.0), 0.15
DOWN_SECONDS = (0.0, 1.0)
STOPPED_SHARE = 0.4
AGES = (2.0, 12.0)
"""Range of process ages, in seconds, in which samples of successive processes are compared."""
FLAGS = (
    "--max-bytes-per-file=1048576",
    "--msg-timeout=4s",
    "--mem-queue-size=1000",
    "--log-level=warn",
)
PATIENCE_SECONDS, CONTROL_PATIENCE_SECONDS = 90.0, 8.0
"""Maximum wait for a message. The first is far more than a message timeout, a restart of nsqd and a
busy machine take together. A control, in which messages do get lost, needs less."""
CONTROL_SECONDS = 45.0
MINUTE_SECONDS = 60.0
GRACE_SECONDS = 3 * PATIENCE_SECONDS
SHOWN_MAX = 40
LEAKING, LATE_COMMIT = "proofs.controls.mixed_leaking", "proofs.controls.late_commit"
PROMISES = ("P1", "P3", "P9", "P11")


class Steady(Writer):
    """Publishes to the topic that stays: one command at a time, with a pause after each."""

    async def work(self, connection: AsyncV2Client) -> None:
        while not self.stopping:
            await connection.send_all(self.command())
            while self.unanswered:
                for kind, data in await connection.frames():
                    self.answered(kind, data)
            await asyncio.sleep(KEPT_PAUSE_SECONDS)


@dataclass(slots=True)
class Findings:
    """Results of one nsqd.

    Attributes:
        lives: number of lives of topics, see mixed_lives.py.
        counts: totals of all topics: acknowledged, delivered, and those that must be 0.
        deaths: numbers of kills, of stops, and of stops with a status other than 0.
        present_after_deletion: deleted topics that existed again at the end.
        lost: descriptions of lost and wrong messages.
        growths: growth of memory, open files, threads and data files.
    """

    lives: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    present_after_deletion: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)

    WRONG = ("lost", "ghosts", "corrupt", "returned", "refused yet delivered", "split MPUBs")

    @property
    def is_right(self) -> bool:
        """Whether there are no violations: all counts that must be 0 are 0."""
        wrong = [self.counts[name] for name in self.WRONG]
        return (
            self.counts["delivered"] > 0
            and not any((*wrong, self.deaths["bad"], self.counts["internal errors"]))
            and not self.present_after_deletion
        )

    @property
    def is_flat(self) -> bool:
        """Whether there are samples, and none of their figures grew beyond its bound."""
        return bool(self.growths) and all(growth.is_flat for growth in self.growths)

    def take(self, verdict: Verdict, *, may_lose: bool, may_return: bool) -> None:
        """Add a channel's verdict, without the losses and returns that are allowed there."""
        self.counts["acknowledged"] += verdict.acknowledged
        self.counts["delivered"] += verdict.delivered
        self.counts["lost"] += 0 if may_lose else verdict.lost
        self.counts["split MPUBs"] += 0 if may_lose else verdict.split
        self.counts["returned"] += 0 if may_return else verdict.returned
        self.counts["ghosts"] += verdict.ghosts
        self.counts["corrupt"] += verdict.corrupt
        self.counts["refused yet delivered"] += verdict.refused_yet_delivered

    def line(self) -> str:
        """The figures for the report."""
        figures = ("acknowledged", "delivered", *self.WRONG, "internal errors")
        deaths = f"kills {self.deaths['kill']:,}, stops {self.deaths['stop']:,} · "
        bad = f"stops with a status {self.deaths['bad']:,} · " if self.deaths["bad"] else ""
        return (
            f"{deaths if self.deaths else 'left alone · '}{bad}topics {self.lives:,} · "
            + " · ".join(f"{name} {self.counts[name]:,}" for name in figures)
            + f" · present after deletion {len(self.present_after_deletion):,} · "
            + " · ".join(growth.line() for growth in self.growths)
        )


class MixedRun:
    """One nsqd with all of its actors."""

    def __init__(self, server: NsqdServer, seed: int, patience: float, *, killed: bool) -> None:
        self.server, self.killed, self.seed = server, killed, f"{seed} {killed}"
        self.place = Place(server.tcp, server.http, patience)
        self.watch = Watch.of(server)
        self.found = Findings()
        self.ending = asyncio.Event()
        self.free: list[str] = []
        self.gone: set[str] = set()
        self.number = (seed & 0x3FF) << 22 | killed << 21
        self.history = History(run=self.number, delays=True)

    async def run(self, seconds: float) -> Findings:
        """Run all actors for `seconds`, then drain and collect the results."""
        count = min(NAMES, max(NAMES_MIN, int(seconds / SECONDS_A_NAME)))
        self.free = [f"name.{number}" for number in range(count)]
        await self.make_kept()
        tasks = [asyncio.create_task(self.run_lives(worker)) for worker in range(WORKERS)]
        tasks += [
            asyncio.create_task(noise(self.place, self.chance(noise.__name__), self.ending))
            for noise in (mixed_noise.requests, mixed_noise.clients)
        ]
        tasks.append(
            asyncio.create_task(self.take_sample(min(SAMPLE_SECONDS, seconds / SAMPLES_MIN)))
        )
        if self.killed:
            tasks.append(asyncio.create_task(self.kill_and_stop(seconds)))
        writer, readers = self.make_actors()
        try:
            async with RunningActors(writer, *readers):
                ended, _ = await asyncio.wait(
                    tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
                )
                for task in ended:
                    task.result()
                self.ending.set()
                await asyncio.gather(*tasks)
                await self.drain(writer, readers)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.check_at_the_end(seconds)
        return self.found

    def chance(self, name: object) -> random.Random:
        """A separate random generator for each actor."""
        return random.Random(f"{self.seed} {name}")

    # The topic that stays

    async def make_kept(self) -> None:
        await post_until_answered(self.place, f"/topic/create?topic={KEPT}")
        for channel in KEPT_CHANNELS:
            await post_until_answered(self.place, f"/channel/create?topic={KEPT}&channel={channel}")

    def make_actors(self) -> tuple[Steady, list[Reader]]:
        """Its writer and its readers."""
        readers = [
            Reader(self.place, KEPT, channel, self.history, f"{KEPT} {channel} {copy}")
            for channel in KEPT_CHANNELS
            for copy in range(2)
        ]
        return Steady(self.place, KEPT, self.history, sys.maxsize), readers

    async def drain(self, writer: Steady, readers: list[Reader]) -> None:
        """Stop publishing, and wait until every message is delivered and finished."""
        life = Life(self.place, KEPT, 0, self.chance(KEPT))
        life.settle(KEPT_CHANNELS, self.history)
        writer.stopping = True
        await life.drain(writer, readers)

    # The topics that come and go

    async def run_lives(self, worker: int) -> None:
        """Run one life after another until the end of the run."""
        chance = self.chance(worker)
        while not self.ending.is_set():
            name = self.free.pop(chance.randrange(len(self.free)))
            self.gone.discard(name)
            self.number += 1
            life = Life(self.place, name, self.number, random.Random(f"{self.seed} {self.number}"))
            kills = self.found.deaths["kill"]
            await life.live()
            self.take(life, killed=self.found.deaths["kill"] > kills)
            self.free.append(name)
            await asyncio.sleep(chance.uniform(*REST_SECONDS))

    def take(self, life: Life, *, killed: bool) -> None:
        """Add the results of a life; killed: whether nsqd was killed during it."""
        self.found.lives += 1
        for channel, verdict in life.verdicts.items():
            # FINs of an ephemeral channel are in memory only: a kill loses them.
            forgets = killed and "#" in channel
            may_return = forgets or life.may_return(channel)
            self.found.take(verdict, may_lose=life.may_lose(channel), may_return=may_return)
            if verdict.ghosts or verdict.corrupt or (verdict.returned and not may_return):
                self.found.lost.append(f"{life.describe()} {channel}: {verdict.line()}")
        self.found.lost += life.lost
        if life.is_gone:
            self.gone.add(life.name)
        progress(f"{self.found.lives} topics")

    # Trouble

    async def kill_and_stop(self, seconds: float) -> None:
        """Kill or stop nsqd at random, and start it again."""
        chance = self.chance("trouble")
        longest = min(UP_SECONDS[1], max(2.0, seconds * UP_SHARE))
        while not await self.ends_within(chance.uniform(min(UP_SECONDS[0], longest / 2), longest)):
            if chance.random() < STOPPED_SHARE:
                self.found.deaths["bad"] += await asyncio.to_thread(self.server.terminate) != 0
                self.found.deaths["stop"] += 1
            else:
                await asyncio.to_thread(self.server.kill9)
                self.found.deaths["kill"] += 1
            await asyncio.sleep(chance.uniform(*DOWN_SECONDS))
            self.watch.restarted()
            await asyncio.to_thread(self.server.start)

    async def ends_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ending.wait()
        return self.ending.is_set()

    async def take_sample(self, every: float) -> None:
        """Take a sample every `every` seconds."""
        while not await self.ends_within(every):
            await asyncio.to_thread(self.watch.take_sample)

    # The end

    async def check_at_the_end(self, seconds: float) -> None:
        """Check the topic that stays, the deleted names and the samples; then stop nsqd."""
        for verdict in check(self.history).values():
            self.found.take(verdict, may_lose=False, may_return=False)
        self.found.lost += [f"{KEPT}: {line}" for line in lost_commands(self.history)]
        internal = [count for answer, count in self.place.refusals.items() if ": 5" in answer]
        tracebacks = self.server.log_text.count("Traceback")
        self.found.counts["internal errors"] = sum(internal) + tracebacks
        for name in sorted(self.gone):
            status, answer = await ask(self.place, "GET", f"/stats?format=json&topic={name}")
            if status == 200 and f'"topic_name":"{name}"'.encode() in answer.replace(b" ", b""):
                self.found.present_after_deletion.append(name)
        self.watch.save()
        self.found.growths = self.watch.growth(seconds, AGES if self.killed else None)
        self.found.deaths["bad"] += await asyncio.to_thread(self.server.terminate) != 0


async def run_both(
    servers: tuple[NsqdServer, NsqdServer], seed: int, seconds: float, patience: float
) -> tuple[Findings, Findings]:
    """Run both nsqds at once; returns the results of the steady one and of the killed one."""
    steady, killed = (
        MixedRun(server, seed, patience, killed=bool(place)) for place, server in enumerate(servers)
    )
    async with asyncio.timeout(seconds + GRACE_SECONDS), asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.run(seconds)) for each in (steady, killed)]
    for each in (steady, killed):
        refusals = ", ".join(
            f"{name} {count:,}" for name, count in each.place.refusals.most_common(8)
        )
        print(
            f"  refused {'by the killed one' if each.killed else 'by the other'}: {refusals or '-'}"
        )
    return tasks[0].result(), tasks[1].result()


def attempt(
    seed: int, seconds: float, modules: tuple[str, str] = (NSQD, NSQD), keep: Path | None = None
) -> tuple[Findings, Findings]:
    """One run of both nsqds in a folder of its own."""
    is_proof = modules == (NSQD, NSQD)
    patience = PATIENCE_SECONDS if is_proof else CONTROL_PATIENCE_SECONDS
    with data_folder(keep) as folder:
        places = [folder / "steady", folder / "killed"]
        for place in places:
            place.mkdir()
        begin = partial(started, flags=FLAGS)
        with begin(places[0], modules[0]) as steady, begin(places[1], modules[1]) as killed:
            return asyncio.run(run_both((steady, killed), seed, seconds, patience))


def prove(plan: Plan) -> Outcome:
    """The proof and its controls."""
    began = time.monotonic()
    steady, killed = attempt(plan.seed, plan.count * MINUTE_SECONDS, keep=plan.keep)
    for line in islice((*steady.lost, *killed.lost), SHOWN_MAX):
        print(f"  {line}")
    minutes = (time.monotonic() - began) / MINUTE_SECONDS
    figures = f"minutes {minutes:.0f} · {steady.line()} · the other: {killed.line()}"
    held = all(found.is_right and found.is_flat for found in (steady, killed))
    control = ""
    if plan.control:
        failed, control = controls(plan.seed)
        held = held and failed
    return Outcome(PROMISES, figures, held, control)


def controls(seed: int) -> tuple[bool, str]:
    """Whether the proof notices a leak and late writes, and the text for the report."""
    leaking, late = attempt(seed, CONTROL_SECONDS, (LEAKING, LATE_COMMIT))
    grown = [growth for growth in leaking.growths if not growth.is_flat]
    text = (
        f"with something of each deleted topic kept: {', '.join(g.line() for g in grown) or 'flat'}"
        f" · with the write after the OK: lost {late.counts['lost']:,}"
    )
    return {"memory", "open_files"} <= {g.name for g in grown} and late.counts["lost"] > 0, text


if __name__ == "__main__":
    # Otherwise the clients log hundreds of lost connections.
    for name in ("asyncio", "sparq.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.exit(outcome.run("mixed", prove, count=60, of="minutes"))
