"""Runs nsqd with too few open files for its connections: `make fds`.

nsqd may have 64 open files. It serves a workload: publishers and consumers of one topic, with small
segments, so that nsqd starts new ones all the time.

1. A flood: N connections are opened at once and stay open. nsqd serves those within the clients'
   share of open files, and closes the others. The flood must not affect the workload: none of its
   connections breaks, no publish is refused, and new segments are started. 100 topics, more than
   open files, can be created and published to.
2. The limit is lowered below the number of files already open, so no file can be opened. Publishes
   that need a new segment are refused with a reason. When the limit is raised again, publishing
   resumes by itself. Then the flood's connections close, and a new connection is served.
3. All messages are drained, and the checker counts.

The control (controls/unshared_files.py) does not divide the open files: the flood must affect the
workload.
"""

import asyncio
import resource
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException

from tests.support.servers import NsqdServer
from tests.support.v2_client import OK, AsyncV2Client

from proofs import outcome
from proofs.checker import Verdict, check, total
from proofs.daemon_fixture import NSQD, data_folder, started
from proofs.outcome import Outcome, Plan, progress, skipped
from proofs.workload import WAIT_SECONDS, Workload, until
from sparq.protocol.commands import pub

FILES = 64
TOPICS = 100
FLAGS = ("--max-bytes-per-file=262144", "--msg-timeout=60s")
PREFIX = ("sh", "-c", f'ulimit -n {FILES} && exec "$@"', "sh")
STEP_COMMANDS = 1_000
"""Commands that the workload must get acknowledged in each step: enough for several segments."""
UNSHARED = "proofs.controls.unshared_files"
REFUSALS_MIN = 20
PROMISES = ("P12", "P7")


@dataclass(slots=True)
class Findings:
    """The results of one run.

    Attributes:
        taken, turned_away: connections of the flood that were served, and the others.
        hurt: the workload's broken connections and refused publishes during the flood.
        topics: topics created and published to during the flood, out of TOPICS.
        refused: publishes refused while no file could be opened.
        resumed: whether a new connection was served and /ping was OK after the flood.
        verdict: the checker's verdict.
    """

    taken: int = 0
    turned_away: int = 0
    hurt: int = 0
    topics: int = 0
    refused: int = 0
    resumed: bool = False
    verdict: Verdict | None = None

    @property
    def holds(self) -> bool:
        """Whether the workload was not affected, and no message was lost."""
        unhurt = self.hurt == 0 and self.topics == TOPICS and self.turned_away > 0
        verdict = self.verdict
        return unhurt and self.refused > 0 and self.resumed and bool(verdict and verdict.holds)


@dataclass(slots=True)
class Flood:
    """Connections that are opened at once and held."""

    address: str
    held: list[AsyncV2Client] = field(default_factory=list)

    async def open(self, count: int) -> int:
        """Open `count` connections; return how many are served."""
        return sum(await asyncio.gather(*(self.connect() for _ in range(count))))

    async def connect(self) -> bool:
        """Open one connection; return whether a publish over it is acknowledged."""
        with suppress(OSError):
            client = await AsyncV2Client.connect(self.address, seconds=WAIT_SECONDS)
            self.held.append(client)
            return await client.ask(pub("flood", b"x")) == OK
        return False

    def close(self) -> None:
        """Close all connections."""
        for client in self.held:
            client.abort()
        self.held.clear()


class Proof:
    """One run against one nsqd."""

    def __init__(self, plan: Plan, server: NsqdServer) -> None:
        self.count = plan.count
        self.server = server
        self.found = Findings()
        self.workload = Workload.of(server, plan.seed)
        self.flood = Flood(server.tcp)

    async def run(self, *, is_control: bool) -> Findings:
        """Run all steps; with a control, only those that its missing safeguard affects."""
        await asyncio.to_thread(self.workload.make_topic)
        try:
            async with self.workload.running():
                await self.workload.goes_on(STEP_COMMANDS)
                await self.under_flood()
                if not is_control:
                    await self.without_files()
                    await self.without_flood()
                    await self.workload.drained()
        finally:
            self.flood.close()
        self.found.verdict = total(check(self.workload.history).values())
        return self.found

    async def under_flood(self) -> None:
        """Open the flood's connections; the workload continues, and other topics are written."""
        progress("flood")
        workload, found = self.workload, self.found
        refused, connections = workload.refused(), workload.connections()
        found.taken = await self.flood.open(self.count)
        found.turned_away = self.count - found.taken
        await workload.goes_on(STEP_COMMANDS, or_refused=True)
        found.topics = await asyncio.to_thread(self.write_topics)
        found.hurt = workload.refused() - refused + workload.connections() - connections

    def write_topics(self) -> int:
        """Publish a message to each of TOPICS topics over HTTP; return how many accepted it."""
        taken = 0
        for number in range(TOPICS):
            with suppress(OSError, HTTPException):
                taken += self.server.request("POST", f"/pub?topic=other.{number}", b"x")[0] == 200
        return taken

    async def without_files(self) -> None:
        """Lower the limit until REFUSALS_MIN publishes are refused, then raise it again."""
        progress("no files")
        before, pid = self.workload.refused(), self.server.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, FILES))
        try:
            await until(lambda: self.workload.refused() >= before + REFUSALS_MIN, "refused")
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        await self.workload.goes_on(STEP_COMMANDS)
        self.found.refused = self.workload.refused() - before

    async def without_flood(self) -> None:
        """Close the flood's connections, and check that a new connection is served."""
        self.flood.close()

        deadline = time.monotonic() + WAIT_SECONDS
        while not self.found.resumed and time.monotonic() < deadline:
            served = await self.flood.connect()
            self.found.resumed = served and await asyncio.to_thread(self.is_healthy)

    def is_healthy(self) -> bool:
        return self.server.request("GET", "/ping") == (200, b"OK")


def attempt(plan: Plan, module: str = NSQD) -> Findings:
    """Do one run in its own folder."""
    keep = plan.keep if module == NSQD else None
    with data_folder(keep) as folder, started(folder, module, FLAGS, PREFIX) as server:
        return asyncio.run(Proof(plan, server).run(is_control=module != NSQD))


def prove(plan: Plan) -> Outcome:
    """Run the proof and its control."""
    if shutil.which("sh") is None:
        return skipped(PROMISES, "needs a shell with ulimit")
    found = attempt(plan)
    assert found.verdict is not None
    figures = (
        f"connections {plan.count:,} with {FILES} files: served {found.taken:,}, "
        f"refused {found.turned_away:,} · existing sessions hurt {found.hurt:,} · "
        f"topics written meanwhile {found.topics:,}/{TOPICS} · segment roll under EMFILE: "
        f"refused ({found.refused:,} publishes), then {'resumed' if found.resumed else 'STUCK'} · "
        f"{found.verdict.line()}"
    )
    held, control = found.holds, ""
    if plan.control:
        without = attempt(plan, UNSHARED)
        control = (
            f"with open files not shared out: existing sessions hurt {without.hurt:,}, "
            f"topics written {without.topics:,}/{TOPICS}"
        )
        held = held and without.hurt > 0 and without.topics < TOPICS
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("fds", prove, count=500, of="connections"))
