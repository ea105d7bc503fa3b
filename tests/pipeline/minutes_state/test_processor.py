"""The stateful stage of `metrics` as Spark calls it: by its own tester, which needs no JVM."""

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from sparq.pipeline.minutes_state import output
from sparq.pipeline.minutes_state.bucket import MinutesLimits
from sparq.pipeline.minutes_state.processor import MinutesProcessor, unpack
from tests.pipeline.minutes_state.buckets import Buckets, message

START_S = 1_800_000_000


def batch(minute):
    clicks = [message(START_S + 60 * (minute - back), f"v{back}", f"/{back}") for back in range(5)]
    broken = message(reason="broken", index=2**54 - 1, published_s=START_S, body=b"\xff")
    return [*clicks, broken], (START_S + minute) * 1000


@pytest.mark.parametrize("recent_bytes_max", [0, 10**6])
def test_the_processor_keeps_and_writes_what_the_pure_function_says(recent_bytes_max):
    """Through value and map state and through pandas: equal rows, equal state."""
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


def test_a_bucket_with_nothing_to_say_gives_no_row():
    """A batch of rejected messages alone, which are in another bucket."""
    messages, batch_ms = batch(0)
    packed = Buckets(8, partitions=1).packed(messages[-1:], batch_ms)[0].to_pandas()
    answers = [
        TwsTester(MinutesProcessor()).testInPandas(bucket, packed[packed["bucket"] == bucket])
        for bucket in range(8)
    ]

    assert [len(answer) for answer in answers] == [0] * 7 + [1]


def test_whole_numbers_survive_beside_nulls():
    """An index has 54 bits, a float 53."""
    messages, batch_ms = batch(0)
    packed = Buckets(1, partitions=1).packed(messages, batch_ms)[0].to_pandas()
    rows = rows_of(TwsTester(MinutesProcessor()).testInPandas(0, packed))

    assert rows["index"].drop_null().to_pylist() == [2**54 - 1]


def test_unpacking_nothing_gives_nothing():
    """A partition whose buckets had nothing to say."""
    empty = pa.RecordBatch.from_pandas(pd.DataFrame({"rows": pd.Series([], dtype=object)}))

    assert [*unpack([empty])] == [*unpack([])] == []
