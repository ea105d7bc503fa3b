"""One run of the pipeline on its own cluster, from its start to the final checks.

1. All random choices come from the seed and the variant's name.
2. Each wait has a limit in seconds; beyond it the run fails with the last lines of the logs.
3. A step restarts what it has killed. A process that ends by itself fails the run, except for the
   driver, which ends when a query fails: it is restarted, and counted.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.support.waiting import wait_for

from proofs.outcome import progress
from proofs.spark_cluster_parts import checks, event_log, steps
from proofs.spark_cluster_parts.checkpoint import QUERIES, Checkpoints
from proofs.spark_cluster_parts.checks import CheckResult
from proofs.spark_cluster_parts.driver import PIPELINE, Driver, command_line
from proofs.spark_cluster_parts.failures import Failures
from proofs.spark_cluster_parts.feed import TOPIC, Feed, clicks
from proofs.spark_cluster_parts.programs import last_lines
from proofs.spark_cluster_parts.standalone import StandaloneCluster
from proofs.spark_cluster_parts.variants import FAILURE, KILLS, STALL, Variant
from sparq.options.mistakes import Mistake
from sparq.pipeline.run.processes import LocalCluster

T = TypeVar("T")

POLL_SECONDS = 0.05
SHOW_SECONDS = 0.5
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
        self._busy_at = self._checked_at = self._shown_at = time.monotonic()

    def _driver(self) -> Driver:
        run_dir = self.folder / "run"
        low, high = OFFSETS
        options = dict(self.task.variant.spark)
        if self.failures is not None:
            options |= self.failures.options()
        if STALL in self.task.variant.others:
            options |= event_log.options(self.folder / "events")
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
            found = checks.read(self.data, self.nsq, written, self.clicks.labels)
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
            said = steps.STEPS[name](self)
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
        self._show()

    def _show(self) -> None:
        if time.monotonic() - self._shown_at < SHOW_SECONDS:
            return
        self._shown_at = time.monotonic()
        progress(
            f"{self.task.variant.name}: kills {len(self.kills)} of {self.task.kills}"
            f" · published {self.feed.published:,} of {self.task.count:,}"
            f" · batches {self.checkpoints.batches_done():,}"
        )

    def _missed(self) -> Iterator[str]:
        """Yield what the variant must show but has not."""
        if self.failures is not None:
            self.notes.append(f"{self.failures.count()} tasks failed after they had written")
            for name in set(self.failures.missing()) - {"rejected"}:
                yield f"no task has failed after it had written into {name}"
        if STALL in self.task.variant.others:
            count = event_log.speculative_tasks(self.folder / "events")
            self.notes.append(f"{count} tasks were run a second time beside the first")
            if not count:
                yield "no task was run a second time beside the first"
