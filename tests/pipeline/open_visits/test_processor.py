"""The buckets inside Spark give the same output as without it, across restarts."""

import shutil
from functools import partial

import pandas as pd
import pyarrow as pa

from sparq.pipeline.open_visits.findings import OUTPUT_SCHEMA
from sparq.pipeline.open_visits.pack import CLICKS, blobs_of
from sparq.pipeline.open_visits.processor import (
    LISTS,
    VALUES,
    SpamProcessor,
    as_pandas,
    closed,
    found,
)
from sparq.pipeline.open_visits.tiers import VisitsLimits
from sparq.pipeline.packing import PACKED_DDL, pack_partition
from tests.pipeline.open_visits.in_memory_query import (
    FIRST_BATCH_MS,
    InMemoryQuery,
    day,
    findings,
    table_of,
)

LIMITS = VisitsLimits(batches_max=3)
BUCKETS = 4


def rows_of(frame):
    """The rows of a pandas output frame as dictionaries."""
    return pa.Table.from_pandas(frame, OUTPUT_SCHEMA).to_pylist()


def test_the_processor_writes_the_state_of_apply():
    """Each state variable holds the same bytes as the state part of the same name."""
    from pyspark.sql.streaming.tws_tester import TwsTester

    rows, _ = day(6000, 2)
    in_memory, tester = (
        InMemoryQuery(buckets=BUCKETS, limits=LIMITS),
        TwsTester(SpamProcessor(LIMITS)),
    )
    output = []
    for at in range(0, 3000, 300):
        some, names = rows[at : at + 300], ["n"] * 300
        frame = in_memory.packed(some, names, FIRST_BATCH_MS + in_memory.batches * 1000)
        in_memory.apply(some, names)
        for bucket, mine in frame.groupby("bucket"):
            output += rows_of(tester.testInPandas(bucket, mine))

    assert len(in_memory.output) > 3
    assert findings(in_memory.output) == findings(output)
    for bucket, state in enumerate(in_memory.states):
        for name in LISTS:
            held = [bytes(row[0]) for row in tester.peekListState(name, bucket)]
            assert getattr(state, name).values == held
        for name in VALUES:
            row = tester.peekValueState(name, bucket)
            assert getattr(state, name).values == ([bytes(row[0])] if row else [])


def test_nulls_in_integer_columns_stay_null():
    """Nulls in integer columns stay null, and no integer becomes a float."""
    row = {"kind": "evicted", "evicted_visits": 2**60 + 1}
    frame = as_pandas(pa.Table.from_pylist([{"kind": "finding"}, row], OUTPUT_SCHEMA))

    assert [None, 2**60 + 1] == [one["evicted_visits"] for one in rows_of(frame)]
    assert frame["evicted_visits"].dtype == pd.Int64Dtype()


def packed(clicks):
    """Clicks packed as the query packs them after the click text is parsed."""
    return clicks.mapInArrow(
        partial(pack_partition, blobs_of=blobs_of, buckets=BUCKETS), PACKED_DDL
    )


def test_a_spark_query_gives_the_findings_of_the_buckets(spark, tmp_path):
    """Findings equal those of `InMemoryQuery`, with a replayed batch and at the end."""
    import pyarrow.parquet as pq

    rows, _ = day(6000, 2)
    in_memory = InMemoryQuery(buckets=BUCKETS, limits=LIMITS)
    source, checkpoint = tmp_path / "clicks", tmp_path / "checkpoint"
    source.mkdir()
    out = tmp_path / "out"

    def write(frame, batch_id):
        frame.write.mode("overwrite").parquet(str(out / f"batch={batch_id}"))

    def written():
        return [
            row
            for batch_id in range(5)
            for row in pq.read_table(out / f"batch={batch_id}", partitioning=None).to_pylist()
        ]

    def run():
        clicks = (
            spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
        )
        query = (
            found(packed(clicks), LIMITS)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for number in range(5):
        some = rows[number * 300 : number * 300 + 300]
        table = table_of(some, ["n"] * 300, FIRST_BATCH_MS + number * 1000)
        pq.write_table(table, source / f"{number}.parquet")
        in_memory.apply(some, ["n"] * 300)
        if number in (2, 4):
            run()
    before = written()
    shutil.rmtree(out / "batch=4")
    for name in ("4", ".4.crc"):  # as if the driver had died before the commit
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    run()

    output = written()
    assert len(output) > 2
    assert findings(before) == findings(output)
    assert findings(in_memory.output) == findings(output)
    ended = closed(spark, str(checkpoint)).toPandas()
    assert findings(in_memory.close()) == findings(rows_of(ended))


SCHEMA = ", ".join(
    f"{field.name} {dict(int64='BIGINT', int8='TINYINT', string='STRING')[str(field.type)]}"
    for field in CLICKS
)
