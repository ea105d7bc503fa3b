"""Reading a topic into Spark against Spark reading the same rows from Parquet.

    python -m bench.spark_reader [--rows 1000000] [--rounds 4]

nsqd holds the rows, published as MPUBs of 200 messages of 200 bytes. They are copied once to
Parquet, with all columns. Then both are read into the sink `noop`, in turn (A B A B), in one
session of two tasks; the first reading of each is not counted. nsqd shares the machine's cores with
Spark. A ratio of 1.0 means as fast as Parquet files.
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

from tests.servers import spawn_nsqd

from sparq.client.blocking import BlockingConnection
from sparq.protocol import commands
from sparq.spark.java import ensure_java

TOPIC = "bench"
BODY_SIZE = 200
MPUB_MESSAGES = 200
GOAL = 0.8


def publish(address: str, rows: int) -> None:
    """Fills the topic; the bodies are random, so that Parquet has nothing to compress."""
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
    """A local session of two tasks."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "2g")
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def seconds(read: Callable[[], Any]) -> float:
    """How long it takes to read everything and throw it away."""
    begun = time.perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def measure(rows: int, rounds: int, folder: Path) -> float:
    """Prints each round's rates and returns the ratio of the medians."""
    with spawn_nsqd(folder) as nsqd:
        nsqd.post(f"/topic/create?topic={TOPIC}")
        nsqd.post(f"/channel/create?topic={TOPIC}&channel=held")
        publish(nsqd.tcp, rows)
        spark = session(folder)
        options = {"topic": TOPIC, "nsqd_tcp_addresses": nsqd.tcp}
        files = str(folder / "parquet")

        def from_nsqd() -> Any:
            return spark.read.format("nsq").options(**options).load()

        def from_parquet() -> Any:
            return spark.read.parquet(files)

        from_nsqd().write.parquet(files)
        assert from_parquet().count() == rows
        seconds(from_nsqd), seconds(from_parquet)
        rates: dict[str, list[float]] = {"nsq": [], "parquet": []}
        for number in range(rounds):
            rates["nsq"].append(rows / seconds(from_nsqd))
            rates["parquet"].append(rows / seconds(from_parquet))
            shown = "  ".join(f"{name} {found[-1]:>10,.0f}" for name, found in rates.items())
            print(f"round {number + 1}: {shown} rows/s", flush=True)
        spark.stop()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratio = medians["nsq"] / medians["parquet"]
    print(
        f"median:  nsq {medians['nsq']:>10,.0f}  parquet {medians['parquet']:>10,.0f} rows/s, "
        f"ratio {ratio:.2f} (goal {GOAL})"
    )
    return ratio


def main() -> int:
    """Measures; the exit status says whether the goal was met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages in the topic")
    parser.add_argument("--rounds", type=int, default=4, help="how often each is read")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparq-bench-") as folder:
        ratio = measure(arguments.rows, arguments.rounds, Path(folder))
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
