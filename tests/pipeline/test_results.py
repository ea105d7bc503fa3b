"""Each batch writes its rows to a folder with its number."""

import pyarrow as pa

from sparq.pipeline import results

SCHEMA = pa.schema([("n", pa.int64())])
DDL = "n BIGINT"


def numbers(spark, *values):
    return spark.createDataFrame([(value,) for value in values], DDL)


def read(spark, folder):
    """The rows as Arrow and Spark read them, which must agree."""
    local = sorted(results.local_rows(folder, SCHEMA)["n"].to_pylist())
    frame = results.frame(spark, str(folder), DDL)
    assert sorted(row.n for row in frame.collect()) == local
    return local


def test_a_repeated_batch_replaces_its_rows(spark, tmp_path):
    """A repeated batch replaces its rows; `discard` removes them."""
    place = tmp_path / "a place"
    assert read(spark, place) == []

    results.write(numbers(spark, 1, 2), str(place), 1)
    results.write(numbers(spark, 3), str(place), 2)
    results.write(numbers(spark, 4), str(place), 1)

    assert read(spark, place) == [3, 4]

    for _ in range(2):
        results.discard(spark, str(place), 2)

    assert read(spark, place) == [4]


def test_an_incomplete_batch_is_not_read(spark, tmp_path):
    """A batch without Spark's _SUCCESS mark, from a killed writer, is not read."""
    results.write(numbers(spark, 1), str(tmp_path), 1)
    results.write(numbers(spark, 2), str(tmp_path), 2)
    (tmp_path / "batch=2" / results.MARK).unlink()

    assert read(spark, tmp_path) == [1]
