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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from tests.support.waiting import wait_for

from proofs.exactly_once import archived, problems
from proofs.outcome import progress
from proofs.spark_cluster_parts.checkpoint import QUERIES, Checkpoints
from proofs.spark_cluster_parts.failing_workers import FAILED, FOLDER
from proofs.spark_cluster_parts.standalone import (
    PARTS,
    PIPELINE,
    TOPIC,
    Driver,
    Program,
    StandaloneCluster,
    command_line,
    is_java,
    last_lines,
)
from proofs.workload import python_path
from sparq.demo.generator import Generated, generate
from sparq.demo.scores import Labels, scores
from sparq.options.mistakes import Mistake
from sparq.pipeline import spam_analysis
from sparq.pipeline.report.audit import Hashes, audit, read_records
from sparq.pipeline.report.figures import newest_findings, scan
from sparq.pipeline.run.processes import LocalCluster
from sparq.pipeline.run.publishing import publish
from sparq.pipeline.storage import TablePlace
from sparq.program.supervised import send

WORKER, DRIVER, NSQD = KINDS = ("worker", "driver", "nsqd")
LOST_COMMIT, OTHER_CORES = "lost commit", "other cores"
STALL, FAILURE = "stall", "failure"

KILLS = (*KINDS, LOST_COMMIT, OTHER_CORES)
"""Steps that kill something; the other steps do not."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    # Also in stages with only one task: the writing stage of a batch often has just one.
    "spark.speculation.task.duration.threshold": "1s",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way.

    Attributes:
        name: its name for `--only`.
        text: a description for people.
        driver: the step that kills the driver.
        others: steps that kill nothing, once for each time they are listed.
        spark: further options of Spark.
    """

    name: str
    text: str
    driver: str = DRIVER
    others: tuple[str, ...] = ()
    spark: dict[str, str] = field(default_factory=dict)

    def steps(self, kills: int, chance: random.Random) -> list[str]:
        """Return the steps of a run, in random order, with `kills` kills of all kinds together."""
        kinds = (self.driver, WORKER, NSQD)
        steps = [kinds[at % len(kinds)] for at in range(kills)]
        steps += self.others
        chance.shuffle(steps)
        return steps


VARIANTS = (
    Variant("kills", "kills of workers, drivers and nsqds"),
    Variant(
        "speculation",
        "with speculation, and executors that stand still for seconds",
        others=(STALL,) * 3,
        spark=SPECULATION,
    ),
    Variant("failure", "with tasks that fail once after they have written", others=(FAILURE,) * 2),
    Variant("commits", "each killed driver loses the last file of `commits`", driver=LOST_COMMIT),
    Variant("cores", "each killed driver comes back on other cores", driver=OTHER_CORES),
)
CONTROL = Variant("control", "commits without transactions", driver=LOST_COMMIT)


STARTED = b'{"Event":"SparkListenerTaskStart"'


def event_log_options(folder: Path) -> dict[str, str]:
    """Return the Spark options with which each application writes a log file to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def speculative_tasks(folder: Path) -> int:
    """Return the number of tasks started a second time because the first attempt was slow."""
    return sum(task["Task Info"]["Speculative"] for task in starts(folder))


def starts(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield every start of a task; an application that was killed may have cut its last line."""
    for path in sorted(folder.iterdir()):
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(STARTED) and line.endswith(b"\n"):
                    yield json.loads(line)


TABLES = ("clicks", "rejected", "minutes", "pages", "sessions", "findings")


class Failures:
    """Determines the tables of which one task fails once.

    Args:
        folder: a new folder that all executors see.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._failed = 0

    def options(self) -> dict[str, str]:
        """Return the Spark options that are needed."""
        return {
            "spark.python.daemon.module": "proofs.spark_cluster_parts.failing_workers",
            "spark.executorEnv.PYTHONPATH": python_path(),
            f"spark.executorEnv.{FOLDER}": str(self._folder),
        }

    def want(self) -> None:
        """For each table, let the next task that has written one of its files fail."""
        self._failed = self.count()
        for name in TABLES:
            (self._folder / f"{name}{FAILED}").unlink(missing_ok=True)
            (self._folder / name).touch()

    def count(self) -> int:
        """Return how many tasks have failed."""
        return self._failed + sum(1 for _ in self._folder.glob(f"*{FAILED}"))

    def missing(self) -> list[str]:
        """Return the tables of which no task has failed since `want` was last called."""
        return [name for name in TABLES if (self._folder / name).exists()]


SLICE = 5_000
"""Number of clicks published together, before the feed checks its limits."""

CLICKS_PER_SECOND = 10_000
MORE = 40
"""`release_more` releases at most one of this many parts of all clicks."""


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
    """

    def __init__(self, lines: Sequence[bytes], nsqds: list[str], folder: Path) -> None:
        super().__init__(name="feed", daemon=True)
        self.published = 0
        self.failure: Exception | None = None
        self._lines = lines
        self._nsqds = nsqds
        self._folder = folder
        self._allowed = 0
        self._ended = False
        self._news = threading.Condition()

    def release(self, share: float) -> None:
        """Let it publish up to this share of all clicks, from 0 to 1."""
        with self._news:
            self._allowed = max(self._allowed, round(share * len(self._lines)))
            self._news.notify()

    def release_more(self) -> None:
        """Let it publish a little more, so that some is left for later steps of a small run."""
        with self._news:
            more = min(SLICE, max(1, len(self._lines) // MORE))
            self._allowed = min(self._allowed + more, len(self._lines))
            self._news.notify()

    @property
    def is_held_back(self) -> bool:
        """Return whether it has published all that it may, and has more."""
        return self._allowed <= self.published < len(self._lines)

    @property
    def is_over(self) -> bool:
        """Return whether all clicks are acknowledged."""
        return self.published == len(self._lines)

    def end(self) -> None:
        """Stop, with the clicks published so far."""
        with self._news:
            self._ended = True
            self._news.notify()

    def written_down(self) -> tuple[Hashes, Hashes]:
        """Return the records that the audit needs."""
        return read_records(self._folder)

    def run(self) -> None:
        """Run the thread."""
        try:
            while not self.is_over and self._may_go_on():
                began = time.monotonic()
                part = self._lines[self.published : min(self.published + SLICE, self._allowed)]
                asyncio.run(publish(part, self._nsqds, TOPIC, self._folder))
                self.published += len(part)
                time.sleep(max(0.0, began + len(part) / CLICKS_PER_SECOND - time.monotonic()))
        except Exception as error:  # the thread that waits for the clicks raises it
            self.failure = error

    def _may_go_on(self) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._ended or self.published < self._allowed)
            return not self._ended


PRECISION, RECALL = 0.95, 0.90
SCORED_CLICKS = 200_000
"""With fewer clicks, so few visitors are planted that a single one decides the score."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Results of the checks.

    Attributes:
        wrong: what does not hold; empty if all does.
        rows: rows of `clicks` and `rejected`.
        distinct: their distinct message ids.
        score: how well the planted visitors were found; None if nothing was read.
    """

    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    distinct: int = 0
    score: dict[str, float] | None = None

    @property
    def twice(self) -> int:
        """Return the number of these rows whose id another row also has."""
        return self.rows - self.distinct


def read_checks(
    data: Path, cluster: LocalCluster, published: tuple[Hashes, Hashes], labels: Labels
) -> CheckResult:
    """Run the audit, and check what else must be true.

    Args:
        data: the data folder.
        cluster: its nsqds, which must be reachable.
        published: the feed's records.
        labels: the visitors that were planted among the clicks.
    """
    place = TablePlace(str(data))
    _, wrong = audit(place, cluster.message_count(TOPIC), *published)
    wrong += problems(data)
    rows, distinct = archived(data)
    sent = len(published[0])
    if distinct < sent:
        wrong.append(f"{distinct:,} ids of {sent:,} acknowledged clicks")
    findings = newest_findings(scan(place, spam_analysis.FINDINGS))
    score = scores(findings.to_dicts(), labels)["all"]
    if sent >= SCORED_CLICKS and (score["precision"] < PRECISION or score["recall"] < RECALL):
        wrong.append(f"precision {score['precision']} and recall {score['recall']} of findings")
    return CheckResult(wrong, rows, distinct, score)


T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a run.

    Attributes:
        variant: how the run is made hard.
        seed: of the clicks and of all random choices.
        count: number of clicks.
        kills: number of kills of all kinds together.
        module: the pipeline, or its replacement.
    """

    variant: Variant
    seed: int
    count: int
    kills: int
    module: str = PIPELINE


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        wrong: what does not hold; empty if all does.
        kills: what was killed.
        notes: what else happened.
        checks: results of the checks of its output.
    """

    wrong: list[str]
    kills: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checks: CheckResult = field(default_factory=CheckResult)


class ClusterRun:
    """A Spark cluster, nsqds, clicks and the pipeline between them.

    Args:
        folder: a new folder for everything.
        task: what to do.
    """

    def __init__(self, folder: Path, task: Task) -> None:
        self.folder, self.task = folder, task
        self.chance = random.Random(f"{task.seed} {task.variant.name}")
        self.data, self.logs = folder / "data", folder / "logs"
        self.data.mkdir(parents=True)
        self.nsq = LocalCluster(self.logs, folder / "nsqds")
        self.spark = StandaloneCluster(folder / "spark")
        self.failures = Failures(folder / "failures") if FAILURE in task.variant.others else None
        self.driver = self._driver()
        nsqds = [member.tcp for member in self.nsq.nsqds]
        self.clicks = clicks(task.count, task.seed)
        self.feed = Feed(self.clicks.lines, nsqds, self.logs)
        self.checkpoints = Checkpoints(self.data / "checkpoint")
        self.kills: list[str] = []
        self.notes: list[str] = []
        self.steps_done: Counter[str] = Counter()
        self._ends = 0
        self._is_finishing = False
        self._busy_at = self._checked_at = time.monotonic()

    def _driver(self) -> Driver:
        run_dir = self.folder / "run"
        low, high = OFFSETS
        options = dict(self.task.variant.spark)
        if self.failures is not None:
            options |= self.failures.options()
        if STALL in self.task.variant.others:
            options |= event_log_options(self.folder / "events")
        offsets = min(max(self.task.count // BATCHES, low), high)
        at = self.spark.url, self.nsq.lookupd.http, self.data, run_dir
        words = command_line(*at, offsets=offsets, spark=options.items())
        return Driver(words, self.folder / "driver", run_dir, self.task.module)

    def go(self) -> Result:
        """Do the whole run; every process that it starts has ended when this returns."""
        found, wrong = CheckResult(), []
        try:
            self._start()
            self._run_steps()
            self._finish()
            written = self.feed.written_down()
            found = read_checks(self.data, self.nsq, written, self.clicks.labels)
            wrong = [*found.wrong, *self._missed()]
        except (AssertionError, OSError, Mistake, subprocess.SubprocessError) as error:
            wrong = [str(error) or repr(error)]
        finally:
            self.stop()
        return Result(wrong, self.kills, self.notes, found)

    def _start(self) -> None:
        self.nsq.start(TOPIC, QUERIES)
        self.spark.start()
        if self.failures is not None:
            self.failures.want()
        self.driver.start()
        self.feed.start()

    def _run_steps(self) -> None:
        """Do one step after another, and keep a share of the clicks for after each."""
        names = self.task.variant.steps(self.task.kills, self.chance)
        for at, name in enumerate(names):
            self.feed.release((at + 1) / (len(names) + 1))
            self.wait_for_driver()
            wanted = self.checkpoints.least_done() + self.chance.choice(BATCHES_BEFORE)
            self.wait("batch that ends", partial(self._has_done, wanted), BATCH_SECONDS)
            said = STEPS[name](self)
            (self.kills if name in KILLS else self.notes).append(said)
            self.steps_done[name] += 1

    def _has_done(self, wanted: int) -> bool:
        return self.checkpoints.least_done() >= wanted or self.is_idle()

    def _finish(self) -> None:
        """Let the pipeline read everything, and end."""
        self.feed.release(1.0)
        self.wait("end of the publishing", lambda: self.feed.is_over, DRAIN_SECONDS)
        self.wait_for_driver()
        self.wait("end of all channels", self.is_drained, DRAIN_SECONDS)
        self._is_finishing = True
        self.driver.finish()
        driver = self.driver.program
        self.wait("end of the driver", lambda: driver.exit_status() == 0, FINISH_SECONDS)
        assert self.driver.stage() == "done", self.told("the driver has not ended")

    def stop(self) -> None:
        """End everything that was started, even if something does not end."""
        with ExitStack() as ends:
            # The last one is ended first.
            for end in (self.nsq.stop, self.spark.stop, self.driver.program.kill, self.feed.end):
                ends.callback(end)

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
        is_busy = self.checkpoints.under_way() or not self.feed.is_held_back
        if is_unknown or is_busy or not self.driver.is_running():
            self._busy_at = now
        self._checked_at = now
        return now - self._busy_at > IDLE_SECONDS

    def is_drained(self) -> bool:
        """Return whether every channel of every nsqd has handled all messages."""
        depths = self.nsq.depths(TOPIC, QUERIES)
        return depths is not None and not any(depths.values())

    def told(self, what: str) -> str:
        """Return a sentence followed by the last lines of all logs."""
        nsqds = [member.log for member in self.nsq.members]
        logs = [*nsqds, *self.spark.logs(), self.driver.program.log]
        return "\n".join([what, *filter(None, map(last_lines, logs))])

    def _watch(self) -> None:
        """Detect what has ended by itself, and show the progress."""
        assert self.feed.failure is None, self.told(f"publishing failed: {self.feed.failure!r}")
        gone = [member.name for member in self.nsq.members if member.has_ended()]
        programs = (self.spark.master, *self.spark.workers)
        gone += [program.name for program in programs if program.exit_status() is not None]
        assert not gone, self.told(f"ended by itself: {', '.join(gone)}")
        status = self.driver.program.exit_status()
        if status is not None and not (self._is_finishing and status == 0):
            self._ends += 1
            most = ENDS_MAX if self.checkpoints.batches_done() else ENDS_EARLY_MAX
            assert self._ends <= most, self.told(f"the driver has ended {self._ends} times")
            self.notes.append(f"the driver ended by itself with status {status}")
            self.driver.program.kill()
            self.driver.start()
        progress(
            f"{self.task.variant.name}: kills {len(self.kills)} of {self.task.kills}"
            f" · published {self.feed.published:,} of {self.task.count:,}"
        )

    def _missed(self) -> Iterator[str]:
        """Yield what the variant must show but has not."""
        if self.failures is not None:
            self.notes.append(f"{self.failures.count()} tasks failed after they had written")
            for name in set(self.failures.missing()) - {"rejected"}:
                yield f"no task has failed after it had written into {name}"
        if STALL in self.task.variant.others:
            count = speculative_tasks(self.folder / "events")
            self.notes.append(f"{count} tasks were run a second time beside the first")
            if not count:
                yield "no task was run a second time beside the first"


DOWN_SECONDS = (0.0, 3.0)
NSQD_SECONDS = (0.0, 3.0)
STALL_SECONDS = (2.0, 5.0)
EXECUTOR_SECONDS = 300.0
SETTLED_SECONDS = 120.0
AGAIN_SECONDS = 600.0
CORES = (2, 1)
"""Each worker's cores after a step, in turn; at the start a worker has one."""


def kill_worker(run: ClusterRun) -> str:
    """kill -9 a worker and its executors in the middle of a batch."""
    run.wait("executor", lambda: workers_with_executors(run), EXECUTOR_SECONDS)
    place = run.wait_for_batch()
    worker = run.chance.choice(workers_with_executors(run) or run.spark.workers)
    count = len(executors_of(worker))
    worker.kill()
    time.sleep(run.chance.uniform(*DOWN_SECONDS))
    run.spark.start_worker(worker)
    run.spark.wait_for_workers()
    return f"{worker.name} and {count} executors {place}"


def kill_driver(run: ClusterRun) -> str:
    """kill -9 the driver, or a part of it, in the middle of a batch."""
    place = run.wait_for_batch()
    part = run.chance.choice(PARTS)
    run.driver.kill(part)
    run.driver.start()
    return f"the driver's {part} {place}"


def kill_nsqd(run: ClusterRun) -> str:
    """kill -9 an nsqd, at a random moment."""
    time.sleep(run.chance.uniform(*NSQD_SECONDS))
    nsqd = run.chance.choice(run.nsq.nsqds)
    assert nsqd.process is not None
    nsqd.process.send_signal(signal.SIGKILL)
    nsqd.process.wait()
    time.sleep(run.chance.uniform(*DOWN_SECONDS))
    run.nsq.restart_dead()
    return f"{nsqd.name} at {run.feed.published:,} clicks"


def lose_commits(run: ClusterRun) -> str:
    """kill -9 the driver between two batches, and delete the last file of `commits`.

    The same state is left by a driver that dies after its sink has written, and before Spark has
    recorded the batch as done.
    """
    query = QUERIES[run.steps_done[LOST_COMMIT] % len(QUERIES)]
    deadline = time.monotonic() + SETTLED_SECONDS
    while True:
        run.wait_for_driver()
        time.sleep(run.chance.uniform(0.0, 0.2))
        run.driver.program.send(signal.SIGSTOP)
        settled = run.checkpoints.settled()
        is_late = time.monotonic() > deadline
        # All three queries, if they are between batches at the same moment, in time.
        if len(settled) == len(QUERIES) or (query in settled and is_late):
            break
        run.driver.program.send(signal.SIGCONT)
        assert time.monotonic() < deadline + SETTLED_SECONDS, run.told(
            "no query is between batches"
        )
    run.driver.kill("group")
    lost = {query: run.checkpoints.forget(query) for query in settled}
    run.driver.start()
    for name, batch in lost.items():
        run.wait(
            f"batch {batch} of {name} again",
            partial(run.checkpoints.is_done, name, batch),
            AGAIN_SECONDS,
        )
    batches = " and ".join(f"batch {batch} of {name}" for name, batch in lost.items())
    return f"the driver, which then did {batches} again"


def change_cores(run: ClusterRun) -> str:
    """kill -9 the driver in the middle of a batch; it restarts on a cluster with other cores."""
    place = run.wait_for_batch()
    part = run.chance.choice(PARTS)
    run.driver.kill(part)
    run.spark.cores = CORES[run.steps_done[OTHER_CORES] % len(CORES)]
    for worker in run.spark.workers:
        worker.kill()
        run.spark.start_worker(worker)
    run.spark.wait_for_workers()
    run.driver.start()
    return f"the driver's {part} {place}, back on {run.spark.cores} cores a worker"


def stall(run: ClusterRun) -> str:
    """Stop a worker's executors for some seconds in the middle of a batch, then resume them."""
    run.wait("executor", lambda: workers_with_executors(run), EXECUTOR_SECONDS)
    place = run.wait_for_batch()
    worker = run.chance.choice(workers_with_executors(run) or run.spark.workers)
    seconds = run.chance.uniform(*STALL_SECONDS)
    stopped = worker.started()
    send(stopped, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        send(stopped, signal.SIGCONT)
    return f"the executors of {worker.name} stood still for {seconds:.1f} s {place}"


def want_failures(run: ClusterRun) -> str:
    """Make the next tasks fail after they have written."""
    assert run.failures is not None
    run.failures.want()
    return "tasks were to fail after they had written"


STEPS: dict[str, Callable[[ClusterRun], str]] = {
    WORKER: kill_worker,
    DRIVER: kill_driver,
    NSQD: kill_nsqd,
    LOST_COMMIT: lose_commits,
    OTHER_CORES: change_cores,
    STALL: stall,
    FAILURE: want_failures,
}


def executors_of(worker: Program) -> list[int]:
    """Return the JVMs that a worker has started."""
    return [pid for pid in worker.started() if is_java(pid)]


def workers_with_executors(run: ClusterRun) -> list[Program]:
    """Return the workers that currently have an executor."""
    return [worker for worker in run.spark.workers if executors_of(worker)]
