"""Everything at once, for an hour: `make mixed`.

Two nsqds get the same mix: 200 names of topics that are created, written, read, paused, emptied,
moved and deleted all the time; every command of the protocol and of the HTTP API; names that end in
#ephemeral; consumers that hang, leave with messages in flight, and come again. One nsqd is left
alone, so that what grows in it is seen. The other is killed (kill -9) or stopped (SIGTERM) at
random and started again. Beside the names each has a topic that is never touched, read on two
channels by a company that stays.

1. Of a topic that was not deleted, emptied or moved meanwhile every acknowledged message comes.
   What comes was published, in this life of the name, and is whole. Nothing comes again after an
   answered FIN, and of an MPUB all comes or nothing. A topic that was deleted stays so.
2. After the warm-up memory, open files, threads and files in the data path stay flat: in the nsqd
   that is left alone over its whole life, in the other at the same age of each of its processes.
   The bounds, and why, are in mixed_samples.py.
3. SIGTERM ends nsqd with status 0 each time. No request is answered by an internal error, and no
   traceback stands in nsqd's log.

`N=` is minutes; the load is constant and moderate, a fraction of one core. The controls run both at
once: an nsqd that keeps something of each deleted topic (mixed_leaking.py), whose memory and open
files must be seen to grow, and one that writes behind its OK (late_commit.py), which must lose
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
from proofs.daemon_fixture import NSQD, Crew, data_folder, started
from proofs.history import History
from proofs.mixed_actors import Place, Reader, Writer, ask, insist
from proofs.mixed_lives import Life
from proofs.mixed_samples import Growth, Watch
from proofs.outcome import Outcome, Plan, progress

NAMES, NAMES_MIN, SECONDS_A_NAME = 200, 8, 4
"""A run too short for its warm-up to use every name some times has fewer names."""
WORKERS = 4
REST_SECONDS = (0.1, 0.6)
KEPT, KEPT_CHANNELS = "kept", ("one", "two")
KEPT_PAUSE_SECONDS = 0.1
SAMPLE_SECONDS, SAMPLES_MIN = 2.0, 60
UP_SECONDS, UP_SHARE = (5.0, 40.0), 0.15
DOWN_SECONDS = (0.0, 1.0)
STOPPED_SHARE = 0.4
AGES = (2.0, 12.0)
"""Of a process that is to be compared with one before it, in seconds."""
FLAGS = (
    "--max-bytes-per-file=1048576",
    "--msg-timeout=4s",
    "--mem-queue-size=1000",
    "--log-level=warn",
)
PATIENCE_SECONDS, CONTROL_PATIENCE_SECONDS = 90.0, 8.0
"""How long a message is waited for. The first is far more than a message's timeout, a restart of
nsqd and a busy machine take together; in a control, where messages do get lost, less will do."""
CONTROL_SECONDS = 45.0
MINUTE_SECONDS = 60.0
GRACE_SECONDS = 3 * PATIENCE_SECONDS
SHOWN_MAX = 40
LEAKING, LATE_COMMIT = "proofs.controls.mixed_leaking", "proofs.controls.late_commit"
PROMISES = ("P1", "P3", "P9", "P11")


class Steady(Writer):
    """Publishes to the topic that stays, a command at a time, with a pause behind each."""

    async def work(self, connection: AsyncV2Client) -> None:
        while not self.stopping:
            await connection.send_all(self.command())
            while self.unanswered:
                for kind, data in await connection.frames():
                    self.answered(kind, data)
            await asyncio.sleep(KEPT_PAUSE_SECONDS)


@dataclass(slots=True)
class Findings:
    """What one nsqd came to.

    Attributes:
        lives: topics that came and went, or were left behind.
        counts: acknowledged, delivered, and what must be 0, of all topics together.
        deaths: kills, stops, and stops with another status than 0.
        revenants: deleted topics that were there again at the end.
        lost: lost messages, in words.
        growths: of what the process holds.
    """

    lives: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    revenants: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    growths: list[Growth] = field(default_factory=list)

    WRONG = ("lost", "ghosts", "corrupt", "returned", "refused yet delivered", "split MPUBs")

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost, made up, spoilt or brought back."""
        wrong = [self.counts[name] for name in self.WRONG]
        return (
            self.counts["delivered"] > 0
            and not any((*wrong, self.deaths["bad"], self.counts["internal errors"]))
            and not self.revenants
        )

    @property
    def is_flat(self) -> bool:
        """Whether what it holds was seen, and did not grow."""
        return bool(self.growths) and all(growth.is_flat for growth in self.growths)

    def take(self, verdict: Verdict, *, may_lose: bool, may_return: bool) -> None:
        """Add what a channel came to; some of it does not count where topics were emptied."""
        self.counts["acknowledged"] += verdict.acknowledged
        self.counts["delivered"] += verdict.delivered
        self.counts["lost"] += 0 if may_lose else verdict.lost
        self.counts["split MPUBs"] += 0 if may_lose else verdict.split
        self.counts["returned"] += 0 if may_return else verdict.returned
        self.counts["ghosts"] += verdict.ghosts
        self.counts["corrupt"] += verdict.corrupt
        self.counts["refused yet delivered"] += verdict.refused_yet_delivered

    def line(self) -> str:
        """In words."""
        figures = ("acknowledged", "delivered", *self.WRONG, "internal errors")
        deaths = f"kills {self.deaths['kill']:,}, stops {self.deaths['stop']:,} · "
        bad = f"stops with a status {self.deaths['bad']:,} · " if self.deaths["bad"] else ""
        return (
            f"{deaths if self.deaths else 'left alone · '}{bad}topics {self.lives:,} · "
            + " · ".join(f"{name} {self.counts[name]:,}" for name in figures)
            + f" · come back after deletion {len(self.revenants):,} · "
            + " · ".join(growth.line() for growth in self.growths)
        )


class House:
    """One nsqd with all that goes on there."""

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
        """All of it for so long, then the end."""
        count = min(NAMES, max(NAMES_MIN, int(seconds / SECONDS_A_NAME)))
        self.free = [f"name.{number}" for number in range(count)]
        await self.make_kept()
        tasks = [asyncio.create_task(self.live_on(worker)) for worker in range(WORKERS)]
        tasks += [
            asyncio.create_task(noise(self.place, self.chance(noise.__name__), self.ending))
            for noise in (mixed_noise.requests, mixed_noise.clients)
        ]
        tasks.append(asyncio.create_task(self.look(min(SAMPLE_SECONDS, seconds / SAMPLES_MIN))))
        if self.killed:
            tasks.append(asyncio.create_task(self.trouble(seconds)))
        writer, readers = self.company()
        try:
            async with Crew(writer, *readers):
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
        await self.close_books(seconds)
        return self.found

    def chance(self, name: object) -> random.Random:
        """Chances of its own for each who takes some."""
        return random.Random(f"{self.seed} {name}")

    # The topic that stays

    async def make_kept(self) -> None:
        await insist(self.place, f"/topic/create?topic={KEPT}")
        for channel in KEPT_CHANNELS:
            await insist(self.place, f"/channel/create?topic={KEPT}&channel={channel}")

    def company(self) -> tuple[Steady, list[Reader]]:
        """Who works on it."""
        readers = [
            Reader(self.place, KEPT, channel, self.history, f"{KEPT} {channel} {copy}")
            for channel in KEPT_CHANNELS
            for copy in range(2)
        ]
        return Steady(self.place, KEPT, self.history, sys.maxsize), readers

    async def drain(self, writer: Steady, readers: list[Reader]) -> None:
        """Publish no more, and wait until all has come and is finished."""
        life = Life(self.place, KEPT, 0, self.chance(KEPT))
        life.settle(KEPT_CHANNELS, self.history)
        writer.stopping = True
        await life.drain(writer, readers)

    # The topics that come and go

    async def live_on(self, worker: int) -> None:
        """One life after the other, until it is to end."""
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
        """What a life came to; killed: whether nsqd was, meanwhile."""
        self.found.lives += 1
        for channel, verdict in life.verdicts.items():
            # What an ephemeral channel has finished is known in memory only: a kill forgets it.
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

    async def trouble(self, seconds: float) -> None:
        """End it and start it again, by chance."""
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

    async def look(self, every: float) -> None:
        """Take samples."""
        while not await self.ends_within(every):
            await asyncio.to_thread(self.watch.look)

    # The end

    async def close_books(self, seconds: float) -> None:
        """The topic that stays, the names that must be gone, and what was sampled."""
        for verdict in check(self.history).values():
            self.found.take(verdict, may_lose=False, may_return=False)
        self.found.lost += [f"{KEPT}: {line}" for line in lost_commands(self.history)]
        internal = [count for said, count in self.place.refusals.items() if ": 5" in said]
        tracebacks = self.server.log_text.count("Traceback")
        self.found.counts["internal errors"] = sum(internal) + tracebacks
        for name in sorted(self.gone):
            status, answer = await ask(self.place, "GET", f"/stats?format=json&topic={name}")
            if status == 200 and f'"topic_name":"{name}"'.encode() in answer.replace(b" ", b""):
                self.found.revenants.append(name)
        self.watch.save()
        self.found.growths = self.watch.growth(seconds, AGES if self.killed else None)
        self.found.deaths["bad"] += await asyncio.to_thread(self.server.terminate) != 0


async def of_houses(
    servers: tuple[NsqdServer, NsqdServer], seed: int, seconds: float, patience: float
) -> tuple[Findings, Findings]:
    """Both at once: what the one left alone came to, and the one that is killed."""
    steady, killed = (
        House(server, seed, patience, killed=bool(place)) for place, server in enumerate(servers)
    )
    async with asyncio.timeout(seconds + GRACE_SECONDS), asyncio.TaskGroup() as group:
        tasks = [group.create_task(house.run(seconds)) for house in (steady, killed)]
    for house in (steady, killed):
        said = ", ".join(f"{name} {count:,}" for name, count in house.place.refusals.most_common(8))
        print(f"  refused {'by the killed one' if house.killed else 'by the other'}: {said or '-'}")
    return tasks[0].result(), tasks[1].result()


def attempt(
    seed: int, seconds: float, modules: tuple[str, str] = (NSQD, NSQD), keep: Path | None = None
) -> tuple[Findings, Findings]:
    """One run in a folder of its own."""
    is_proof = modules == (NSQD, NSQD)
    patience = PATIENCE_SECONDS if is_proof else CONTROL_PATIENCE_SECONDS
    with data_folder(keep) as folder:
        places = [folder / "steady", folder / "killed"]
        for place in places:
            place.mkdir()
        begin = partial(started, flags=FLAGS)
        with begin(places[0], modules[0]) as steady, begin(places[1], modules[1]) as killed:
            return asyncio.run(of_houses((steady, killed), seed, seconds, patience))


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
    """Whether a leak and a late write are seen, and what the proof said of them."""
    leaking, late = attempt(seed, CONTROL_SECONDS, (LEAKING, LATE_COMMIT))
    grown = [growth for growth in leaking.growths if not growth.is_flat]
    text = (
        f"with something of each deleted topic kept: {', '.join(g.line() for g in grown) or 'flat'}"
        f" · with the write behind the OK: lost {late.counts['lost']:,}"
    )
    return {"memory", "open_files"} <= {g.name for g in grown} and late.counts["lost"] > 0, text


if __name__ == "__main__":
    # Whoever is cut off says so, hundreds of times.
    for name in ("asyncio", "sparq.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.exit(outcome.run("mixed", prove, count=60, of="minutes"))
