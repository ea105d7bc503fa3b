"""Summing up partial rows."""

import pyarrow as pa

from sparq.pipeline.totals import partial_table

TOTALS = partial_table(
    "totals",
    [pa.field("key", pa.string())],
    [
        *(pa.field(name, pa.int64()) for name in ("sum", "min", "max")),
        pa.field("some", pa.list_(pa.int64())),
    ],
    {"sum": "sum", "min": "min", "max": "max", "some": "union"},
)
SCHEMA = TOTALS.schema


def test_rows_with_equal_keys_become_one():
    """Columns are combined each in its way; a null key is a key, and null values are left out."""
    rows = [
        ("b", 1, 1, 1, [1, 2]),
        (None, 7, 7, 7, []),
        ("b", 2, 5, 5, [2, 3]),
        ("b", None, None, None, None),
    ]
    table = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA
    )
    found = TOTALS.summed(table)
    for row in (found_rows := found.to_pylist()):
        row["some"].sort()

    assert SCHEMA == found.schema
    assert [
        {"key": None, "sum": 7, "min": 7, "max": 7, "some": []},
        {"key": "b", "sum": 3, "min": 1, "max": 5, "some": [1, 2, 3]},
    ] == found_rows
    assert SCHEMA == TOTALS.summed(SCHEMA.empty_table()).schema
