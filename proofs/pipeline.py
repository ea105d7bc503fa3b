"""Whole runs of the pipeline, an nsqd and the Spark driver killed in each: `make proof-pipeline`.

Each run is `sparq run` on clicks of its own. While clicks are published and read, one nsqd is
killed with kill -9, and the Spark driver in the middle of a micro-batch: Spark has written down
what the batch shall read, and not yet that it has read it. Which nsqd, which of the driver's
processes (its Python, its JVM, or all of them) and when, is chance, from the seed. The runner
starts again what has died; then its audit must hold, and the archive, counted here once more, must
have every message once.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

QUERIES = ("archive", "metrics", "spam_analysis")
POLL_SECONDS = 0.02
RUN_SECONDS_MAX = 600
NSQD_KILL_SECONDS = (0.0, 4.0)
# How long after the beginning of a batch its driver is killed: most batches take longer.
BATCH_KILL_SECONDS = (0.0, 0.25)
DRIVER_PARTS = ("python", "jvm", "group")
RUNNING = ("publishing", "draining")


@dataclass(slots=True)
class PipelineRun:
    """One run of the pipeline, as seen and hurt from outside."""

    data: Path
    seed: int
    count: int
    chance: random.Random
    process: subprocess.Popen[bytes] = field(init=False)
    kills: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """`sparq run`, with what it prints in a file beside its data."""
        words = ["run", "--data", self.data, "--seed", self.seed, "--count", self.count]
        command = [sys.executable, "-m", "sparq.cli", *map(str, words)]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def log_path(self) -> Path:
        """What the run prints."""
        return self.data.with_suffix(".log")

    def state(self) -> dict[str, Any]:
        """What `run/state.json` says; empty before it is there."""
        try:
            return dict(json.loads((self.data / "run" / "state.json").read_text()))
        except (OSError, ValueError):
            return {}

    def wait_for(self, what: str, condition: Callable[[], Any]) -> Any:
        """The condition's value once it has one; the run's end or its deadline is an error."""
        while not (found := condition()):
            assert self.process.poll() is None, f"the run ended before {what}"
            assert time.monotonic() - self.began < RUN_SECONDS_MAX, f"no {what} in time"
            time.sleep(POLL_SECONDS)
        return found

    def kill_nsqd(self) -> None:
        """kill -9 of one nsqd, at some moment of the publishing."""
        self.wait_for("publishing", lambda: self.state().get("stage") in RUNNING)
        time.sleep(self.chance.uniform(*NSQD_KILL_SECONDS))
        cluster = self.state()["cluster"]
        name = self.chance.choice(sorted(name for name in cluster if name.startswith("nsqd-")))
        os.kill(cluster[name]["pid"], signal.SIGKILL)
        self.kills.append(name)

    def kill_driver(self) -> None:
        """kill -9 of the driver, or a part of it, while a batch is under way."""
        query, batch = self.wait_for("a batch", self.batch_under_way)
        time.sleep(self.chance.uniform(*BATCH_KILL_SECONDS))
        if (query, batch) not in self.batches_under_way():
            self.kill_driver()
            return
        part = self.chance.choice(DRIVER_PARTS)
        driver = self.state()["app_pid"]
        for pid in driver_pids(driver, part):
            os.kill(pid, signal.SIGKILL)
        self.kills.append(f"spark's {part} in batch {batch} of {query}")

    def batch_under_way(self) -> tuple[str, int] | None:
        """A batch that has begun and not ended, any of them by chance."""
        found = sorted(self.batches_under_way())
        return self.chance.choice(found) if found else None

    def batches_under_way(self) -> set[tuple[str, int]]:
        """(query, batch) of what Spark has planned and not committed."""
        places = {query: self.data / "checkpoint" / query for query in QUERIES}
        return {
            (query, batch)
            for query, place in places.items()
            for batch in numbers(place / "offsets") - numbers(place / "commits")
        }

    def end(self) -> int:
        """Wait for the run's end; its exit status."""
        return self.process.wait(max(1.0, self.began + RUN_SECONDS_MAX - time.monotonic()))

    def stop(self) -> None:
        """End a run that is still going, as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def complaints(self) -> Iterator[str]:
        """What is wrong with how the run came out; nothing is as it must be."""
        report = json.loads((self.data / "report.json").read_text())
        rows, ids = archived(self.data / "archive")
        if not report["exactly_once"]:
            yield "the audit does not hold"
        if not rows == ids == report["archived"] == report["distinct"]:
            yield f"archive: {rows:,} rows, {ids:,} ids, but {report['archived']:,} reported"
        if rows + report["rejected"] < report["published"]:
            yield f"archive: {rows:,} rows of {report['published']:,} published"
        if report["metrics_clicks"] + report["late"] != rows:
            yield f"metrics: {report['metrics_clicks']:,} + {report['late']:,} late, {rows:,} rows"


def numbers(folder: Path) -> set[int]:
    """The batches that have a file in a folder of Spark's checkpoint."""
    return {int(path.name) for path in folder.glob("*") if path.name.isdigit()}


def archived(folder: Path) -> tuple[int, int]:
    """Rows and distinct message ids of the archive, read without Spark.

    Files count that the sink's own log names; those of a killed batch lie about and do not.
    """
    names: set[str] = set()
    for entry in (folder / "_spark_metadata").glob("[0-9]*"):
        for line in entry.read_text().splitlines()[1:]:
            names.add(unquote(urlsplit(json.loads(line)["path"]).path))
    if not names:
        return 0, 0
    found = [pq.read_table(name, columns=["id"], partitioning=None)["id"] for name in names]
    ids = pa.chunked_array([chunk for column in found for chunk in column.chunks])
    return len(ids), len(ids.unique())


def driver_pids(driver: int, part: str) -> list[int]:
    """The processes of this part of the driver; its Python is the first of its session."""
    if part == "python":
        return [driver]
    session = [pid for pid in processes() if session_of(pid) == driver]
    return [pid for pid in session if part == "group" or command_of(pid) == "java"]


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def prove(folder: Path, seed: int, count: int) -> list[str]:
    """One run with its kills; what was wrong with it."""
    run = PipelineRun(folder / f"run-{seed}", seed, count, random.Random(f"{seed} kills"))
    run.start()
    try:
        steps = [run.kill_nsqd, run.kill_driver]
        run.chance.shuffle(steps)
        for step in steps:
            step()
        status = run.end()
        wrong = list(run.complaints()) if status == 0 else [f"exit status {status}"]
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        wrong = [repr(error)]
    finally:
        run.stop()
    seconds = time.monotonic() - run.began
    print(f"seed {seed}: killed {', '.join(run.kills)}; {seconds:.0f} s; {wrong or 'holds'}")
    if wrong:
        print(run.log_path.read_text(errors="replace")[-4000:])
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """The runs; the exit status says whether every audit held."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--count", type=int, default=100_000, help="clicks of one run")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16))
    parser.add_argument("--keep", type=Path, help="keep what the runs write in this folder")
    options = parser.parse_args(arguments)
    print(f"repeat with: make proof-pipeline N={options.runs} SEED={options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sparq-proof-") as scratch:
        folder = (options.keep or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        seeds = range(options.seed, options.seed + options.runs)
        failed = [seed for seed in seeds if prove(folder, seed, options.count)]
    print(f"runs {options.runs} · audits held {options.runs - len(failed)} · failed {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
