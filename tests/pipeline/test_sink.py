"""A sink: what a batch leaves in the tables, and what of it is published."""

import io
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable

from sparq.pipeline import spam_analysis
from sparq.pipeline.publish import ResultTopics
from sparq.pipeline.sessions.output import OUTPUT_DDL
from sparq.pipeline.sink import Output, Sink
from sparq.pipeline.tables import Table

TIME = pa.field("time", pa.timestamp("us", "UTC"))
COUNTS = Table("minutes", pa.schema([TIME, ("n", pa.int64())]), "time")


PUBLISHED = []


class Kept(ResultTopics):
    """Topics that keep what is published."""

    def publish(self, topic, bodies):
        PUBLISHED.append((topic, sorted(bytes(row.body) for row in bodies.collect())))


def counted(batches):
    """A row for each message, with its index."""
    for batch in batches:
        yield {"minutes": pa.table({"time": batch["timestamp"], "n": batch["index"]})}


def test_new_rows_are_published_again_when_a_batch_is_repeated(spark, query, messages, tmp_path):
    """The rows of a batch, and only they, are published, with the version of their table."""
    counts = []
    output = Output(
        [COUNTS], counted, "minutes", lambda row, version: b"%d %d" % (row["n"], version)
    )

    def sink():
        return Sink(spark, str(tmp_path), output, Kept(), counted=counts.append)

    for number in range(2):
        sink()(messages([b"x"] * 2, first=2 * number), number)
    sink()(messages([b"x"] * 2, first=2), 1)
    sink()(messages([]), 2)

    second = ("clicks.metrics", [b"2 2", b"3 2"])
    assert [("clicks.metrics", [b"0 1", b"1 1"]), second, second] == PUBLISHED
    assert [2, 2, 2, 0] == counts


def test_old_days_of_sessions_and_findings_are_dropped(spark, query, tmp_path):
    """`keep_days` removes sessions and findings that began before the days to keep."""
    days = [datetime.now(UTC) - timedelta(days=ago) for ago in (0, 29, 31)]
    blobs = []
    for table in (spam_analysis.SESSIONS, spam_analysis.FINDINGS):
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, table.schema) as out:
            out.write_table(
                pa.Table.from_pylist([{"first_time": day} for day in days], table.schema)
            )
        blobs.append(stream.getvalue())
    sink = Sink(spark, str(tmp_path), spam_analysis.OUTPUT, keep_days=30)
    sink(spark.createDataFrame([(*blobs, 0, 0, 0, 0)], OUTPUT_DDL), 0)

    for name in ("sessions", "findings"):
        kept = DeltaTable(tmp_path / name).to_pyarrow_table()["first_time"].to_pylist()
        assert sorted(days[:2]) == sorted(kept)
