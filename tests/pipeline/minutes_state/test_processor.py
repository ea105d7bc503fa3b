"""The stateful stage of `metrics`, in Spark's test harness and in a Spark query.

The harness needs no JVM. In the query, rows are packed, shuffled, stored in RocksDB, replayed,
read back and closed.
"""

import json
import os
from datetime import UTC, datetime

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from sparq.pipeline.messages import with_batch_time
from sparq.pipeline.minutes_state import output
from sparq.pipeline.minutes_state.bucket import MinutesLimits
from sparq.pipeline.minutes_state.packer import blobs_of, prepared
from sparq.pipeline.minutes_state.processor import (
    MinutesProcessor,
    closing_rows,
    minute_rows,
    unpack,
)
from sparq.pipeline.packing import PACKED_DDL, bucket_count, pack_partition
from tests.pipeline.minutes_state.buckets import (
    Buckets,
    batches_of,
    by_minute,
    generated,
    message,
    of_kind,
)
from tests.pipeline.minutes_state.twin import Twin
from tests.pipeline.query_input import forget_last_commit

TIME = pa.timestamp("us", "UTC")
PARSED = pa.schema(
    [
        *(("id", pa.string()), ("nsqd", pa.string()), ("index", pa.int64()), ("timestamp", TIME)),
        *(("body", pa.binary()), ("time", TIME), ("address", pa.string())),
        *(("user_agent", pa.string()), ("page", pa.string()), ("bytes", pa.int64())),
        *(("status", pa.int32()), ("reason", pa.string())),
    ]
)
LIMITS = MinutesLimits(horizon_s=6 * 3600, recent_bytes_max=4000)

START_S = 1_800_000_000


def batch(minute):
    clicks = [message(START_S + 60 * (minute - back), f"v{back}", f"/{back}") for back in range(5)]
    broken = message(reason="broken", index=2**54 - 1, published_s=START_S, body=b"\xff")
    return [*clicks, broken], (START_S + minute) * 1000


@pytest.mark.parametrize("recent_bytes_max", [0, 10**6])
def test_rows_and_state_of_the_processor_equal_those_of_the_pure_function(recent_bytes_max):
    """The processor's rows and state equal those of the pure function."""
    limits = MinutesLimits(1200, recent_bytes_max)
    buckets = Buckets(2, limits, partitions=1)
    spark = TwsTester(MinutesProcessor(limits))
    for minute in range(0, 40, 3):
        messages, batch_ms = batch(minute)
        packed = pa.Table.from_batches(buckets.packed(messages, batch_ms)).to_pandas()
        expected = [rows for _, rows in buckets.results(messages, batch_ms)]
        buckets.apply(messages, batch_ms)
        for bucket, state in enumerate(buckets.states):
            answer = spark.testInPandas(bucket, packed[packed["bucket"] == bucket])

            assert rows_of(answer) == expected[bucket]
            assert spark.peekValueState("recent", bucket) == state.held
            assert spark.peekMapState("cold", bucket) == {
                (one,): (blob,) for one, blob in state.minutes.items()
            }
    assert bool(buckets.states[0].minutes) == (recent_bytes_max == 0)


def rows_of(answer):
    batches = unpack([pa.RecordBatch.from_pandas(answer)]) if len(answer) else []
    return pa.Table.from_batches(batches, schema=output.SCHEMA)


def test_a_bucket_without_results_gives_no_row():
    """A bucket without results for a batch gives no output row: here 7 of 8 buckets."""
    messages, batch_ms = batch(0)
    packed = Buckets(8, partitions=1).packed(messages[-1:], batch_ms)[0].to_pandas()
    answers = [
        TwsTester(MinutesProcessor()).testInPandas(bucket, packed[packed["bucket"] == bucket])
        for bucket in range(8)
    ]

    assert [len(answer) for answer in answers] == [0] * 7 + [1]


def test_integers_in_a_column_with_nulls_stay_exact():
    """A 54-bit index in a column with nulls does not become a float, which has 53 bits."""
    messages, batch_ms = batch(0)
    packed = Buckets(1, partitions=1).packed(messages, batch_ms)[0].to_pandas()
    rows = rows_of(TwsTester(MinutesProcessor()).testInPandas(0, packed))

    assert rows["index"].drop_null().to_pylist() == [2**54 - 1]


def test_a_partition_without_rows_is_unpacked_to_no_rows():
    """Unpacking a partition without output rows gives nothing."""
    empty = pa.RecordBatch.from_pandas(pd.DataFrame({"rows": pd.Series([], dtype=object)}))

    assert [*unpack([empty])] == [*unpack([])] == []


def parsed(one):
    """A message of the twin as `clicks.parse` returns it."""
    address, _, user_agent = one["visitor"].partition("\n")
    common = {key: one[key] for key in ("nsqd", "index", "reason", "body")}
    common |= {"id": f"{one['index']:016x}", "timestamp": _time(one["published_s"])}
    if one["reason"] is not None:
        return common
    figures = {key: one[key] for key in ("page", "bytes", "status")}
    who = {"address": address, "user_agent": user_agent}
    return common | figures | who | {"time": _time(one["second"])}


def _time(second):
    return datetime.fromtimestamp(second, UTC)


def pack(batches):
    """What `processor.packed` runs on the executors after the click text is parsed."""
    tables = (prepared(pa.Table.from_batches([batch])) for batch in batches)
    rows = (batch for table in tables for batch in table.to_batches())
    return pack_partition(rows, blobs_of, bucket_count(2))


class Query:
    """The query over a folder of Parquet files, one per batch; its output is in `out`."""

    def __init__(self, spark, folder):
        self.spark, self.source, self.out = spark, folder / "in", folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.source.mkdir()

    def publish(self, at, batch):
        file = self.source / f"{at}.parquet"
        table = pa.Table.from_pylist([parsed(one) for one in batch], PARSED)
        pq.write_table(table, file, row_group_size=len(table) // 2 + 1)
        os.utime(file, (1_700_000_000 + at,) * 2)

    def run(self):
        """Process all batches."""
        schema = self.spark.read.parquet(str(self.source)).schema
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        packed = with_batch_time(stream.parquet(str(self.source))).mapInArrow(pack, PACKED_DDL)
        rows = minute_rows(packed, LIMITS)
        query = (
            rows.writeStream.foreachBatch(self._write)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()  # raises the query's error

    def _write(self, rows, batch_id):
        rows.write.mode("overwrite").parquet(str(self.out / f"batch={batch_id}"))

    def state_files(self, batch_id):
        """The state files of partition 0 written by all attempts at a batch."""
        return sorted((self.checkpoint / "state" / "0" / "0").glob(f"{batch_id + 1}[._]*"))

    def written(self, batch_id):
        return pq.read_table(self.out / f"batch={batch_id}", partitioning=None).cast(output.SCHEMA)


def in_order(rows):
    return rows.sort_by([("kind", "ascending"), ("minute", "ascending"), ("bucket", "ascending")])


def test_a_spark_query_gives_the_rows_of_the_twin(spark, tmp_path):
    """Every batch equals the twin's, across a replay, a restart, and the state read at the end."""
    batches = [*batches_of(generated(6), 2, 170, 1)]
    query, twin = Query(spark, tmp_path), Twin(LIMITS.horizon_s)
    for at, batch in enumerate(batches[:-1]):
        query.publish(at, batch)
    query.run()
    last = len(batches) - 2
    before, files = query.written(last), query.state_files(last)
    contents = [file.read_bytes() for file in files]
    forget_last_commit(query.checkpoint)
    query.run()  # repeats the last batch

    assert in_order(query.written(last)) == in_order(before)
    # The second attempt writes separate files: the first may still be running.
    assert 2 * len(files) == len(query.state_files(last)) > 0
    assert [file.read_bytes() for file in files] == contents

    query.publish(last + 1, batches[-1])
    query.run()
    for at, batch in enumerate(batches):
        expected = {row["minute"]: row for row in twin.apply(batch, 1_800_000_000_000)}

        assert by_minute(output.read(query.written(at))) == expected
    rows = pa.concat_tables([query.written(at) for at in range(len(batches))])
    rejected = of_kind(rows, output.REJECTED)

    assert {(row["nsqd"], row["index"], row["body"]) for row in rejected} == {
        (one["nsqd"], one["index"], one["body"]) for one in twin.rejected
    }
    state = spark.read.format("statestore").option("stateVarName", "recent")
    metas = [row[0] for row in state.load(str(query.checkpoint)).select("value.meta").collect()]
    counts = [json.loads(meta)["counts"] for meta in metas]

    assert sum(one["clicks"] + one["late"] + one["rejected"] for one in counts) == sum(
        map(len, batches)
    )
    assert len(metas) == bucket_count(2)
    closing = closing_rows(spark, str(query.checkpoint)).toArrow().cast(output.SCHEMA)

    assert by_minute(output.read(closing)) == {row["minute"]: row for row in twin.close()}
