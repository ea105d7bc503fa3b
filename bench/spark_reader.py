"""Compares reading a topic into Spark with Spark reading the same rows from Parquet.

    python -m bench.spark_reader [--rows 2000000] [--rounds 5]

nsqd stores the rows, published as MPUBs of 200 messages of 200 bytes. They are copied once to
Parquet, with all columns. Then both are read into the sink `noop`, alternating (A B A B), in one
session of two tasks; the first read of each is not counted. nsqd shares the machine's cores with
Spark, so its CPU time counts too: "us" is the CPU time per row of Spark, its Python workers and
nsqd. A ratio of 1.0 means as fast as Parquet files.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.servers import spawn_nsqd

from sparq.client.blocking.connection import BlockingConnection
from sparq.pipeline.java import ensure_java
from sparq.pipeline.session import use_this_python
from sparq.protocol import commands

TOPIC = "bench"
BODY_SIZE = 200
MPUB_MESSAGES = 200
GOAL = 0.8


def publish(address: str, rows: int) -> None:
    """Fill the topic; the bodies are random, so that Parquet cannot compress them."""
    connection = BlockingConnection(address)
    window = 0
    for _ in range(rows // MPUB_MESSAGES):
        pool = os.urandom(BODY_SIZE * MPUB_MESSAGES)
        bodies = [pool[at : at + BODY_SIZE] for at in range(0, len(pool), BODY_SIZE)]
        connection.send(commands.mpub(TOPIC, bodies))
        window += 1
        if window == 50:
            connection.receive()
            window -= 1
    for _ in range(window):
        connection.receive()
    connection.close()


def session(folder: Path) -> Any:
    """A local Spark session with two tasks."""
    ensure_java()
    use_this_python()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "2g")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def cpu_seconds(*roots: int) -> float:
    """CPU time of processes and all their descendants, in seconds."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended; its parent's figures now include its CPU time
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    counted = set(roots)
    while grown := {pid for pid, parent in parents.items() if parent in counted} - counted:
        counted |= grown
    return sum(ticks[pid] for pid in counted) / os.sysconf("SC_CLK_TCK")


class Side:
    """One of the two sides of the comparison."""

    def __init__(self, name: str, read: Callable[[], Any], rows: int, *pids: int) -> None:
        self.name = name
        self.rates: list[float] = []
        self.cpu_us: list[float] = []
        self._read, self._rows, self._pids = read, rows, pids

    def run(self) -> None:
        """Read everything into the sink `noop`, and record the figures."""
        cpu, begun = cpu_seconds(*self._pids), time.perf_counter()
        self._read().write.format("noop").mode("overwrite").save()
        self.rates.append(self._rows / (time.perf_counter() - begun))
        self.cpu_us.append((cpu_seconds(*self._pids) - cpu) / self._rows * 1e6)

    def line(self, figure: Callable[[list[float]], float]) -> str:
        """The side's rate and CPU time as text; `figure` selects from the rounds' values."""
        return f"{self.name} {figure(self.rates):>10,.0f} rows/s {figure(self.cpu_us):5.2f} us"


def measure(rows: int, rounds: int, folder: Path) -> float:
    """Print each round's figures, and return the ratio of the median rates."""
    with spawn_nsqd(folder) as nsqd:
        nsqd.post(f"/topic/create?topic={TOPIC}")
        nsqd.post(f"/channel/create?topic={TOPIC}&channel=held")
        publish(nsqd.tcp, rows)
        spark = session(folder)
        jvm = spark.sparkContext._gateway.proc.pid
        options = {"topic": TOPIC, "nsqd_tcp_addresses": nsqd.tcp, "minPartitions": "2"}
        source = spark.read.format("nsq").options(**options)
        files = str(folder / "parquet")
        source.load().write.parquet(files)
        assert spark.read.parquet(files).count() == rows
        ours = Side("nsq", source.load, rows, jvm, nsqd.pid)
        theirs = Side("parquet", lambda: spark.read.parquet(files), rows, jvm)
        for number in range(rounds + 1):
            for side in (ours, theirs):
                side.run()
                if not number:  # not counted: the JVM was still compiling the code
                    side.rates.clear()
                    side.cpu_us.clear()
            if number:
                lines = (side.line(lambda figures: figures[-1]) for side in (ours, theirs))
                print(f"round {number}: {'   '.join(lines)}", flush=True)
        spark.stop()
    lines = (side.line(statistics.median) for side in (ours, theirs))
    ratio = statistics.median(ours.rates) / statistics.median(theirs.rates)
    print(f"median:  {'   '.join(lines)}\nratio of the rates {ratio:.2f} (goal {GOAL})")
    return ratio


def main() -> int:
    """Measure; return 0 if the goal was met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="messages in the topic")
    parser.add_argument("--rounds", type=int, default=5, help="number of counted reads of each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparq-bench-") as folder:
        ratio = measure(arguments.rows, arguments.rounds, Path(folder))
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
