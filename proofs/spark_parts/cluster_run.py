"""One run of the pipeline on its own cluster, from its start to the final checks.

1. All random choices come from the seed and the variant's name.
2. Each wait has a limit in seconds; beyond it the run fails with the last lines of the logs.
3. A step restarts what it has killed. A process that ends by itself fails the run, except for the
   driver, which ends when a query fails: it is restarted, and counted.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from tests.support.waiting import wait_for

from proofs.exactly_once import TABLES, archived, problems
from proofs.outcome import progress
from proofs.spark_parts.checkpoint import QUERIES, Checkpoints
from proofs.spark_parts.failing_workers import FAILED, FOLDER
from proofs.spark_parts.standalone import (
    DRIVER_PARTS,
    Driver,
    StandaloneCluster,
    driver_pids,
    last_lines,
)
from proofs.workload import python_path
from sparq.demo.generator import Generated, generate
from sparq.demo.scores import scores
from sparq.options.mistakes import Mistake
from sparq.pipeline import spam_analysis
from sparq.pipeline.report.audit import audit, read_records
from sparq.pipeline.report.figures import newest_findings, scan
from sparq.pipeline.run.processes import APPLICATION, LocalCluster
from sparq.pipeline.run.publishing import publish
from sparq.pipeline.storage import TablePlace
from sparq.program.supervised import HOST, SupervisedProcess, members_of, send

T = TypeVar("T")

TOPIC = "clicks"
SLICE = 5_000
"""Number of clicks published together, before the feed checks its limits."""

CLICKS_PER_SECOND = 10_000
MORE = 40
"""A little more is at most one of this many parts of all clicks."""


@cache
def clicks(count: int, seed: int) -> Generated:
    """Return a generated day; a million clicks take a minute, so all runs of a proof share them."""
    return generate(count, seed)


class Feed(threading.Thread):
    """Publishes clicks until all are acknowledged.

    Args:
        lines: the clicks.
        nsqds: TCP addresses.
        folder: gets the hashes of the clicks that were acknowledged and of those sent again.

    Attributes:
        ended: set it to stop with the clicks published so far.
    """

    def __init__(self, lines: Sequence[bytes], nsqds: list[str], folder: Path) -> None:
        super().__init__(name="feed", daemon=True)
        self.published = self.allowed = 0
        self.failure: Exception | None = None
        self.ended = threading.Event()
        self._lines = lines
        self._nsqds = nsqds
        self._folder = folder

    def release(self, count: int) -> None:
        """Let it publish this many of all clicks."""
        self.allowed = min(max(self.allowed, count), len(self._lines))

    def release_more(self) -> None:
        """Let it publish a little more, so that some is left for later steps of a small run."""
        self.release(self.allowed + min(SLICE, max(1, len(self._lines) // MORE)))

    def run(self) -> None:
        """Run the thread."""
        pause = 0.0
        try:
            while self.published < len(self._lines) and not self.ended.wait(pause):
                began = time.monotonic()
                part = self._lines[self.published : min(self.published + SLICE, self.allowed)]
                if part:
                    asyncio.run(publish(part, self._nsqds, TOPIC, self._folder))
                    self.published += len(part)
                due = began + max(POLL_SECONDS, len(part) / CLICKS_PER_SECOND)
                pause = max(0.0, due - time.monotonic())
        except Exception as error:  # the thread that waits for the clicks raises it
            self.failure = error


PRECISION, RECALL = 0.95, 0.90
SCORED_CLICKS = 200_000
"""With fewer clicks, so few visitors are planted that a single one decides the score."""

POLL_SECONDS = 0.05
DRIVER_SECONDS = 600.0
BATCH_SECONDS = 600.0
DRAIN_SECONDS = 1800.0
FINISH_SECONDS = 600.0
IDLE_SECONDS = 3.0
CHECKED_SECONDS_MAX = 1.0
"""After a longer time without a check, `is_idle` cannot know whether the pipeline had work."""

ENDS_EARLY_MAX, ENDS_MAX = 2, 12
"""How often a driver may end by itself in one run: before its first batch is done, and in total.

A bug in the pipeline ends each driver before its first batch; bad luck does not do so three times.
"""

BATCHES_BEFORE = (0, 1, 1, 2, 3)
"""Batches that each query completes between two steps, so that kills are spread over the run."""

MID_BATCH_SECONDS = (0.0, 0.4)
OFFSETS = (2_000, 20_000)
BATCHES = 50
"""Number of batches a query should need for all clicks, if OFFSETS allows it."""


class ClusterRun:
    """A Spark cluster, nsqds, clicks and the pipeline between them.

    Args:
        folder: a new folder for everything.
        variant: how the run is made hard.
        seed: of the clicks and of all random choices.
        count: number of clicks.

    Attributes:
        wrong: what does not hold; empty if all does.
        kills: what was killed.
        notes: what else happened.
        rows: rows of `clicks` and `rejected`.
        twice: the number of these rows whose id another row also has.
        steps_done: how often each step was done.
    """

    def __init__(self, folder: Path, variant: Variant, seed: int, count: int) -> None:
        self.folder, self.variant, self.count = folder, variant, count
        self.chance = random.Random(f"{seed} {variant.name}")
        self.data, self.logs = folder / "data", folder / "logs"
        self.failures, self.events = folder / "failures", folder / "events"
        for each in (self.data, self.failures, self.events):
            each.mkdir(parents=True)
        self.nsq = LocalCluster(self.logs, folder / "nsqds")
        self.spark = StandaloneCluster(folder / "spark")
        self.driver = Driver(self.data, folder / "driver", self._flags(), variant.module)
        self.clicks = clicks(count, seed)
        nsqds = [member.tcp for member in self.nsq.nsqds]
        self.feed = Feed(self.clicks.lines, nsqds, self.logs)
        self.checkpoints = Checkpoints(self.data / "checkpoint")
        self.wrong: list[str] = []
        self.kills: list[str] = []
        self.notes: list[str] = []
        self.rows = self.twice = 0
        self.steps_done: Counter[Step] = Counter()
        self._ends = 0
        self._is_finishing = False
        self._busy_at = self._checked_at = time.monotonic()

    def _flags(self) -> list[str]:
        """Return the driver's flags after `sparq pipeline`, without the data folder."""
        options = {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.ui.enabled": "false",
            **self.variant.spark,
        }
        if want_failures in self.variant.others:
            options |= {
                "spark.python.daemon.module": "proofs.spark_parts.failing_workers",
                "spark.executorEnv.PYTHONPATH": python_path(),
                f"spark.executorEnv.{FOLDER}": str(self.failures),
            }
        if stall in self.variant.others:
            options |= {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": self.events.as_uri(),
                "spark.eventLog.rolling.enabled": "false",
                "spark.eventLog.compress": "false",
            }
        low, high = OFFSETS
        return [
            f"--master={self.spark.url}",
            f"--lookupd-http-address={self.nsq.lookupd.http}",
            f"--topic={TOPIC}",
            f"--max-offsets-per-trigger={min(max(self.count // BATCHES, low), high)}",
            "--driver-memory=1g",
            "--executor-memory=1g",
            "--metrics-address=",
            *(f"--spark={key}={value}" for key, value in options.items()),
        ]

    def do(self) -> None:
        """Do the whole run; every process that it starts has ended when this returns."""
        try:
            self.nsq.start(TOPIC, QUERIES)
            self.spark.start()
            if want_failures in self.variant.others:
                want_failures(self)
            self.driver.start()
            self.feed.start()
            self._do_steps()
            self._finish()
            self._check_tables()
            self._check_variant()
        except (AssertionError, OSError, Mistake, subprocess.SubprocessError) as error:
            self.wrong.append(str(error) or repr(error))
        finally:
            with ExitStack() as ends:
                # The last one is ended first.
                for end in (self.nsq.stop, self.spark.stop, self.driver.kill, self.feed.ended.set):
                    ends.callback(end)

    def _do_steps(self) -> None:
        """Do one step after another, and keep a share of the clicks for after each."""
        kinds = (self.variant.kill, kill_worker, kill_nsqd)
        steps: list[Step] = [kinds[at % len(kinds)] for at in range(self.variant.kills)]
        steps += self.variant.others
        self.chance.shuffle(steps)
        for at, step in enumerate(steps):
            self.feed.release(self.count * (at + 1) // (len(steps) + 1))
            self.wait_for_driver()
            wanted = min(self.checkpoints.done()) + self.chance.choice(BATCHES_BEFORE)
            self._wait_for_batches(wanted)
            said = step(self)
            (self.kills if step in kinds else self.notes).append(said)
            self.steps_done[step] += 1

    def _wait_for_batches(self, wanted: int) -> None:
        """Return when each query has completed this many batches, or has nothing to do."""

        def are_done() -> bool:
            return min(self.checkpoints.done()) >= wanted or self.is_idle()

        self.wait("batch that ends", are_done, BATCH_SECONDS)

    def _finish(self) -> None:
        """Let the pipeline read everything, and end."""
        self.feed.release(self.count)
        feed = self.feed
        self.wait("end of publishing", lambda: feed.published == self.count, DRAIN_SECONDS)
        self.wait_for_driver()
        self.wait("end of all channels", self._is_drained, DRAIN_SECONDS)
        self._is_finishing = True
        self.driver.finish()
        self.wait("end of the driver", lambda: self.driver.exit_status() == 0, FINISH_SECONDS)
        assert self.driver.stage() == "done", self.told("the driver has not ended")

    def _is_drained(self) -> bool:
        """Return whether every channel of every nsqd has handled all messages."""
        depths = self.nsq.depths(TOPIC, QUERIES)
        return depths is not None and not any(depths.values())

    def _check_tables(self) -> None:
        """Run the audit, and check what else must be true of the tables."""
        place = TablePlace(str(self.data))
        published = read_records(self.logs)
        _, failed = audit(place, self.nsq.message_count(TOPIC), *published)
        self.wrong += [*failed, *problems(self.data)]
        self.rows, distinct = archived(self.data)
        self.twice = self.rows - distinct
        sent = len(published[0])
        if distinct < sent:
            self.wrong.append(f"{distinct:,} ids of {sent:,} acknowledged clicks")
        findings = newest_findings(scan(place, spam_analysis.FINDINGS))
        score = scores(findings.to_dicts(), self.clicks.labels)["all"]
        found = "precision {precision}, recall {recall} of findings".format(**score)
        self.notes.append(found)
        if sent >= SCORED_CLICKS and (score["precision"] < PRECISION or score["recall"] < RECALL):
            self.wrong.append(found)

    def _check_variant(self) -> None:
        """Check that what the variant is about has happened."""
        if want_failures in self.variant.others:
            count = len([*self.failures.glob(f"*{FAILED}")])
            self.notes.append(f"{count} tasks failed after they had written")
            for name in {*TABLES} - {"rejected"}:
                if (self.failures / name).exists():
                    self.wrong.append(f"no task has failed after it had written into {name}")
        if stall in self.variant.others:
            count = speculative_tasks(self.events)
            self.notes.append(f"{count} tasks were run a second time beside the first")
            if not count:
                self.wrong.append("no task was run a second time beside the first")

    # What steps ask for

    def wait(self, what: str, check: Callable[[], T | None], seconds: float) -> T:
        """Return the result of `check` once it is true.

        Raises:
            AssertionError: not in time, or something has ended by itself.
        """

        def watched() -> T | None:
            self._watch()
            return check()

        return wait_for(watched, seconds, lambda: self.told(f"no {what}"), POLL_SECONDS)

    def wait_for_driver(self) -> None:
        """Return when all queries run."""
        self.wait("driver whose queries run", self.driver.is_running, DRIVER_SECONDS)

    def wait_for_batch(self) -> str:
        """Return in the middle of a batch, with a text that names it."""
        deadline = time.monotonic() + BATCH_SECONDS
        while time.monotonic() < deadline:
            query, batch = self.wait("batch under way", self._batch_under_way, BATCH_SECONDS)
            time.sleep(self.chance.uniform(*MID_BATCH_SECONDS))
            if (query, batch) in self.checkpoints.under_way() and self.driver.is_running():
                return f"in batch {batch} of {query}"
        raise AssertionError(self.told("no batch lasts long enough to be met"))

    def _batch_under_way(self) -> tuple[str, int] | None:
        if not self.driver.is_running():
            return None
        if self.is_idle():
            self.feed.release_more()
            self._busy_at = time.monotonic()
        found = self.checkpoints.under_way()
        return self.chance.choice(found) if found else None

    def is_idle(self) -> bool:
        """Return whether the pipeline has had no work for IDLE_SECONDS, and gets no more clicks."""
        now = time.monotonic()
        is_unknown = now - self._checked_at > CHECKED_SECONDS_MAX
        is_held_back = self.feed.allowed <= self.feed.published < self.count
        is_busy = self.checkpoints.under_way() or not is_held_back
        if is_unknown or is_busy or not self.driver.is_running():
            self._busy_at = now
        self._checked_at = now
        return now - self._busy_at > IDLE_SECONDS

    def told(self, what: str) -> str:
        """Return a sentence followed by the last lines of all logs."""
        nsqds = [member.log for member in self.nsq.members]
        logs = [*nsqds, *self.spark.logs(), self.driver.log]
        return "\n".join([what, *filter(None, map(last_lines, logs))])

    def _watch(self) -> None:
        """Detect what has ended by itself, and show the progress."""
        assert self.feed.failure is None, self.told(f"publishing failed: {self.feed.failure!r}")
        programs = (*self.nsq.members, self.spark.master, *self.spark.workers)
        gone = [program.name for program in programs if program.has_ended()]
        assert not gone, self.told(f"ended by itself: {', '.join(gone)}")
        status = self.driver.exit_status()
        if status is not None and not (self._is_finishing and status == 0):
            self._ends += 1
            most = ENDS_MAX if any(self.checkpoints.done()) else ENDS_EARLY_MAX
            assert self._ends <= most, self.told(f"the driver has ended {self._ends} times")
            self.notes.append(f"the driver ended by itself with status {status}")
            self.driver.kill()
            self.driver.start()
        progress(
            f"{self.variant.name}: kills {len(self.kills)} of {self.variant.kills}"
            f" · published {self.feed.published:,} of {self.count:,}"
        )


STARTED = b'{"Event":"SparkListenerTaskStart"'


def speculative_tasks(folder: Path) -> int:
    """Return the number of tasks started a second time because the first attempt was slow."""
    count = 0
    for path in folder.iterdir():
        with path.open("rb") as lines:
            for line in lines:
                # An application that was killed may have cut its last line.
                if line.startswith(STARTED) and line.endswith(b"\n"):
                    count += json.loads(line)["Task Info"]["Speculative"]
    return count


# The steps

Step = Callable[[ClusterRun], str]
"""Does something to a run; returns what, as a text."""

DOWN_SECONDS = (0.0, 3.0)
NSQD_SECONDS = (0.0, 3.0)
NSQD_START_SECONDS = 30.0
STALL_SECONDS = (2.0, 5.0)
EXECUTOR_SECONDS = 300.0
SETTLED_SECONDS = 120.0
AGAIN_SECONDS = 600.0
CORES = (2, 1)
"""Each worker's cores after a step, in turn; at the start a worker has one."""


def busy_worker(run: ClusterRun) -> tuple[SupervisedProcess, str]:
    """Wait for the middle of a batch; return a worker with executors, and a text for the batch."""

    def have_executors() -> list[SupervisedProcess]:
        return [worker for worker in run.spark.workers if len(driver_pids(worker.pid, "jvm")) > 1]

    run.wait("executor", have_executors, EXECUTOR_SECONDS)
    place = run.wait_for_batch()
    return run.chance.choice(have_executors() or run.spark.workers), place


def kill_worker(run: ClusterRun) -> str:
    """kill -9 a worker and its executors in the middle of a batch."""
    worker, place = busy_worker(run)
    count = len(driver_pids(worker.pid, "jvm")) - 1
    worker.kill()
    time.sleep(run.chance.uniform(*DOWN_SECONDS))
    run.spark.start_worker(worker)
    run.spark.wait_for_workers()
    return f"{worker.name} and {count} executors {place}"


def kill_part_of_driver(run: ClusterRun) -> str:
    """kill -9 the driver, or a part of it, in the middle of a batch; do not start it again."""
    place = run.wait_for_batch()
    part = run.chance.choice(DRIVER_PARTS)
    run.driver.kill_part(part)
    return f"the driver's {part} {place}"


def kill_driver(run: ClusterRun) -> str:
    """kill -9 the driver, or a part of it, in the middle of a batch."""
    killed = kill_part_of_driver(run)
    run.driver.start()
    return killed


def change_cores(run: ClusterRun) -> str:
    """kill -9 the driver in the middle of a batch; it restarts on a cluster with other cores."""
    killed = kill_part_of_driver(run)
    run.spark.cores = CORES[run.steps_done[change_cores] % len(CORES)]
    for worker in run.spark.workers:
        worker.kill()
        run.spark.start_worker(worker)
    run.spark.wait_for_workers()
    run.driver.start()
    return f"{killed}, back on {run.spark.cores} cores a worker"


def kill_nsqd(run: ClusterRun) -> str:
    """kill -9 an nsqd, at a random moment."""
    time.sleep(run.chance.uniform(*NSQD_SECONDS))
    nsqd = run.chance.choice(run.nsq.nsqds)
    nsqd.kill()
    time.sleep(run.chance.uniform(*DOWN_SECONDS))
    nsqd.start()
    assert nsqd.is_ready(NSQD_START_SECONDS), run.told(f"{nsqd.name} does not answer")
    return f"{nsqd.name} at {run.feed.published:,} clicks"


def lose_commits(run: ClusterRun) -> str:
    """kill -9 the driver between two batches, and delete the last file of `commits`.

    The same state is left by a driver that dies after its sink has written, and before Spark has
    recorded the batch as done.
    """
    query = QUERIES[run.steps_done[lose_commits] % len(QUERIES)]
    deadline = time.monotonic() + SETTLED_SECONDS
    while True:
        run.wait_for_driver()
        time.sleep(run.chance.uniform(0.0, 0.2))
        send(members_of(run.driver.pid), signal.SIGSTOP)
        settled = run.checkpoints.settled()
        is_late = time.monotonic() > deadline
        # All three queries, if they are between batches at the same moment, in time.
        if len(settled) == len(QUERIES) or (query in settled and is_late):
            break
        send(members_of(run.driver.pid), signal.SIGCONT)
        assert time.monotonic() < deadline + SETTLED_SECONDS, run.told(
            "no query is between batches"
        )
    run.driver.kill()
    lost = {query: run.checkpoints.forget(query) for query in settled}
    run.driver.start()

    def are_done_again() -> bool:
        return all(run.checkpoints.newest(q, "commits") >= batch for q, batch in lost.items())

    batches = " and ".join(f"batch {batch} of {name}" for name, batch in lost.items())
    run.wait(f"{batches} again", are_done_again, AGAIN_SECONDS)
    return f"the driver, which then did {batches} again"


def stall(run: ClusterRun) -> str:
    """Stop a worker's executors for some seconds in the middle of a batch, then resume them."""
    worker, place = busy_worker(run)
    seconds = run.chance.uniform(*STALL_SECONDS)
    stopped = [pid for pid in members_of(worker.pid) if pid != worker.pid]
    send(stopped, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        send(stopped, signal.SIGCONT)
    return f"the executors of {worker.name} stood still for {seconds:.1f} s {place}"


def want_failures(run: ClusterRun) -> str:
    """For each table, let the next task that has written one of its files fail."""
    for name in TABLES:
        (run.failures / name).touch()
    return "tasks were to fail after they had written"


KILLS = 6


@dataclass(frozen=True, slots=True)
class Variant:
    """One way.

    Attributes:
        name: its name for `--only`.
        text: a description for people.
        kill: the step that kills the driver.
        others: steps that kill nothing, once for each time they are listed.
        spark: further options of Spark.
        module: the pipeline, or its replacement.
        kills: number of kills of all kinds together.
    """

    name: str
    text: str
    kill: Step = kill_driver
    others: tuple[Step, ...] = ()
    spark: dict[str, str] = field(default_factory=dict)
    module: str = APPLICATION
    kills: int = KILLS


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    # Also in stages with only one task: the writing stage of a batch often has just one.
    "spark.speculation.task.duration.threshold": "1s",
}
VARIANTS = (
    Variant("kills", "kills of workers, drivers and nsqds"),
    Variant(
        "speculation",
        "with speculation, and executors that stand still for seconds",
        others=(stall,) * 3,
        spark=SPECULATION,
    ),
    Variant(
        "failure",
        "with tasks that fail once after they have written",
        others=(want_failures,) * 2,
    ),
    Variant("commits", "each killed driver loses the last file of `commits`", lose_commits),
    Variant("cores", "each killed driver comes back on other cores", change_cores),
)
CONTROL = Variant(
    "control",
    "commits without transactions",
    lose_commits,
    module="proofs.without_transactions",
    kills=1,
)
