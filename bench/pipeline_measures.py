"""The measures of the pipeline's bench that need the application: one round of each.

1. sustained: everything is published before the application starts. Time is measured from the
   moment when each query has read its first batch, since `make_run` measures the start.
2. memory: on a standalone cluster, so that the driver's JVM holds no state of a query. The driver
   is the session of `sparq pipeline`: its Python, its JVM and their Python processes.
3. state: a batch of 5,000 clicks is one MPUB to one nsqd, and so one batch of Spark. Its time is
   the time between Spark's offset file and Spark's commit file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import polars
import pyarrow as pa
from deltalake import DeltaTable, Transaction
from proofs.spark_parts.standalone import StandaloneCluster

from bench.measure import memory_mib
from bench.pipeline_clicks import Crowd, lines_of, publish_at_once
from bench.pipeline_output import batch_times, first_archived
from bench.pipeline_processes import (
    POLL_SECONDS,
    BenchError,
    java_of,
    live_heap_mib,
)
from bench.pipeline_running import LOG_CHARACTERS, QUERIES, Running, note
from sparq.demo.generator import DAY
from sparq.pipeline import maintenance
from sparq.pipeline.enrich import USUAL
from sparq.pipeline.reading.reader import ClickReader
from sparq.pipeline.storage import TablePlace
from sparq.pipeline.tables import (
    Table,
    files_of,
    opened,
    schema_of,
    transact,
    write_files,
)
from sparq.program.supervised import SupervisedProcess, members_of

RUN_SECONDS = 1_800.0
END_SECONDS = 60.0
"""`sparq run` ends its own processes, one after the other."""

MEMORY_FLAGS = ("--driver-memory", "1g", "--executor-memory", "2g")
LOOPBACK_FLAGS = (
    *("--spark", "spark.driver.host=127.0.0.1"),
    *("--spark", "spark.driver.bindAddress=127.0.0.1"),
)
MEMORY_PER_SECOND = 5_000
OPEN_CLICKS, OPEN_PER_SECOND = 2, 2_500
"""Clicks of each open visitor before the probes, and their rate: no visit is over by then."""

WORKERS_BATCH = 10_000
"""Rows that Spark passes to a Python worker at a time."""

DAYS_SCHEMA = pa.schema([("time", pa.timestamp("us", "UTC")), ("clicks", pa.int64())])
STATE_QUERY = "spam_analysis"
PROBE_CLICKS = 5_000


class Rates(NamedTuple):
    """Clicks per second of queries that run at the same time.

    Attributes:
        sustained: from the first batch of each query on.
        whole: from the start of the application on.
    """

    sustained: float
    whole: float


def parse_us(bodies: Iterable[bytes], size: int) -> float:
    """Read `size` messages in this process, as a worker does; the CPU time of each in us."""
    reader, rest = ClickReader(USUAL), iter(bodies)
    batches = [
        pa.array(list(islice(rest, WORKERS_BATCH)), pa.binary())
        for _ in range(0, size, WORKERS_BATCH)
    ]
    reader.read(batches[0])  # not counted: patterns are compiled
    begun = time.process_time()
    for batch in batches:
        reader.read(batch)
    return (time.process_time() - begun) / size * 1e6


class OpenedTable(NamedTuple):
    """The seconds of opening a table and counting its rows, and its files that count."""

    seconds: float
    files: int


def opened_table(folder: Path, batches: int) -> OpenedTable:
    """Write one small file a batch into a table, with its maintenance, and open the table.

    The clock goes on by a second with each batch. Merges run in this process, without Spark.
    """
    place, definition = TablePlace(str(folder)), Table("day", DAYS_SCHEMA, "time")
    table, now_s = opened(place, definition), time.time()
    rows = pa.table({"time": [DAY] * 10, "clicks": range(10)}, schema=DAYS_SCHEMA)
    for number in range(batches):
        written = write_files([{"day": rows}], {"day": (definition, place)}, f"bench-{number}-")
        added = [row for one in written for row in one.to_pylist()]
        transact(table, Transaction("bench", number), added)
        if number % maintenance.CHECK_S == 0:
            _merge_due(place, table, now_s + number)
    begun = time.perf_counter()
    found = place.table()
    count = polars.scan_delta(str(folder)).select(polars.len()).collect().item()
    took = time.perf_counter() - begun
    if count != batches * len(rows):
        raise BenchError(f"the table has {count:,} rows after {batches:,} batches")
    return OpenedTable(took, len(files_of(found)))


def _merge_due(place: TablePlace, table: DeltaTable, now_s: float) -> None:
    """One merge, as `Maintenance.between_batches` has it done by an executor."""
    if chosen := maintenance.due(files_of(table), maintenance.MERGE_BYTES, now_s):
        made = maintenance.rewrite(place, schema_of(table), [one.path for one in chosen])
        maintenance.replace_files(table, chosen, made, data_change=False)


def sustained(folder: Path, clicks: Path, size: int, queries: Sequence[str] = QUERIES) -> Rates:
    """Publish the lines of a file to two nsqds, then let the queries read them.

    The sustained rate counts the clicks that are left once each query has read its first batch, as
    the mean over the queries. If none is left, it is the whole rate.
    """
    with Running(folder, queries, nsqds=2) as running:
        running.publish(lines_of(clicks))
        running.start()
        started = time.perf_counter()
        left = running.wait(lambda depths: max(depths.values()) < size)
        begun = time.perf_counter()
        note(f"each query has taken its first batch, {begun - started:.1f} s after the start")
        ended = running.drain()
    whole = size / (ended - started)
    if not any(left.values()):
        return Rates(whole, whole)
    return Rates(sum(left.values()) / len(queries) / (ended - begun), whole)


class RunTimes(NamedTuple):
    """Seconds from the start of `sparq run` to its end and to the first click archived."""

    report: float
    first: float


def make_run(folder: Path, size: int, clicks: Path | None = None) -> RunTimes:
    """`sparq run` over the lines of a file, or over clicks that it generates.

    Raises:
        BenchError: it fails, or its audit does not hold.
    """
    folder.mkdir(parents=True)
    data, text = folder / "data", folder / "run.log"
    command = [sys.executable, "-m", "sparq.cli", "run", "--data", str(data)]
    command += ["--clicks", str(clicks)] if clicks else ["--count", str(size), "--seed", "1"]
    begun, first = time.time(), None
    note(f"sparq run starts with {size:,} clicks")
    program = SupervisedProcess("sparq run", command, text)
    program.start()
    try:
        while not program.has_ended():
            first = first or first_archived(data / "clicks")
            if time.time() - begun > RUN_SECONDS:
                raise BenchError(f"sparq run did not end in {RUN_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        took = time.time() - begun
    finally:
        status = program.stop(END_SECONDS)
    first = first or first_archived(data / "clicks")
    if status or first is None:
        written = text.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
        raise BenchError(f"sparq run ended with status {status}:\n{written}")
    return RunTimes(took, first - begun)


class DriverMemory(NamedTuple):
    """The driver's memory in MiB.

    Attributes:
        peak: the sum of its processes' peaks of resident memory.
        java_live: the live objects in its JVM's heap after a full collection.
        python: the resident memory of its Python processes at the end.
    """

    peak: float
    java_live: float
    python: float


def memory(folder: Path, size: int, visitors: int) -> DriverMemory:
    """Measure the driver's memory after the three queries have read clicks of many visitors."""
    spark = StandaloneCluster(folder / "cluster", cores=2, workers=1)
    flags = ("--master", spark.url, *MEMORY_FLAGS, *LOOPBACK_FLAGS)
    with ExitStack() as stack:
        stack.callback(spark.stop)
        spark.start()
        running = stack.enter_context(Running(folder / "pipeline", nsqds=2, flags=flags))
        running.publish(Crowd(visitors, MEMORY_PER_SECOND).lines(size))
        running.start()
        running.drain()
        note("every click is taken: looking at the driver's memory")
        return driver_memory(running.application.pid)


def driver_memory(pid: int) -> DriverMemory:
    """Measure a driver, given the process id of its Python."""
    pids = members_of(pid)
    java = java_of(pids)
    peak = sum(memory_mib(each, "VmHWM") for each in pids)
    python = sum(memory_mib(each) for each in pids if each != java)
    return DriverMemory(peak, live_heap_mib(java), python)


def batch_seconds(folder: Path, visitors: int, warm_up: int, probes: int) -> list[float]:
    """Measure the times of batches of PROBE_CLICKS clicks while all visits are open."""
    crowd, first = Crowd(visitors, OPEN_PER_SECOND), OPEN_CLICKS * visitors
    with Running(folder, queries=(STATE_QUERY,)) as running:
        running.publish(crowd.lines(first))
        running.start()
        running.drain()
        note(f"{visitors:,} visitors are open")
        took = []
        for number in range(1, warm_up + probes + 1):
            took.append(_probe(running, list(crowd.lines(PROBE_CLICKS, first))))
            note(f"batch {number} of {warm_up + probes} ({warm_up} to warm up): {took[-1]:.2f} s")
            first += PROBE_CLICKS
    return took[warm_up:]


def _probe(running: Running, bodies: list[bytes]) -> float:
    """Publish clicks; return the time of the batch that reads them."""
    checkpoint = running.data / "checkpoint" / STATE_QUERY
    last = max(batch_times(checkpoint), default=-1)
    publish_at_once(bodies, running.nsqds[0])
    running.drain()
    times = [
        batch.seconds
        for number, batch in batch_times(checkpoint).items()
        if number > last and batch.has_rows
    ]
    if not times:
        raise BenchError(f"the checkpoint {checkpoint} has no batch of the clicks just published")
    return sum(times)
