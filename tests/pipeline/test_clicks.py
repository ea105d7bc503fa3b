"""Clicks in Spark and in Arrow tables: rows, columns and types; reading has tests of its own."""

import pyarrow as pa

from sparq.pipeline import enrich
from sparq.pipeline.reading.schema import CLICK_SCHEMA, Reading
from tests.pipeline.click_examples import READ, UNREADABLE

BODIES = [line.encode() for line in (*READ, *UNREADABLE)]
OWN = Reading(columns=(("k", "k: bigint"),), trusted_proxies=("private",))


def batch_of(bodies):
    """A batch as it comes from Spark, with a column that is not part of a click."""
    return pa.record_batch(
        {"index": pa.array(range(len(bodies)), pa.int64()), "body": pa.array(bodies, pa.binary())}
    )


def test_only_the_requested_columns_are_added():
    """Requested columns follow the existing ones, in the order of the schema."""
    batch = batch_of(BODIES)

    assert enrich.parse_arrow(batch, ["status", "time"]).column_names == [
        "index", "body", "time", "status"]  # fmt: skip
    assert enrich.parse_arrow(batch, []).equals(pa.table(batch))
    assert enrich.parse_arrow(batch, ["k"], OWN).column_names == ["index", "body", "k"]


def test_a_batch_without_rows_has_the_same_columns():
    """An empty batch has the same schema; a null body is an empty message; slices are read."""
    whole = enrich.parse_arrow(batch_of(BODIES))
    empty = enrich.parse_arrow(batch_of([]))
    null = enrich.parse_arrow(batch_of([None]))

    assert empty.schema == whole.schema == null.schema
    assert CLICK_SCHEMA.names == whole.column_names[2:]
    assert ["the message is empty"] == null["reason"].to_pylist()
    parts = [enrich.parse_arrow(batch_of(BODIES).slice(at, 7)) for at in range(0, len(BODIES), 7)]
    assert whole.to_pylist() == pa.concat_tables(parts).to_pylist()


def test_a_large_partition_is_read_in_parts(monkeypatch):
    """However many messages a partition has, some are held at a time; all come, in order."""
    monkeypatch.setattr(enrich, "ROWS", 4)
    batches = [batch_of(BODIES[at : at + 3]) for at in (0, 3, 6)]
    parts = list(enrich.parse_batches([*batches, batch_of([])], ["time"]))

    assert [6, 3] == [len(part) for part in parts]
    assert BODIES[:9] == [body for part in parts for body in part["body"].to_pylist()]
    assert [] == list(enrich.parse_batches([batch_of([])], ["time"]))
