"""The rows of the tables `sessions` and `findings`, and their messages on the topic of findings.

`sessions` has a row for each session. `findings` has a row for each revision of a finding: the
newest counts, unless it is withdrawn. In SQL:

    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY session, reason ORDER BY revision DESC) AS place
        FROM findings
    ) WHERE place = 1 AND NOT withdrawn
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pyarrow as pa

from sparq.pipeline.sessions.rules import Rules

OUTPUT_DDL = (
    "sessions BINARY, findings BINARY, found BIGINT, late BIGINT, evicted_visits BIGINT, "
    "evicted_clicks BIGINT"
)
"""A row of the stateful stage: tables as Arrow streams, and counts of what they contain."""

_TIME = pa.timestamp("us", "UTC")
_WHO = [
    ("session", pa.string()),  # id of the message of its first click
    ("visitor", pa.int64()),  # hash of the columns that tell visitors apart
    ("address", pa.string()),
    ("user_agent", pa.string()),
]
_WHEN = [
    ("first_time", _TIME),
    ("last_time", _TIME),
    ("clicks", pa.int64()),
    ("pages", pa.int64()),
    ("assets", pa.int64()),
]
SESSIONS = pa.schema(
    [
        *_WHO,
        ("robot", pa.string()),  # the name that it gives itself
        *_WHEN,
        ("entry", pa.string()),  # its first and last page
        ("exit", pa.string()),
        ("late", pa.bool_()),  # its clicks came after their time
        ("ended", pa.string()),  # gap, clicks_max, room (it made room for others) or run
        ("figures", pa.string()),  # JSON: the columns of the rules
        ("message_ids", pa.list_(pa.string())),  # of its first clicks
    ]
)
FINDINGS = pa.schema(
    [
        *_WHO,
        ("reason", pa.string()),  # the name of the rule
        ("revision", pa.int64()),
        ("amount", pa.int64()),  # of evidence
        ("withdrawn", pa.bool_()),
        *_WHEN,
        ("late", pa.bool_()),
        ("evidence", pa.string()),  # JSON: the columns of the rules
        ("message_ids", pa.list_(pa.string())),
    ]
)


def table_rows(rows: pl.DataFrame, schema: pa.Schema, rules: Rules) -> pl.DataFrame:
    """Rows of SESSIONS or FINDINGS, from rows of `judge.judged` with the columns that these add."""
    names = [*rules.columns]
    for name, _, window in rules.windows:
        names += [name, f"{name}_of"] if window.same else [name]
    figures = pl.struct(*names, "site_assets").struct.json_encode()
    ids = [None if some is None else _texts(some) for some in rows["ids"]]
    return rows.with_columns(
        session=pl.Series(_texts(rows["id"]), dtype=pl.String),
        first_time=pl.from_epoch("first_second", "s").cast(pl.Datetime("us", "UTC")),
        last_time=pl.from_epoch("last_second", "s").cast(pl.Datetime("us", "UTC")),
        message_ids=pl.Series(ids, dtype=pl.List(pl.String)),
        figures=figures,
        evidence=figures,
    ).select(schema.names)


def _texts(ids: Iterable[int]) -> list[str]:
    return [f"{one:016x}" for one in ids]
