"""What a click is: one message of topic `clicks`, read as JSON or as a line of an access log.

    messages --mapInArrow--> parse_arrow --> the same rows with the columns of CLICK_COLUMNS

The text is read in Python, a batch of rows at a time, by numpy and Arrow. Nearly all messages are of
the ordinary form (`ordinary_lines`, `ordinary_json`). The others, from escaped quotes to nonsense,
are read one by one with care (`click_reader`), and get a reason if they cannot be read. The careful
way alone defines what a click is; the ordinary ways are faster and give the same columns.

Invariants:
1. Every row that goes in comes out, once, in its place. `reason` is null for a click that could be
   read, else it says in words why not; no input raises.
2. `body` is handed on untouched, byte for byte.
3. Nothing depends on the session's time zone: event times are UTC instants.
4. A column that is not asked for costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.click_reader import Click, read
from sparq.pipeline.ordinary_json import find_json
from sparq.pipeline.ordinary_lines import find_lines
from sparq.pipeline.text_spans import Integers, Spans, Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What `parse` adds behind the columns it is given, in this order.
CLICK_SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),  # event time
        ("address", pa.string()),  # the visitor's address as the log states it
        ("user", pa.string()),  # "-" or the authenticated user; null in JSON
        ("vhost", pa.string()),  # only where the log has it
        ("method", pa.string()),  # null where the request line is broken, like the two below
        ("path", pa.string()),  # with its query
        ("page", pa.string()),  # the path without its query
        ("protocol", pa.string()),  # as "HTTP/1.1"
        ("status", pa.int32()),  # null where the log has "-"
        ("bytes", pa.int64()),  # 0 where the log has "-"
        ("referer", pa.string()),  # as written, "-" included; null in the common format
        ("user_agent", pa.string()),  # likewise
        ("format", pa.string()),  # json, combined or common
        ("reason", pa.string()),  # null for a readable click
    ]
)
CLICK_COLUMNS = tuple(CLICK_SCHEMA.names)

_OPENING_BRACE = ord("{")
_FORMATS = pa.array(["combined", "common", "json"])
_COMBINED, _COMMON, _JSON = range(3)


def parse(messages: DataFrame, columns: Collection[str] = CLICK_COLUMNS) -> DataFrame:
    """Add some of CLICK_COLUMNS to rows that have a BINARY column `body`.

    One row in, one row out. Name the columns that you need: a `select` behind this comes too late to
    spare the others' cost.

    Raises:
        ValueError: a column is none of CLICK_COLUMNS.
    """
    from pyspark.sql import types as T  # noqa: PLC0415, N812 - executors need not load it

    types = {
        pa.string(): T.StringType(),
        pa.int32(): T.IntegerType(),
        pa.int64(): T.LongType(),
        pa.timestamp("us", "UTC"): T.TimestampType(),
    }
    added = [T.StructField(field.name, types[field.type]) for field in _fields(columns)]
    schema = T.StructType([*messages.schema.fields, *added])
    wanted = tuple(columns)

    def parsed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from parse_arrow(batch, wanted).to_batches()

    return messages.mapInArrow(parsed, schema)


def readable(clicks: DataFrame) -> DataFrame:
    """The clicks that could be read."""
    return clicks.where("reason IS NULL")


def rejected(clicks: DataFrame) -> DataFrame:
    """The messages that could not be read, with their reason."""
    return clicks.where("reason IS NOT NULL")


def parse_arrow(
    messages: pa.Table | pa.RecordBatch, columns: Collection[str] = CLICK_COLUMNS
) -> pa.Table:
    """Add some of CLICK_COLUMNS to rows that have a binary column `body`.

    Args:
        messages: any number of rows; other columns are handed on.
        columns: what to add, in the order of CLICK_COLUMNS.
    Returns:
        One row for each row, in the same order, with types as in CLICK_SCHEMA.
    Raises:
        ValueError: a column is none of CLICK_COLUMNS.
    """
    fields = _fields(columns)
    table = pa.table(messages) if isinstance(messages, pa.RecordBatch) else messages
    made = _Columns(_bodies(table["body"]))
    for field in fields:
        table = table.append_column(field, made.column(field))
    return table


def _fields(columns: Collection[str]) -> list[pa.Field]:
    unknown = sorted(set(columns) - set(CLICK_COLUMNS))
    if unknown:
        raise ValueError(
            f"a click has no column {unknown[0]!r}; choose from {', '.join(CLICK_COLUMNS)}"
        )
    return [field for field in CLICK_SCHEMA if field.name in columns]


def _bodies(column: pa.ChunkedArray) -> pa.BinaryArray:
    bodies = column.combine_chunks().cast(pa.binary())
    return bodies.fill_null(b"") if bodies.null_count else bodies


class _Columns:
    """The clicks of a batch of messages, as columns that are made when they are asked for."""

    def __init__(self, bodies: pa.BinaryArray) -> None:
        self._rows = len(bodies)
        if not self._rows:
            return
        self._text = text = Text(bodies)
        is_json = text.is_byte(text.starts, _OPENING_BRACE)
        self._json = find_json(text, np.flatnonzero(is_json))
        self._lines = find_lines(text, np.flatnonzero(~is_json))
        self._odd = np.ones(self._rows, bool)
        self._odd[self._json.rows] = self._odd[self._lines.rows] = False
        odd = pa.array(np.flatnonzero(self._odd))
        self._read = [read(body) for body in bodies.take(odd).to_pylist()]

    def column(self, field: pa.Field) -> pa.Array:
        """One of CLICK_COLUMNS."""
        if not self._rows:
            return pa.array([], field.type)
        made = self._ordinary(field)
        if not self._read:
            return made
        at = Click._fields.index(field.name)
        values = pa.array([click[at] for click in self._read], field.type)
        return pc.replace_with_mask(made, pa.array(self._odd), values)

    def _ordinary(self, field: pa.Field) -> pa.Array:
        """A column as the ordinary messages have it; the others have anything."""
        if field.name == "reason":
            return pa.nulls(self._rows, field.type)
        if field.name == "time":
            return pa.array(self._placed(self._lines.micros, self._json.micros, 0)).view(field.type)
        if field.name == "format":
            combined = self._lines.spans["user_agent"].present()
            form = np.where(combined, _COMBINED, _COMMON)
            all_json = np.full(len(self._json.rows), _JSON)
            return _FORMATS.take(pa.array(self._placed(form, all_json, _COMMON)))
        texts = self._text.strings(self._spans(field.name))
        if field.name == "bytes":
            return texts.cast(field.type).fill_null(0)
        return texts.cast(field.type)

    def _spans(self, name: str) -> Spans:
        lines = self._lines.spans.get(name) or Spans.none(len(self._lines.rows))
        json = self._json.spans.get(name) or Spans.none(len(self._json.rows))
        return Spans(
            self._placed(lines.starts, json.starts, -1), self._placed(lines.ends, json.ends, -1)
        )

    def _placed(self, lines: Integers, json: Integers, otherwise: int) -> Integers:
        """What lines and JSON messages have, each in its row."""
        if len(lines) == self._rows:
            return lines
        placed = np.full(self._rows, otherwise, np.int64)
        placed[self._lines.rows], placed[self._json.rows] = lines, json
        return placed
