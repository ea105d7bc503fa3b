"""Packed rows: buckets receive exactly what the partitions of a batch send."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.packing import (
    PACKED_SCHEMA,
    BucketHeader,
    bucket_count,
    buckets_of,
    from_blob,
    gather,
    header_of,
    pack,
    receive,
    split,
    to_blob,
)

HEADER = BucketHeader({"b": 7, "a": 1}, 100, 100_000)
NUMBERS = pa.schema([("hash", pa.int64())])
WORDS = pa.schema([("word", pa.dictionary(pa.int32(), pa.string())), ("hash", pa.int64())])


def numbers(*values):
    return pa.table({"hash": values}, NUMBERS)


def messages(*rows):
    names = ("nsqd", "newest_s", "published_s", "batch_ms")
    types = (pa.string(), pa.int64(), pa.int64(), pa.int64())
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names)


def test_there_are_8_buckets_per_shuffle_partition():
    """There are 8 buckets per shuffle partition, a number that the checkpoint fixes."""
    assert [bucket_count(1), bucket_count(200)] == [8, 1600]


def test_a_negative_hash_has_a_bucket_too():
    """Buckets of negative hashes are computed like Spark's pmod."""
    assert buckets_of(np.array([-1, 0, 17, -(2**63)]), 16).tolist() == [15, 0, 1, 0]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), st.sampled_from([1, 4, 64]))
def test_each_row_is_in_its_bucket_once(hashes, count):
    """Every row is in its bucket exactly once; the rows of a bucket keep their order."""
    found = split(numbers(*hashes), buckets_of(np.array(hashes, np.int64), count), count)

    assert [table["hash"].to_pylist() for table in found] == [
        [one for one in hashes if one % count == bucket] for bucket in range(count)
    ]


def test_every_bucket_gets_a_row_from_every_partition_with_rows():
    """A bucket without rows gets a packed row, too: it needs the marks for the low mark."""
    batch = pack(HEADER, [to_blob([table]) for table in (numbers(5), numbers(), numbers())])

    assert batch.schema == PACKED_SCHEMA
    assert batch["bucket"].to_pylist() == [0, 1, 2]
    assert set(batch["marks"].to_pylist()) == {'{"a": 1, "b": 7}'}
    assert [from_blob(blob.as_py(), [NUMBERS])[0].num_rows for blob in batch["blob"]] == [1, 0, 0]


def test_an_empty_partition_sends_nothing():
    """An empty partition sends nothing, with no Arrow batch or with an empty one."""
    assert gather([]) is None
    assert gather([pa.record_batch([pa.array([], pa.int64())], names=["hash"])]) is None


def test_a_partition_in_several_arrow_batches_is_packed_once():
    """A partition in several Arrow batches (maxRecordsPerBatch) is packed once."""
    table = gather(numbers(*range(10)).to_batches(max_chunksize=3))

    assert table["hash"].to_pylist() == list(range(10))
    assert table["hash"].num_chunks == 1


def test_the_header_has_the_newest_of_each_nsqd():
    """The header has each nsqd's newest event time; one with rejected messages only has none."""
    rows = [
        ("a", 5, 9, 70),
        ("b", 3, 8, 70),
        ("a", 6, 7, 70),
        ("c", None, 6, 70),
        ("b", None, 5, 70),
    ]

    assert header_of(messages(*rows)) == BucketHeader({"a": 6, "b": 3}, 9, 70)


def test_a_bucket_receives_the_newest_of_all_partitions():
    """A bucket gets the maximum over all partitions of each nsqd's mark and of the times."""
    frames = [
        pack(BucketHeader(marks, published_s, 70_000), [b"%d" % published_s]).to_pandas()
        for marks, published_s in (({"a": 5, "b": 9}, 20), ({"a": 7}, 30), ({}, 10))
    ]

    expected = BucketHeader({"a": 7, "b": 9}, 30, 70_000)

    assert receive(frames).header == expected
    assert receive(frames[::-1]).header == expected


@given(st.permutations(range(4)), st.integers(1, 4))
def test_the_order_of_the_shuffle_does_not_matter(order, frame_rows):
    """The received input does not depend on the order of rows and their pandas frames."""
    rows = [pack(HEADER, [to_blob([numbers(one)])]).to_pandas() for one in range(4)]
    again = pd.concat([rows[at] for at in order])
    frames = [again[at : at + frame_rows] for at in range(0, 4, frame_rows)]

    assert receive(frames) == receive(rows)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_a_blob_returns_its_tables_exactly(rows):
    """A blob returns its tables exactly, also empty ones and dictionaries."""
    words = pa.array([f"word {at % 7}" for at in range(rows)], pa.string()).dictionary_encode()
    tables = [
        numbers(*range(rows)),
        numbers(),
        pa.table([words, numbers(*range(rows))["hash"]], WORDS),
    ]
    found = from_blob(to_blob(tables), [NUMBERS, NUMBERS, WORDS])

    assert [table.to_pylist() for table in found] == [table.to_pylist() for table in tables]
    assert [table.schema for table in found] == [NUMBERS, NUMBERS, WORDS]


def test_a_slice_is_sent_without_the_rest():
    """A slice is sent without the rest of its table."""
    table = numbers(*range(100_000))

    assert len(to_blob([table.slice(50_000, 10)])) < 1000


def test_empty_tables_cost_8_bytes():
    """An empty table takes 8 bytes of a blob: most buckets of a small batch are empty."""
    assert len(to_blob([numbers(), numbers()])) == 16
