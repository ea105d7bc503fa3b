"""Runs nsqd again and again on one data path while some of its system calls fail.

Each run is a life: nsqd starts, works under load, and ends with kill -9. Publishers, consumers of
the channel `live`, and an operator that creates and deletes topics work all the time. The channel
`late` is consumed from the disk: in lives that ask for it, and at the end, when nsqd starts without
faults and all channels are drained.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path

from tests.support import strace
from tests.support.servers import NsqdServer

from proofs.checker import Outcome, Verdict
from proofs.operator import Operator
from proofs.workload import LATE, NSQD, TOPIC, RunningActors, Workload, started, wait_until

FLAGS = ("--max-bytes-per-file=262144", "--msg-timeout=60s")
UP_SECONDS = 60.0
LIFE_SECONDS = 6.0
LIFE_SECONDS_MIN = 0.7
POLL_SECONDS = 0.05
LOG_SHOWN = 3000
IN_DATA = re.compile(r'at\(\d+, "')
"""A call that begins at a folder's descriptor: nsqd's calls on its data do."""
CALL = re.compile(r"^\d+ +(\w+)\(")


def before_data(scratch: Path, *calls: str, module: str = NSQD) -> Counter[str]:
    """Count the calls that nsqd makes at its start, before it opens its first data file.

    Python makes these calls, to load modules and libraries.

    Args:
        scratch: a folder for temporary files.
        calls: names of system calls; `openat` is always counted.
        module: the module to run.
    """
    record = scratch / "calls"
    prefix = (*strace.FAST, "-o", str(record), "-e", f"trace={','.join({'openat', *calls})}")
    folder = scratch / "counted"
    folder.mkdir()
    with started(folder, module, prefix=prefix) as server:
        server.terminate()
    found: Counter[str] = Counter()
    for line in record.read_text(errors="replace").splitlines():
        if IN_DATA.search(line):
            break
        if call := CALL.search(line):
            found[call[1]] += 1
    return found


@dataclass(frozen=True, slots=True)
class Rule:
    """The calls that fail in a life.

    Attributes:
        faults: (calls, errno's name, when), in strace's notation.
        wanted: number of failed calls after which the life may end.
        reads: whether the channel `late` is consumed.
        in_topic: only calls on the topic's folder itself fail.
    """

    faults: tuple[tuple[str, str, str], ...]
    wanted: int
    reads: bool = False
    in_topic: bool = False


def placed(rule: Rule, **places: int) -> Rule:
    """Return the rule with the placeholders in its faults replaced by these numbers."""
    changed = tuple((calls, error, when.format(**places)) for calls, error, when in rule.faults)
    return replace(rule, faults=changed)


@dataclass(slots=True)
class Tally:
    """Results of all lives.

    Attributes:
        faults: number of failed calls, by name.
        dark: the same for lives in which no sync succeeds.
        refused_starts: starts that nsqd refused, with a reason.
        deaths: descriptions of lives that ended in any other way, except by kill -9.
        synced_again: files that were synced again after a failed sync.
        acknowledged_dark: messages acknowledged in lives in which no sync succeeds.
        damaged: messages that nsqd reported as lost to damage.
    """

    faults: Counter[str] = field(default_factory=Counter)
    dark: Counter[str] = field(default_factory=Counter)
    refused_starts: int = 0
    deaths: list[str] = field(default_factory=list)
    synced_again: list[str] = field(default_factory=list)
    acknowledged_dark: int = 0
    damaged: int = 0


class Rig:
    """A data path, its actors, and the nsqd that runs on it.

    Args:
        server: a running nsqd; kill it before the first life.
        seed: seed of all random choices.
    """

    def __init__(self, server: NsqdServer, seed: int) -> None:
        self.server = server
        self.workload = Workload(server, seed, late=True)
        self.history = self.workload.history
        self.tally = Tally()
        self.actors = self.workload.running(Operator(server, seed))
        self.workload.make_topic()
        folders = {path.name: path for path in (server.folder / "topics").iterdir()}
        self.topic_folder = next(path for name, path in folders.items() if TOPIC in name)

    async def start(self, rule: Rule) -> None:
        """Run a life that ends as soon as nsqd answers or has refused to start."""
        with self.traced(rule):
            if await asyncio.to_thread(self.comes_up):
                await asyncio.to_thread(self.note_damage)
                await self.kill()

    async def load(self, rule: Rule, dark: bool = False) -> None:
        """Run a life under load until enough calls have failed.

        Args:
            rule: the calls that fail.
            dark: whether no sync succeeds, so that no publish may be acknowledged.
        """
        with self.traced(rule, dark) as record:
            if not await asyncio.to_thread(self.comes_up):
                return
            late = [self.workload.consumer(LATE, n) for n in (1, 2)] if rule.reads else []
            async with RunningActors(*late):
                await asyncio.to_thread(self.wait_for_faults, record, rule.wanted)
            if (status := self.status()) is not None:
                self.tally.deaths.append(f"{rule}: exit status {status}")
            else:
                await asyncio.to_thread(self.note_damage)
            await self.kill()
        if dark:
            self.tally.acknowledged_dark += sum(
                command.count
                for command in self.workload.commands()
                if command.outcome is Outcome.OK and command.after_kill == self.history.kills - 1
            )

    async def kill(self) -> None:
        """Kill nsqd with kill -9, and wait until publishers have read all its replies."""
        self.server.kill9()
        await asyncio.to_thread(wait_until, self.workload.is_unheard, "noticed by the publishers")

    @contextmanager
    def traced(self, rule: Rule, dark: bool = False) -> Iterator[strace.Record]:
        """Launch nsqd under strace; after the block, count the life and its failed calls."""
        record = strace.Record(self.server.folder.parent / f"record {self.history.kills}")
        folder = self.topic_folder
        # nsqd names it from the descriptor of its data path.
        paths = (str(folder), f"{folder.parent.name}/{folder.name}") if rule.in_topic else ()
        opens = "" if rule.in_topic or "fdatasync" not in rule.faults[0][0] else "openat,renameat"
        self.server.prefix = strace.fail(rule.faults, record.path, opens, paths)
        self.server.launch()
        yield record
        self.history.kills += 1
        (self.tally.dark if dark else self.tally.faults).update(record.injected())
        self.tally.synced_again += record.synced_again()
        record.path.unlink(missing_ok=True)

    def comes_up(self) -> bool:
        """Wait until nsqd answers; if it ends instead, record whether it gave a reason."""
        begin = len(self.server.log_text)
        deadline = time.monotonic() + UP_SECONDS
        while self.status() is None and time.monotonic() < deadline:
            if self.answers():
                return True
            time.sleep(POLL_SECONDS)
        status, said = self.status(), self.server.log_text[begin:]
        self.server.kill9()
        if status == 1 and "Traceback" not in said:
            self.tally.refused_starts += 1
        else:
            how = f"exit status {status} at a start, {self.server.prefix}"
            self.tally.deaths.append(f"{how}: {said[-LOG_SHOWN:]}")
        return False

    def answers(self) -> bool:
        """Return whether nsqd answers /ping, with any status: its disk may be failing."""
        with suppress(OSError, HTTPException):
            return self.server.request("GET", "/ping")[0] > 0
        return False

    def status(self) -> int | None:
        """Return the exit status of nsqd, None while it runs."""
        process = self.server.process
        return None if process is None else process.poll()

    def wait_for_faults(self, record: strace.Record, wanted: int) -> None:
        """Wait until enough calls have failed, LIFE_SECONDS have passed, or nsqd has ended."""
        began = time.monotonic()
        while self.status() is None and (lasted := time.monotonic() - began) < LIFE_SECONDS:
            if lasted > LIFE_SECONDS_MIN and record.injected().total() >= wanted:
                return
            time.sleep(POLL_SECONDS)

    async def end(self) -> Verdict:
        """Start nsqd without faults, drain both channels and return the checker's verdict."""
        self.server.prefix = ()
        await asyncio.to_thread(self.server.start)
        await self.workload.drained()
        return self.workload.verdict()

    def note_damage(self) -> None:
        """Add the messages reported as lost to damage; the next life counts from 0 again."""
        topics = self.server.get_json(f"/stats?format=json&topic={TOPIC}")["topics"]
        self.tally.damaged += sum(int(topic["damaged_messages"]) for topic in topics or ())


def rig(folder: Path, seed: int, module: str = NSQD) -> Rig:
    """Return a rig in its own folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return Rig(started(folder, module, FLAGS), seed)
