"""A sink: what it drops. What queries publish is tested with them."""

import io
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable

from sparq.pipeline import spam_analysis
from sparq.pipeline.sessions.state import OUTPUT_DDL
from sparq.pipeline.sink import Sink
from tests.pipeline.stored import process


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
    process(sink, spark.createDataFrame([(*blobs, 0, 0, 0, 0)], OUTPUT_DDL), 0, spam_analysis.split)

    for name in ("sessions", "findings"):
        kept = DeltaTable(tmp_path / name).to_pyarrow_table()["first_time"].to_pylist()
        assert sorted(days[:2]) == sorted(kept)
