"""Writes a golden checkpoint: the checkpoint of a query, and the data path of the nsqd it reads.

    .venv/bin/python -m tests.scenarios.spark.golden_write PATH

PATH is tests/scenarios/spark/golden/<name>.tar.xz.

Run it with the version whose checkpoints must stay readable. The query has read two batches of 100
messages. The offsets of a third batch are written, but its commit is missing, as after a kill. 50
messages were published later.
"""

import sys
import tarfile
import tempfile
from pathlib import Path

from sparq.client.blocking.connection import BlockingConnection
from sparq.pipeline.session import use_this_python
from sparq.protocol import commands
from sparq.spark.java import ensure_java
from tests.support.servers import NsqdServer, spawn_nsqd

TOPIC = "clicks"
PLANNED = 300
PUBLISHED = 350


def publish(nsqd: NsqdServer, first: int, end: int) -> None:
    """Publish messages whose bodies are numbers."""
    connection = BlockingConnection(nsqd.tcp)
    for at in range(first, end, 10):
        mpub = commands.mpub(TOPIC, [b"%d" % number for number in range(at, at + 10)])
        assert connection.ask(mpub) == b"OK"
    connection.close()


def query(address: str, checkpoint: Path) -> None:
    """Read the existing messages in batches of 100."""
    ensure_java()
    use_this_python()
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    options = {
        "topic": TOPIC,
        "channel": "archive",
        "nsqd_tcp_addresses": address,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
    }
    writer = spark.readStream.format("nsq").options(**options).load().writeStream
    running = (
        writer.foreachBatch(lambda rows, _: print(rows.count()))  # noqa: T201 - a script
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    running.awaitTermination()
    spark.stop()


def main(target: str) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = folder / "checkpoint"
        with spawn_nsqd(folder, name="data") as nsqd:
            for path in (
                f"topic/create?topic={TOPIC}",
                f"channel/create?topic={TOPIC}&channel=keeps",
            ):
                nsqd.post(f"/{path}")
            publish(nsqd, 0, PLANNED)
            query(nsqd.tcp, checkpoint)
            publish(nsqd, PLANNED, PUBLISHED)
            nsqd.terminate()
            nsqd.log.unlink()
        for path in (checkpoint / "commits").glob("*2*"):
            path.unlink()
        with tarfile.open(target, "w:xz") as archive:
            for part in ("data", "checkpoint"):
                archive.add(folder / part, part)


if __name__ == "__main__":
    main(sys.argv[1])
