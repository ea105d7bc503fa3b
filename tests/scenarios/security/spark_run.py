"""A Spark application in a separate process that saves everything it prints or shows.

`python -m tests.scenarios.security.spark_run` reads JSON on standard input: `options` for the
source `nsq`, and the `folder` for event log, checkpoint and pages. It reads the topic as a batch
and as a stream, copies it to another topic, fails twice, and saves every page of the Spark UI.
"""

import contextlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sparq.pipeline.java import ensure_java
from sparq.pipeline.session import use_this_python
from sparq.spark.data_source import NsqDataSource

PAGES = ["jobs", "stages", "storage", "environment", "executors", "SQL", "StreamingQuery"]
API = ["jobs", "stages?details=true", "environment", "allexecutors"]
EXECUTIONS = 12
WAIT_SECONDS = 300


BEGAN = time.monotonic()


def tell(*words: object) -> None:
    """Print a line for the test; print the elapsed time to stderr."""
    sys.stderr.write(f"spark_run: {time.monotonic() - BEGAN:.1f} s {words[0]}\n")
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def session(folder: Path) -> Any:
    """Start a local session with as much logging as possible."""
    ensure_java()
    use_this_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    made = (
        SparkSession.builder.master("local[2]")
        .appName("secrets")
        .config("spark.ui.enabled", "true")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", (folder / "events").as_uri())
        .config("spark.sql.maxPlanStringLength", "1000000")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("INFO")
    made.dataSource.register(NsqDataSource)
    return made


def work(spark: Any, options: dict[str, str], folder: Path) -> None:
    """Read, stream, write and fail."""
    frame = spark.read.format("nsq").options(**options).load()
    frame.explain(extended=True)
    tell("rows", frame.count(), frame.schema.simpleString())
    frame.createOrReplaceTempView("messages")
    spark.sql("select topic, count(*) from messages group by topic").collect()
    tell("batch")
    stream = spark.readStream.format("nsq").options(
        channel="copy", startingOffsets="earliest", **options
    )
    copied = {**options, "topic": "copied", "checkpointLocation": str(folder / "checkpoint")}
    query = stream.load().writeStream.format("nsq").options(**copied)
    running = query.trigger(availableNow=True).start()
    running.awaitTermination(WAIT_SECONDS)
    tell("progress", json.dumps([dict(one) for one in running.recentProgress], default=str))
    for wrong in ({"nsqd_tcp_addresses": "127.0.0.1:1"}, {"tls_v1": "true"}):
        try:
            gone = {**options, "nsqdTimeoutMs": "500", **wrong}
            spark.read.format("nsq").options(**gone).load().collect()
        except Exception as error:
            tell("failed", str(error)[:20_000])


def save_pages(spark: Any, folder: Path) -> None:
    """Save the pages of the Spark UI and its API."""
    base, name = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    executions = [f"SQL/execution/?id={number}" for number in range(EXECUTIONS)]
    api = [f"api/v1/applications/{name}/{page}" for page in API]
    api += [f"api/v1/applications/{name}/sql/{number}" for number in range(EXECUTIONS)]
    saved = 0
    for number, page in enumerate([*(f"{page}/" for page in PAGES), *executions, *api]):
        with (
            contextlib.suppress(urllib.error.HTTPError),
            urllib.request.urlopen(f"{base}/{page}", timeout=60) as answer,
        ):
            (folder / f"page-{number}").write_bytes(answer.read())
            saved += 1
    tell("pages", saved)


def main() -> None:
    """Run everything once."""
    told = json.load(sys.stdin)
    folder = Path(told["folder"])
    (folder / "events").mkdir()
    spark = session(folder)
    tell("session")
    work(spark, told["options"], folder)
    save_pages(spark, folder)
    spark.stop()
    tell("done")


if __name__ == "__main__":
    main()
