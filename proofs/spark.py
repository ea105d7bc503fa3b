"""Whole runs of the pipeline, with kills of nsqds and of the Spark driver: `make spark`.

Each run is `sparq run` with its own clicks. While clicks are published and read, an nsqd is killed
with kill -9 or stopped with SIGTERM, and the Spark driver is killed in the middle of a micro-batch:
after Spark has written down what the batch reads, and before it has written down that it is done.
The seed decides which nsqd is killed and how, which of the driver's processes (its Python, its JVM,
or all of them), and when. The runner restarts what has ended. Then its audit must hold, and all six
tables, counted here once more (`exactly_once`), must have every message exactly once.

The control is a run whose reader does not keep to the batches planned in the checkpoint
(unplanned_reader.py): after a kill it reads to the current end of the log. Its archive
must contain duplicates. That requires a kill during an archive batch while the log still grows: a
control without such a kill is run again, at most three times in all.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proofs import outcome
from proofs.exactly_once import archived, problems
from proofs.outcome import Outcome, Plan, progress
from proofs.spark_cluster_parts.checkpoint import Checkpoints
from proofs.spark_cluster_parts.standalone import DRIVER_PARTS, driver_pids
from proofs.workload import data_folder, python_path
from sparq.pipeline.folders import read_json
from sparq.program.supervised import SupervisedProcess, send

POLL_SECONDS = 0.02
RUN_SECONDS_MAX = 1500
STOP_SECONDS = 60.0
NSQD_KILL_SECONDS = (0.0, 4.0)
BATCHES_BEFORE_KILL = (0, 1, 2, 3, 5)
"""Number of batches, over all queries, that a driver may commit before it is killed."""
# Time from the start of a batch to the kill of its driver: most batches take longer.
BATCH_KILL_SECONDS = (0.0, 0.25)
NSQD_SIGNALS = (signal.SIGKILL, signal.SIGTERM)
"""Both are needed: a clean stop and a kill leave different data on the disk."""
RUNNING = ("publishing", "draining")
CLICKS = 100_000
CONTROL_CLICKS = 40_000
CONTROL_RUNS = 3
NSQD_KILLS, DRIVER_KILLS = 2, 3
SMALL_BATCHES = "proofs.small_batches"
UNPLANNED = "proofs.unplanned_reader"
PATHS = {**os.environ, "PYTHONPATH": python_path()}
PROMISES = ("P14",)


class RunEnded(Exception):
    """The run ended before the awaited event."""


@dataclass(slots=True)
class PipelineRun:
    """One run of the pipeline, observed and disturbed from outside."""

    data: Path
    seed: int
    count: int
    chance: random.Random
    module: str = SMALL_BATCHES
    program: SupervisedProcess = field(init=False)
    kills: list[str] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    began: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Start `sparq run`; its output goes to a file next to its data folder."""
        words = ["run", "--data", self.data, "--seed", self.seed, "--count", self.count]
        command = [sys.executable, "-m", self.module, *map(str, words)]
        self.program = SupervisedProcess("sparq run", command, self.log_path, environment=PATHS)
        self.program.start()

    @property
    def checkpoints(self) -> Checkpoints:
        """Return how far the queries have come."""
        return Checkpoints(self.data / "checkpoint")

    @property
    def log_path(self) -> Path:
        """Return the path of the run's output."""
        return self.data.with_suffix(".log")

    def state(self) -> dict[str, Any]:
        """Return the contents of `run/state.json`; empty until it exists."""
        return read_json(self.data / "run" / "state.json")

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        """Return the condition's value once it is true.

        Raises:
            RunEnded: the run ended first.
            AssertionError: it did not become true in time.
        """
        while not (found := condition()):
            if self.program.has_ended():
                raise RunEnded(what)
            assert time.monotonic() - self.began < RUN_SECONDS_MAX, f"no {what} in time"
            time.sleep(POLL_SECONDS)
        return found

    def kill_nsqd(self) -> None:
        """kill -9 or SIGTERM one nsqd, at a random moment of the publishing."""
        self.wait_for("publishing", lambda: self.state().get("stage") in RUNNING)
        time.sleep(self.chance.uniform(*NSQD_KILL_SECONDS))
        name, pid = self.wait_for("an nsqd", self.living_nsqd)
        self.killed.add(pid)
        how = self.chance.choice(NSQD_SIGNALS)
        send([pid], how)
        self.kills.append(f"{name} ({how.name})")

    def living_nsqd(self) -> tuple[str, int] | None:
        """Return a random nsqd that has not been killed since its start."""
        cluster = self.state()["cluster"]
        nsqds = [(name, cluster[name]["pid"]) for name in sorted(cluster) if "nsqd-" in name]
        living = [(name, pid) for name, pid in nsqds if pid is not None and pid not in self.killed]
        return self.chance.choice(living) if living else None

    def kill_driver(self) -> None:
        """kill -9 the driver, or a part of it, during a batch."""
        driver = self.wait_for("a driver", self.living_driver)
        done = self.checkpoints.done
        wanted = sum(done()) + self.chance.choice(BATCHES_BEFORE_KILL)
        self.wait_for("a commit", lambda: sum(done()) >= wanted or self.is_ending())
        query, batch = self.chance.choice(self.wait_for("a batch", self.checkpoints.under_way))
        time.sleep(self.chance.uniform(*BATCH_KILL_SECONDS))
        if (query, batch) not in self.checkpoints.under_way() or self.living_driver() != driver:
            self.kill_driver()
            return
        part = self.chance.choice(DRIVER_PARTS)
        self.killed.add(driver)
        send(driver_pids(driver, part), signal.SIGKILL)
        self.kills.append(f"spark's {part} in batch {batch} of {query}")

    def is_ending(self) -> bool:
        """Return whether the run has nothing left to read, so that no more batches will come."""
        return self.state().get("stage") not in ("starting", *RUNNING)

    def living_driver(self) -> int | None:
        """Return the driver, once it has a session and unless it was already killed."""
        driver = self.state().get("app_pid")
        told = read_json(self.data / "run" / "app.json").get("pid")
        return driver if driver == told and driver not in self.killed else None

    def end(self) -> int:
        """Wait for the end of the run, and return its exit status."""
        assert self.program.process is not None
        return self.program.process.wait(max(1.0, self.began + RUN_SECONDS_MAX - time.monotonic()))

    def stop(self) -> None:
        """End a run that is still active; it ends its own processes then."""
        self.program.stop(STOP_SECONDS)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one run: what was wrong with it, and its messages in the tables."""

    wrong: list[str]
    kills: int = 0
    logged: int = 0
    found: int = 0
    distinct: int = 0


def attempt(folder: Path, seed: int, count: int, module: str = SMALL_BATCHES) -> Result:
    """Do one run with its kills."""
    folder.mkdir(parents=True, exist_ok=True)
    run = PipelineRun(folder / f"run-{seed}", seed, count, random.Random(f"{seed} kills"), module)
    run.start()
    logged = found = distinct = 0
    try:
        steps = [run.kill_nsqd] * NSQD_KILLS + [run.kill_driver] * DRIVER_KILLS
        run.chance.shuffle(steps)
        with suppress(RunEnded):
            for step in steps:
                step()
        status = run.end()
        wrong = [f"exit status {status}"] if status else []
        if (run.data / "report.json").exists():
            logged = int(json.loads((run.data / "report.json").read_text())["logged"])
            found, distinct = archived(run.data)
            wrong += problems(run.data)
            if found != logged:
                wrong.append(f"{found:,} rows of {logged:,} messages")
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        wrong = [repr(error)]
    finally:
        run.stop()
    seconds = time.monotonic() - run.began
    print(f"seed {seed}: killed {', '.join(run.kills)}; {seconds:.0f} s; {wrong or 'holds'}")
    if wrong and module == SMALL_BATCHES:
        print(run.log_path.read_text(errors="replace")[-4000:])
    return Result(wrong, len(run.kills), logged, found, distinct)


def found_twice(folder: Path, seed: int) -> int:
    """Return the number of duplicate rows in the first control run that has any."""
    for number in range(CONTROL_RUNS):
        unplanned = attempt(folder, seed + number, CONTROL_CLICKS, UNPLANNED)
        if again := unplanned.found - unplanned.distinct:
            return again
    return 0


def prove(plan: Plan) -> Outcome:
    """Do runs until enough processes have been killed, then the control."""
    with data_folder(plan.keep) as scratch:
        folder = scratch.resolve()
        results: list[Result] = []
        for _ in range(plan.count):
            kills = sum(result.kills for result in results)
            if kills >= plan.count:
                break
            progress(f"{kills} kills")
            results.append(attempt(folder, plan.seed + len(results), CLICKS))
            if results[-1].wrong:
                break
        held = not any(result.wrong for result in results)
        control = ""
        if plan.control:
            again = found_twice(folder / "control", plan.seed)
            control = f"with a reader that does not keep to the checkpoint: rows twice {again:,}"
            held = held and again > 0
    figures = (
        f"kills {sum(result.kills for result in results)} · "
        f"logged {sum(result.logged for result in results):,} · "
        f"found {sum(result.found for result in results):,} · "
        f"distinct {sum(result.distinct for result in results):,}"
    )
    return Outcome(PROMISES, figures, held, control)


if __name__ == "__main__":
    sys.exit(outcome.run("spark", prove, count=10, of="processes killed"))
