"""The query `archive`: every click, and every message that is not one, in one pass over a batch.

The table `clicks` also has the unchanged message; what is no click is in `rejected`, and published.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.enrich import USUAL, parse_arrow
from sparq.pipeline.reading.schema import Reading, click_schema
from sparq.pipeline.sink import Output
from sparq.pipeline.tables import Table

QUERY = "archive"
# Limit for a rejected message on its topic: in JSON a byte can become six, and nsqd takes 1 MiB.
ORIGINAL_BYTES_MAX = 160_000

_MESSAGE = (
    pa.field("id", pa.string()),
    pa.field("nsqd", pa.string()),
    pa.field("index", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
)
_BODY = pa.field("body", pa.binary())
REJECTED = Table(
    "rejected", pa.schema([*_MESSAGE, pa.field("reason", pa.string()), _BODY]), "timestamp"
)


def clicks_table(reading: Reading = USUAL) -> Table:
    """The table of clicks that are read in this way: with the user's columns."""
    fields = [field for field in click_schema(reading) if field.name != "reason"]
    return Table("clicks", pa.schema([*_MESSAGE, *fields, _BODY]), "time")


CLICKS = clicks_table()


def split(
    batches: Iterable[pa.RecordBatch], reading: Reading = USUAL
) -> Iterator[Mapping[str, pa.Table]]:
    """Messages as rows of the two tables."""
    for batch in batches:
        parsed = parse_arrow(batch, reading=reading)
        is_click = pc.is_null(parsed["reason"])
        yield {
            CLICKS.name: parsed.filter(is_click),
            REJECTED.name: parsed.filter(pc.invert(is_click)),
        }


def output(reading: Reading = USUAL) -> Output:
    """The tables and messages of this query."""
    tables = [REJECTED, clicks_table(reading)]
    return Output(tables, partial(split, reading=reading), REJECTED.name, "rejected", as_json)


def as_json(row: dict[str, Any], _: int) -> bytes:
    """Reason and original message; in base64 if it is not UTF-8, cut if it is too long."""
    body: bytes = row["body"]
    kept = body[:ORIGINAL_BYTES_MAX]
    original: dict[str, Any]
    try:
        original = {"original": kept.decode()}
    except UnicodeDecodeError:
        original = {"original_base64": base64.b64encode(kept).decode()}
    if len(kept) < len(body):
        original["original_bytes"] = len(body)
    at = row["timestamp"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    place = {"id": row["id"], "nsqd": row["nsqd"], "index": str(row["index"]), "timestamp": at}
    return json.dumps({"reason": row["reason"], **original, **place}).encode()
