"""The part `pipeline` of the bench: the clicks pipeline and plain Spark on the same clicks.

- parse      CPU time of reading a click, without Spark: a combined line (of `--log PATH`, a real
             site's log, if it is given), a JSON click, and one with escapes and a float time
- sustained  three batch jobs of plain Spark from Parquet (the reference, `pipeline_reference`) and
             the three queries together, draining the same clicks from two nsqds, alternating
- alone      each query by itself, draining clicks from two nsqds
- run        `sparq run` from its start to its report, and to its first archived click
- long       `sparq run` on more clicks and the reference on the same, alternating; with `--log`
             also GoAccess on as many lines of that log, if the program is there
- table      opening a table that was written at a batch a second
- memory     the driver's memory with many clicks and visitors and with a tenth of both, alternating
- state      a batch of 5,000 clicks with 500,000 open visitors and with 10,000, alternating
- latency    from publishing a click to its minute and to its finding, at 1,000 clicks per second

    make bench ARGS="--parts pipeline --log access.log --json figures.json"
    make bench ARGS="--parts pipeline --measures parse,state --clicks 50000 --rounds 1"

1. Everything runs on two cores of the machine, including nsqds and publishers.
2. `--measures` selects measures by name. `--clicks N` sets the number of clicks of each measure,
   and visitors and seconds in proportion: to check that everything works, not for the targets.
3. Each step is logged to standard error with the time (UTC). The figures of a measure and its
   targets are printed when it ends, and a table of all targets, with the commit, at the end.
4. If a measure fails, its error is printed and the others still run; the exit status is then 1.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from proofs.__main__ import commit, today

from bench import pipeline_clicks, pipeline_measures
from bench import pipeline_reference as reference
from bench import pipeline_targets as targets
from bench.pipeline_latency import PER_SECOND, latency, quantile
from bench.pipeline_processes import BenchError
from bench.pipeline_running import note
from bench.pipeline_targets import Figure
from bench.spark_reader import session
from sparq.client import RemoteError, SparqClientError

PARSED, SUSTAINED, RUN, MEMORY = 300_000, 2_000_000, 200_000, 5_000_000
LONG = (500_000, 2_000_000)
ALONE = 1_000_000
BATCHES = 20_000
"""Batches of the measure `table`: one a second makes as many in five and a half hours."""
CLICKS_A_VISITOR = 10
TENTH = 10
OPEN_VISITORS, FEW_PART = 500_000, 50
LATENCY_CLICKS, LATENCY_SECONDS_MIN = 120 * PER_SECOND, 2.0
WARM_UP_PROBES, PROBES, SMALL_PROBES = 15, 25, 2
LEAST = 500
ROUNDS, MEMORY_ROUNDS = 3, 2
WARM_UP_CLICKS = 100_000
CORES = 2
JVM_SECONDS = 60.0
# Settings that an engineer would choose for three batch jobs on two cores.
BATCH_SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "8"}


@dataclass
class Bench:
    """One run of the part.

    Attributes:
        folder: the folder for all files.
        rounds: number of rounds of each measure.
        clicks: number of clicks of each measure; None: the measure's default.
        log: a log of a real site, for `parse` and `long`; None: not given.
        figures: the figures measured so far, by name.
    """

    folder: Path
    rounds: int
    clicks: int | None = None
    log: Path | None = None
    figures: dict[str, Figure] = field(default_factory=dict)
    spark: Any = None
    _works: int = 0

    def each_round(self, most: int | None = None) -> Iterator[int]:
        """The numbers of a measure's rounds, from 1; each is logged. `most`: maximum of rounds."""
        rounds = self.rounds if most is None else min(self.rounds, most)
        for number in range(1, rounds + 1):
            note(f"round {number} of {rounds}")
            yield number

    def sized(self, size: int) -> int:
        """The number of clicks of a measure whose default is `size`."""
        return size if self.clicks is None else max(LEAST, self.clicks)

    def note(self, name: str, unit: str, value: float) -> None:
        """Add one round of a figure, and log it."""
        self.figures.setdefault(name, Figure(name, unit)).rounds.append(value)
        note(f"{name}: {value:,.2f} {unit}")

    def ratio(self, name: str, over: str, under: str) -> None:
        """Add a figure that is the ratio of two others' medians."""
        self.note(name, "", self.figures[over].value / self.figures[under].value)

    @contextmanager
    def work(self, name: str) -> Iterator[Path]:
        """The path of a new folder, which is deleted afterwards: a round leaves gigabytes."""
        self._works += 1
        folder = self.folder / f"{name}-{self._works}"
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def day(self, size: int) -> Path:
        """A file with a generated day of clicks."""
        note(f"generating {size:,} clicks")
        return pipeline_clicks.day_file(self.folder / "days", size)

    def plain_spark(self) -> Any:
        """A Spark session in this process, with BATCH_SETTINGS."""
        if self.spark is None:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            self.folder.mkdir(parents=True, exist_ok=True)
            self.spark = session(self.folder)
            for name, value in BATCH_SETTINGS.items():
                self.spark.conf.set(name, value)
        return self.spark

    def stop_spark(self) -> None:
        """End the session and its JVM, to free their memory for the next step."""
        spark, self.spark = self.spark, None
        if spark is not None:
            context = type(spark.sparkContext)
            gateway = spark.sparkContext._gateway
            spark.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()  # this ends the JVM
            gateway.proc.wait(JVM_SECONDS)
            context._gateway = context._jvm = None  # the next session starts another JVM


def parse(bench: Bench) -> None:
    """The CPU time of reading a click: a combined line, a JSON click, a JSON click with escapes."""
    size = bench.sized(PARSED)
    lines = list(pipeline_clicks.lines_of(bench.day(size) if bench.log is None else bench.log))
    if not lines:
        raise BenchError(f"--log={bench.log} has no lines")
    combined = [one for one in lines if not one.startswith(b"{")]
    kinds = {
        targets.COMBINED: combined,
        targets.JSON: [pipeline_clicks.as_json(number) for number in range(size)],
        targets.WORST_JSON: [pipeline_clicks.as_json(number, odd=True) for number in range(size)],
    }
    for _ in bench.each_round():
        for name, some in kinds.items():
            bench.note(name, "us", pipeline_measures.parse_us(islice(cycle(some), size), size))


def sustained(bench: Bench) -> None:
    """Plain Spark's three jobs and the three queries together, alternating."""
    size = bench.sized(SUSTAINED)
    lines = bench.day(size)
    with parquet(bench, lines, size) as (few, files):
        for _ in bench.each_round():
            _reference_round(bench, few, files, size)
            with bench.work("sustained") as folder:
                rates = pipeline_measures.sustained(folder, lines, size)
            bench.note(targets.SUSTAINED, "clicks/s", rates.sustained)
            bench.note("three queries side by side, from their start", "clicks/s", rates.whole)
    bench.ratio(targets.SUSTAINED_RATIO, targets.SUSTAINED, targets.REFERENCE)


@contextmanager
def parquet(bench: Bench, lines: Path, size: int) -> Iterator[tuple[Path, Path]]:
    """Folders with clicks of the file as Parquet: a few to warm up, and all."""
    with bench.work("few") as few, bench.work("clicks") as files:
        for count, to in ((min(size, WARM_UP_CLICKS), few), (size, files)):
            pipeline_clicks.write_parquet(pipeline_clicks.lines_of(lines), count, to)
        yield few, files


def _reference_round(bench: Bench, few: Path, files: Path, size: int, of: str = "") -> None:
    """Time the three jobs of plain Spark, after a warm-up with a few clicks."""
    with bench.work("reference") as folder:
        spark = bench.plain_spark()
        note("reference: warming up")
        reference.seconds(spark, few, folder / "few")
        note(f"reference: three jobs over {size:,} clicks")
        took = reference.seconds(spark, files, folder / "all")
        bench.stop_spark()
    for job, seconds in took.items():
        bench.note(f"reference, {job}{of}", "clicks/s", size / seconds)
    bench.note(f"{targets.REFERENCE}{of}", "clicks/s", size / sum(took.values()))


def alone(bench: Bench) -> None:
    """Each query by itself."""
    size = bench.sized(ALONE)
    lines = bench.day(size)
    for _ in bench.each_round():
        for query, name in targets.ALONE.items():
            with bench.work("alone") as folder:
                rates = pipeline_measures.sustained(folder, lines, size, [query])
            bench.note(name, "clicks/s", rates.sustained)


def long(bench: Bench) -> None:
    """Whole runs on more clicks, against the reference; GoAccess on as many lines of `--log`."""
    for usual in LONG:
        size = bench.sized(usual)
        lines = bench.day(size)
        name = targets.LONG.format(usual)
        with parquet(bench, lines, size) as (few, files):
            for _ in bench.each_round():
                _reference_round(bench, few, files, size, f", {usual:,} clicks")
                with bench.work("run") as folder:
                    took = pipeline_measures.make_run(folder, size, lines)
                bench.note(name, "clicks/s", size / took.report)
                if bench.log is not None and (seconds := _goaccess_seconds(bench, size)):
                    bench.note(f"GoAccess, {usual:,} lines of --log", "lines/s", size / seconds)
        bench.ratio(
            targets.LONG_RATIO.format(usual), name, f"{targets.REFERENCE}, {usual:,} clicks"
        )


def _goaccess_seconds(bench: Bench, size: int) -> float | None:
    """The seconds in which GoAccess makes its report; None without the program."""
    program = shutil.which("goaccess")
    if program is None or bench.log is None:
        return None
    with bench.work("goaccess") as folder:
        folder.mkdir(parents=True)
        log = folder / "access.log"
        with log.open("wb") as file:
            lines = islice(cycle(list(pipeline_clicks.lines_of(bench.log))), size)
            file.writelines(one + b"\n" for one in lines)
        words = [program, str(log), "--log-format=COMBINED", "-o", str(folder / "report.html")]
        begun = time.perf_counter()
        subprocess.run([*words, "--no-progress"], check=True, capture_output=True)
        return time.perf_counter() - begun


def table(bench: Bench) -> None:
    """Opening and counting a table that was written at a batch a second."""
    batches = min(BATCHES, bench.sized(BATCHES))
    for _ in bench.each_round(1):
        with bench.work("table") as folder:
            found = pipeline_measures.opened_table(folder, batches)
        bench.note(targets.OPENED, "s", found.seconds)
        bench.note(f"files that count of it, after {batches:,} batches", "", found.files)


def run(bench: Bench) -> None:
    """`sparq run` from its start to its first archived click and to its report."""
    for _ in bench.each_round():
        with bench.work("run") as folder:
            took = pipeline_measures.make_run(folder, bench.sized(RUN))
        bench.note(targets.RUN, "s", took.report)
        bench.note(targets.FIRST, "s", took.first)


def memory(bench: Bench) -> None:
    """The driver's memory with a tenth of the clicks and with all of them, alternating."""
    size = bench.sized(MEMORY)
    few, many = max(LEAST, size // TENTH), size
    peak, live = "driver's peak memory, {:,} clicks", "driver's live heap and Python, {:,} clicks"
    for _ in bench.each_round(MEMORY_ROUNDS):
        for clicks in (few, many):
            with bench.work("memory") as folder:
                found = pipeline_measures.memory(folder, clicks, clicks // CLICKS_A_VISITOR)
            bench.note(peak.format(clicks), "MiB", found.peak)
            bench.note(live.format(clicks), "MiB", found.java_live + found.python)
            bench.note(f"of it the JVM's live heap, {clicks:,} clicks", "MiB", found.java_live)
    bench.ratio(targets.PEAK_RATIO, peak.format(many), peak.format(few))
    bench.ratio(targets.LIVE_RATIO, live.format(many), live.format(few))


def state(bench: Bench) -> None:
    """The time of a batch with few open visitors and with many, alternating."""
    clicks = bench.sized(OPEN_VISITORS * pipeline_measures.OPEN_CLICKS)
    many = clicks // pipeline_measures.OPEN_CLICKS
    few = max(1, many // FEW_PART)
    name = "batch of 5,000 clicks, {:,} open visitors"
    counts = (WARM_UP_PROBES, PROBES) if bench.clicks is None else (SMALL_PROBES, SMALL_PROBES)
    for _ in bench.each_round():
        for visitors in (few, many):
            with bench.work("state") as folder:
                took = pipeline_measures.batch_seconds(folder, visitors, *counts)
            bench.note(name.format(visitors), "s", statistics.median(took))
    bench.ratio(targets.STATE_RATIO, name.format(many), name.format(few))


def click_latency(bench: Bench) -> None:
    """The time from publishing a click to its minute and to its finding."""
    seconds = max(LATENCY_SECONDS_MIN, bench.sized(LATENCY_CLICKS) / PER_SECOND)
    for _ in bench.each_round():
        with bench.work("latency") as folder:
            found = latency(folder, seconds)
        for name, times, part in (
            (targets.MINUTE_50, found.minutes, 0.5),
            (targets.MINUTE_99, found.minutes, 0.99),
            (targets.FINDING_50, found.findings, 0.5),
            (targets.FINDING_99, found.findings, 0.99),
        ):
            bench.note(name, "s", quantile(times, part))


MEASURES: dict[str, Callable[[Bench], None]] = {
    "parse": parse,
    "sustained": sustained,
    "alone": alone,
    "run": run,
    "long": long,
    "table": table,
    "memory": memory,
    "state": state,
    "latency": click_latency,
}


def measured(bench: Bench, names: Sequence[str]) -> Iterator[tuple[str, list[Figure], str]]:
    """For each selected measure: its name, its figures, and its error ("" if it succeeded)."""
    for name, measure in MEASURES.items():
        if name in names:
            before, failure = set(bench.figures), ""
            note(f"{name} begins")
            try:
                measure(bench)
            except (BenchError, SparqClientError, RemoteError, AssertionError, OSError) as error:
                failure = f"{type(error).__name__}: {error}"
            finally:
                bench.stop_spark()
            yield name, [bench.figures[new] for new in bench.figures if new not in before], failure


def main(
    folder: Path,
    rounds: int = ROUNDS,
    clicks: int | None = None,
    names: Sequence[str] = tuple(MEASURES),
    to: Path | None = None,
    *,
    log: Path | None = None,
) -> int:
    """Take the measures, print each when it ends, and then all targets.

    Args:
        folder: the folder for all files.
        rounds: number of rounds of each measure; memory has at most two.
        clicks: number of clicks of each measure; None: the measure's default.
        names: the selected measures.
        to: a JSON file, rewritten after each measure.
        log: a log of a real site, for `parse` and `long`.

    Returns:
        The number of measures that failed.
    """
    facts = conditions() | {"rounds": rounds, "clicks": clicks}
    bench, failed = Bench(folder, rounds, clicks, log), {}
    with two_cores() as cores:
        facts["cores"] = cores
        known = [f"{key} {value}" for key, value in facts.items() if value is not None]
        print(f"the pipeline: {', '.join(known)}")
        print(targets.HEADER, flush=True)
        for name, figures, failure in measured(bench, names):
            lines = [figure.line() for figure in figures] + targets.verdicts(figures)
            print(*lines, sep="\n", flush=True)
            if failure:
                failed[name] = failure
                print(f"{name} FAILED: {failure}", flush=True)
            if to:
                found = facts | targets.as_json(list(bench.figures.values())) | {"failed": failed}
                to.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if table := targets.report(list(bench.figures.values()), facts["commit"]):
        print(table, flush=True)
    return len(failed)


@contextmanager
def two_cores() -> Iterator[int]:
    """Run this process and its children on at most two cores; yields their number."""
    allowed = os.sched_getaffinity(0)
    chosen = sorted(allowed)[:CORES]
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, allowed)


def conditions() -> dict[str, Any]:
    """The commit (with + if files differ from it), time, load, and Python's version."""
    return {
        "commit": commit(),
        "time": today(),
        "load": round(os.getloadavg()[0], 2),
        "Python": sys.version.split()[0],
    }
