"""kill -9 of nsqd under load, again and again, and a count of what was lost: `make proof-kill`.

Four publishers (PUB and MPUB, one at a time and pipelined) and three consumers (RDY 1, 200, 2500)
work on one topic with two channels. `live` is consumed all the while. `late` is consumed only at
the end of each round, so that by then all that was acknowledged must have lain on disk through
every kill of the round. Some kills fall into the recovery from the one before. Segments are small,
so that rolling and deleting them is killed too.

After the last round everything is drained and the checker counts. Two controls must fail:
with the write moved behind the OK (late_commit.py) messages are lost, with finishes written late
(late_finish.py) messages return. Every run prints its seed.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from tests.servers import NsqdServer, spawn_nsqd

from proofs.checker import Verdict, check, lost_commands, total
from proofs.history import History
from proofs.witness import HABITS, READY_COUNTS, Consumer, Publisher

ROOT = Path(__file__).parent.parent
TOPIC = "proof"
LIVE, LATE = "live", "late"
ROUND_KILLS = 10
LOAD_SECONDS = (0.05, 1.2)
KILLED_WHILE_STARTING = 0.15
STARTING_SECONDS = (0.02, 0.6)
DRAIN_SECONDS = 120
FLAGS = ("--max-bytes-per-file=1048576", "--msg-timeout=60s")
CONTROL_KILLS = 5
SHOWN_MAX = 40
LATE_COMMIT, LATE_FINISH = "proofs.late_commit", "proofs.late_finish"


@dataclass(slots=True)
class Proof:
    """One run against one nsqd: its chances, its actors, its history."""

    seed: int
    server: NsqdServer
    history: History = field(init=False)
    chance: random.Random = field(init=False)
    recoveries: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.history = History(run=self.seed & 0xFFFFFFFF)
        self.chance = random.Random(f"{self.seed} kills")

    async def run(self, kills: int) -> Verdict:
        """Kill so many times, drain, and check."""
        for channel in (LIVE, LATE):
            await self.post("topic/create", f"topic={TOPIC}")
            await self.post("channel/create", f"topic={TOPIC}&channel={channel}")
        consumers = [self.consumer(LIVE, number) for number in range(len(READY_COUNTS))]
        publishers = [
            Publisher(self.server.tcp, TOPIC, self.history, number) for number in range(len(HABITS))
        ]
        async with Crew(*publishers, *consumers):
            while self.history.kills < kills:
                await self.round(min(kills, self.history.kills + ROUND_KILLS))
            for publisher in publishers:
                publisher.stopping = True
            await self.drain()
        return total(check(self.history).values())

    def consumer(self, channel: str, number: int) -> Consumer:
        return Consumer(self.server.tcp, TOPIC, channel, self.history, f"{channel} {number}")

    async def round(self, until: int) -> None:
        """Some kills, then the late channel is consumed as far as it goes until one more."""
        while self.history.kills < until:
            await asyncio.sleep(self.chance.uniform(*LOAD_SECONDS))
            self.kill()
            await self.recover()
        async with Crew(self.consumer(LATE, 1), self.consumer(LATE, 2)):
            await asyncio.sleep(self.chance.uniform(*LOAD_SECONDS))
            self.kill()
        # They leave with the nsqd that they were connected to: nothing waits for a timeout.
        await self.recover()

    def kill(self) -> None:
        """kill -9, now."""
        self.server.kill9()
        self.history.kills += 1

    async def recover(self) -> None:
        """Start again, and maybe kill that one while it recovers."""
        if self.chance.random() < KILLED_WHILE_STARTING:
            await self.kill_while_starting()
        began = time.monotonic()
        await asyncio.to_thread(self.server.start)
        self.recoveries.append(time.monotonic() - began)
        print(f"\r  {self.history.kills} kills ", end="", file=sys.stderr, flush=True)

    async def kill_while_starting(self) -> None:
        start = asyncio.create_task(asyncio.to_thread(self.server.start))
        await asyncio.sleep(self.chance.uniform(*STARTING_SECONDS))
        if self.server.process is not None:
            self.server.process.kill()
        # It was up already, or its start failed for having been killed.
        await asyncio.gather(start, return_exceptions=True)
        self.server.kill9()
        self.history.kills += 1

    async def drain(self) -> None:
        """Consume both channels to their ends."""
        async with Crew(self.consumer(LATE, 3), self.consumer(LATE, 4)):
            await asyncio.to_thread(self.wait_drained)

    def wait_drained(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while not self.is_drained():
            assert time.monotonic() < deadline, f"not drained in {DRAIN_SECONDS} s"
            time.sleep(0.05)

    def is_drained(self) -> bool:
        figures = [self.server.channel(TOPIC, channel) for channel in (LIVE, LATE)]
        waiting = ("depth", "in_flight_count", "deferred_count")
        return all(figure and not any(figure[key] for key in waiting) for figure in figures)

    async def post(self, action: str, query: str) -> None:
        await asyncio.to_thread(self.server.post, f"/{action}?{query}")


class Crew:
    """Actors at work for as long as the block lasts."""

    def __init__(self, *actors: Publisher | Consumer) -> None:
        self.actors = actors
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self.tasks = [asyncio.create_task(actor.live()) for actor in self.actors]

    async def __aexit__(self, *_: object) -> None:
        ended = [task for task in self.tasks if task.done()]
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for task in ended:
            task.result()


def started(folder: Path, module: str = "sparq.nsqd", flags: Sequence[str] = ()) -> NsqdServer:
    """An nsqd of this module with its data in `folder`."""
    if module == "sparq.nsqd":
        return spawn_nsqd(folder, *FLAGS, *flags)
    os.environ["PYTHONPATH"] = str(ROOT)
    server = NsqdServer(module, folder, (f"--data-path={folder}", *FLAGS, *flags))
    server.start()
    return server


@contextmanager
def data_folder(keep: Path | None) -> Iterator[Path]:
    """A folder that is removed afterwards, or the one in which everything is to be kept."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory(prefix="sparq-proof-") as folder:
            yield Path(folder)


def prove(
    seed: int, kills: int, module: str = "sparq.nsqd", keep: Path | None = None
) -> tuple[Verdict, Proof]:
    """One run in a folder of its own; what it says about the messages, and the run itself."""
    with data_folder(keep) as folder:
        server = started(folder, module)
        with server:
            proof = Proof(seed, server)
            return asyncio.run(proof.run(kills)), proof


def report(proof: Proof, verdict: Verdict) -> None:
    print(f"\rkills {proof.history.kills} · slowest recovery {max(proof.recoveries) * 1000:.0f} ms")
    print(verdict.line())


def controls_fail(seed: int) -> bool:
    """Whether each guard is seen to be needed: without it, the same proof fails."""
    print("control, with the write behind the OK: must lose messages")
    without_commit, proof = prove(seed, CONTROL_KILLS, LATE_COMMIT)
    report(proof, without_commit)
    print("control, with finishes written late: must bring messages back")
    without_finish, proof = prove(seed, CONTROL_KILLS, LATE_FINISH)
    report(proof, without_finish)
    return without_commit.lost > 0 and without_finish.returned > 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The proof and its control; the exit status says whether both came out as they must."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--no-control", action="store_true", help="leave the control runs out")
    parser.add_argument("--keep", type=Path, help="keep nsqd's data and log in this new folder")
    options = parser.parse_args(arguments)
    print(f"repeat with: make proof-kill N={options.kills} SEED={options.seed}")
    verdict, proof = prove(options.seed, options.kills, keep=options.keep)
    report(proof, verdict)
    held = verdict.holds
    for line in islice(lost_commands(proof.history), SHOWN_MAX):
        print(f"  lost on {line}")
    if not options.no_control:
        held = controls_fail(options.seed) and held
    print("the proof holds" if held else "THE PROOF FAILED")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
