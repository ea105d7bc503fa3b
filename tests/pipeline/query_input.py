"""The input of one of the pipeline's queries: one Parquet file of messages per batch."""

import os
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from sparq.pipeline.channels import MESSAGE_DDL

PUBLISHED = datetime(2026, 11, 21, tzinfo=UTC)


def message_table(bodies, first=0, nsqds=("a", "b"), published=PUBLISHED):
    """Messages with the source's columns; 50 of each nsqd in turn."""
    places = range(first, first + len(bodies))
    return pa.table(
        {
            "nsqd": pa.array([nsqds[at // 50 % len(nsqds)] for at in places], pa.string()),
            "id": pa.array([f"{at:016x}" for at in places], pa.string()),
            "index": pa.array(list(places), pa.int64()),
            "timestamp": pa.array([published] * len(bodies), pa.timestamp("us", "UTC")),
            "body": pa.array(bodies, pa.binary()),
        }
    )


class QueryInput:
    """The input batches of one query; `checkpoint` is the query's checkpoint folder."""

    def __init__(self, spark, folder):
        self.spark, self.source, self.checkpoint = spark, folder.with_name("in"), folder
        self.source.mkdir(parents=True)
        self.messages = 0
        self.batches = 0

    def add(self, bodies):
        """Add a batch."""
        file = self.source / f"{self.batches:04}.parquet"
        table = message_table(bodies, self.messages)
        pq.write_table(table, file, row_group_size=max(len(table) // 2, 1))
        os.utime(file, (1_700_000_000 + self.batches,) * 2)
        self.messages += len(bodies)
        self.batches += 1

    def run(self, plan, sink):
        """Run the query until it has processed all batches.

        Args:
            plan: turns messages into the query's rows.
            sink: the function for foreachBatch.
        """
        files = self.spark.readStream.schema(MESSAGE_DDL).option("maxFilesPerTrigger", 1)
        query = (
            plan(files.parquet(str(self.source)))
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()  # raises the query's error


def forget_last_commit(checkpoint):
    """Delete the last commit, as if the driver died after its sink had written."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def counted_to_the_end(rows, checkpoint):
    """Count a stream by `value` until it has no more rows."""
    query = rows.groupBy("value").count().writeStream.outputMode("update").format("noop")
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()
