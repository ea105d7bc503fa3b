"""Makes an archive of Spark's Java classes: `python -m tests.support.spark_classes PATH`.

Each test that starts Spark in a process of its own would read 15,000 classes from jars and check
them. Java maps them from an archive instead, which halves the start: 5.4 s instead of 10.4 s for a
program that writes and reads one table (two cores, three runs each, in turn). If the archive is
missing, or was made from other jars or by another Java, Java reads the jars.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.spark_session import JVM_OPTIONS, QUIET, builder, standard_error

END_SECONDS = 60.0


def make(path: Path) -> None:
    """Start Spark, run some of the tests' operations, and archive the classes that were loaded.

    Raises:
        RuntimeError: Java wrote no archive.
    """
    made = path.with_suffix(".new")
    made.unlink(missing_ok=True)
    dump = f"{JVM_OPTIONS} {QUIET} -XX:ArchiveClassesAtExit={made}"
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(SPARK_SUBMIT_OPTS=dump, SPARK_LOCAL_IP="127.0.0.1", TMPDIR=folder)
        work(Path(folder))
        end_java()
    if not made.is_file():
        raise RuntimeError("Java wrote none")
    made.replace(path)


def work(folder: Path) -> None:
    """Run a table, a stateful stream and a Python sink."""
    spark = builder(folder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    table = str(folder / "table")
    frame = spark.range(1_000).selectExpr("id % 7 as key", "id", "cast(id as string) as name")
    frame.write.partitionBy("key").parquet(table)

    def keep(batch: Any, number: int) -> None:
        batch.groupBy("key").count().write.mode("append").json(str(folder / "json"))
        batch.mapInArrow(lambda batches: batches, batch.schema).collect()

    stream = spark.readStream.schema(frame.schema).parquet(table)
    counted = stream.withColumn("time", spark_time()).withWatermark("time", "1 minute")
    kept = counted.writeStream.foreachBatch(keep)
    state = counted.groupBy("key").count().writeStream.outputMode("update").format("noop")
    for name, writer in (("kept", kept), ("state", state)):
        writer.option("checkpointLocation", str(folder / name)).trigger(availableNow=True)
        writer.start().awaitTermination()
    spark.stop()


def spark_time() -> Any:
    """Return a timestamp for each row."""
    from pyspark.sql import functions

    return functions.timestamp_seconds("id")


def end_java() -> None:
    """End the JVM of this process in order: it writes the archive only then."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    process = gateway.proc  # type: ignore[attr-defined] - PySpark sets it on Py4J's object
    gateway.shutdown()
    process.stdin.close()
    process.wait(END_SECONDS)


def main() -> None:
    """Make the archive; if that fails print the reason: the tests work without it."""
    began = time.monotonic()
    sys.stdout.write("noting the classes of Spark, so that tests start it sooner\n")
    sys.stdout.flush()
    try:
        with standard_error(Path(os.devnull)):
            make(Path(sys.argv[1]))
    except Exception as error:
        sys.stdout.write(f"no archive of Spark's classes, tests read its jars: {error}\n")
    else:
        sys.stdout.write(f"noted in {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
