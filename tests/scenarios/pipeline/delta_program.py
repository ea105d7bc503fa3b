"""Runs the query `archive`, as a separate process for tests that kill it.

    python tests/scenarios/pipeline/delta_program.py NSQD TOPIC FOLDER [without-transactions]

It reads TOPIC from one nsqd (HOST:PORT), 200 messages a batch, until it is killed. The tables are
in FOLDER, Spark's checkpoint FOLDER/checkpoint; a later start continues from there. Files are
merged after each batch, so that a kill can also interrupt a merge. The last argument is the
control: it leaves out the transaction id by which a repeated batch is recognised.
"""

import os
import sys
from pathlib import Path

from sparq.pipeline.java import ensure_java
from sparq.pipeline.session import use_this_python

MESSAGES_PER_BATCH = 200
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
}


def session():
    """Start a local Spark session that runs two tasks at a time."""
    ensure_java()
    use_this_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("sparq delta")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(nsqd: str, topic: str, folder: Path, more: list[str]) -> None:
    """Archive until killed."""
    from sparq.pipeline import archive, maintenance, tables

    if more == ["without-transactions"]:
        tables.CommitProperties = lambda app_transactions: None
    maintenance.SETTLED_S = maintenance.CHECK_S = 0
    spark = session()
    messages = (
        spark.readStream.format("nsq")
        .option("topic", topic)
        .option("channel", archive.QUERY)
        .option("nsqd_tcp_addresses", nsqd)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MESSAGES_PER_BATCH)
        .load()
    )
    writer = messages.writeStream.foreachBatch(archive.archive_sink(spark, str(folder)))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
