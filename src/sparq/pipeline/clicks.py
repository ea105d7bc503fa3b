"""The definition of a click: a message of topic `clicks`, in JSON or as an access-log line.

    messages -> mapInArrow(parse_arrow) -> the same rows with some of CLICK_COLUMNS

numpy and Arrow read the text in the executors' Python, a batch of rows at a time. Nearly all
messages have an ordinary form (`ordinary_lines`, `ordinary_json`). Each other message, from escaped
quotes to nonsense, is read on its own by the careful reader (`click_reader`), and gets a reason if
it cannot be read. The careful reader defines what a click is; the ordinary ones are faster and
give the same result.

Spark's own functions were tried first: one regular expression and `from_json` took five times as
long (docs/performance.md), and planning them took ten seconds before the first batch.

Invariants:
1. Every input row comes out, once, in its place. `reason` is null for a click that could be read;
   otherwise it says in words why not. No input raises an error.
2. `body` is passed on unchanged, byte for byte.
3. Nothing depends on the session's time zone: event times are UTC instants.
4. A column that is not requested is not made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sparq.pipeline.click_reader import read
from sparq.pipeline.ordinary_json import find_json
from sparq.pipeline.ordinary_lines import find_lines
from sparq.pipeline.text_spans import DetachedTexts, Integers, Spans, Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

# The columns that `parse` can add after those of its input, in this order.
CLICK_SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", "UTC")),  # event time
        ("address", pa.string()),  # the visitor's address as the log states it
        ("user", pa.string()),  # "-" or the authenticated user; null in JSON
        ("vhost", pa.string()),  # only where the log has it
        ("method", pa.string()),  # null if the request line is broken, like the next two
        ("path", pa.string()),  # with its query
        ("page", pa.string()),  # the path without its query
        ("protocol", pa.string()),  # such as "HTTP/1.1"
        ("status", pa.int32()),  # null where the log has "-"
        ("bytes", pa.int64()),  # 0 where the log has "-"
        ("referer", pa.string()),  # as written, "-" included; null in the common format
        ("user_agent", pa.string()),  # likewise
        ("format", pa.string()),  # json, combined or common
        ("reason", pa.string()),  # null for a readable click
    ]
)
CLICK_COLUMNS = tuple(CLICK_SCHEMA.names)

FORMATS = ("combined", "common", "json", None)

_OPENING_BRACE = ord("{")


def parse(messages: DataFrame, columns: Collection[str] = CLICK_COLUMNS) -> DataFrame:
    """Add some of CLICK_COLUMNS to rows that have a BINARY column `body`.

    One row in, one row out. Name only the columns that you need: Spark cannot tell from a later
    `select` that the others need not be made.

    Raises:
        ValueError: a column is not one of CLICK_COLUMNS.
    """
    from pyspark.sql import types as T  # noqa: PLC0415 - executors need not load it

    schema = T.StructType([*messages.schema.fields, *spark_fields(columns)])
    wanted = tuple(columns)

    def parsed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from parse_arrow(batch, wanted).to_batches()

    return messages.mapInArrow(parsed, schema)


def spark_fields(columns: Collection[str] = CLICK_COLUMNS) -> list[StructField]:
    """Some of CLICK_COLUMNS with Spark's types.

    Raises:
        ValueError: a column is not one of CLICK_COLUMNS.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - the same

    return list(from_arrow_schema(pa.schema(_fields(columns))))


def readable(clicks: DataFrame) -> DataFrame:
    """The clicks that could be read."""
    return clicks.where("reason IS NULL")


def rejected(clicks: DataFrame) -> DataFrame:
    """The messages that could not be read, with the reason."""
    return clicks.where("reason IS NOT NULL")


def parse_arrow(
    messages: pa.Table | pa.RecordBatch, columns: Collection[str] = CLICK_COLUMNS
) -> pa.Table:
    """Add some of CLICK_COLUMNS to rows that have a binary column `body`.

    Args:
        messages: any number of rows; their other columns are passed on.
        columns: the columns to add; they are added in the order of CLICK_COLUMNS.
    Returns:
        One row for each input row, in the same order, with types as in CLICK_SCHEMA.
    Raises:
        ValueError: a column is not one of CLICK_COLUMNS.
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
    """The clicks of a batch of messages, as columns that are made on request."""

    def __init__(self, bodies: pa.BinaryArray) -> None:
        self._rows = len(bodies)
        if not self._rows:
            return
        self._text = text = Text(bodies)
        is_json = text.is_byte(text.starts, _OPENING_BRACE)
        self._json = find_json(text, np.flatnonzero(is_json))
        self._lines = find_lines(text, np.flatnonzero(~is_json))
        odd = np.ones(self._rows, bool)
        odd[self._json.rows] = odd[self._lines.rows] = False
        self._odd = np.flatnonzero(odd)
        bodies = bodies.take(pa.array(self._odd))
        self._read = [read(body) for body in bodies.to_pylist()]
        self._apart = self._texts_apart() if self._read else {}

    def column(self, field: pa.Field) -> pa.Array:
        """One of CLICK_COLUMNS."""
        if not self._rows:
            return pa.array([], field.type)
        if field.name == "time":
            micros = self._placed(self._lines.micros, self._json.micros, 0)
            return self._with_odd(micros, "time").view(field.type)
        if field.name == "format":
            return self._formats()
        if field.name == "reason" and not self._read:
            return pa.nulls(self._rows, field.type)
        texts = self._text.strings(self._spans(field.name), self._apart.get(field.name))
        if field.name == "bytes":
            # A copy, because `_with_odd` writes into it, and Arrow's memory is read-only.
            return self._with_odd(texts.cast(field.type).fill_null(0).to_numpy().copy(), "bytes")
        return texts.cast(field.type)

    def _with_odd(self, numbers: Integers, name: str) -> pa.Int64Array:
        """The numbers of all messages, given the numbers of the ordinary ones."""
        if not self._read:
            return pa.array(numbers)
        values = [getattr(click, name) for click in self._read]
        unknown = np.zeros(self._rows, bool)
        unknown[self._odd] = [value is None for value in values]
        numbers[self._odd] = [value or 0 for value in values]
        return pa.array(numbers, mask=unknown)

    def _texts_apart(self) -> dict[str, DetachedTexts]:
        values = zip(*self._read, strict=True)
        columns = dict(zip(CLICK_COLUMNS, values, strict=True))
        texts = {
            name: [None if value is None else str(value) for value in column]
            for name, column in columns.items()
            if name not in ("time", "bytes", "format")
        }
        return self._text.texts_apart(self._odd, texts)

    def _formats(self) -> pa.StringArray:
        combined = self._lines.spans["user_agent"].present()
        form = np.where(combined, FORMATS.index("combined"), FORMATS.index("common"))
        json = np.full(len(self._json.rows), FORMATS.index("json"))
        forms = self._placed(form, json, 0)
        forms[self._odd] = [FORMATS.index(click.format) for click in self._read]
        return pa.array(FORMATS, pa.string()).take(pa.array(forms))

    def _spans(self, name: str) -> Spans:
        lines = self._lines.spans.get(name) or Spans.none(len(self._lines.rows))
        json = self._json.spans.get(name) or Spans.none(len(self._json.rows))
        return Spans(
            self._placed(lines.starts, json.starts, -1), self._placed(lines.ends, json.ends, -1)
        )

    def _placed(self, lines: Integers, json: Integers, otherwise: int) -> Integers:
        """Values of lines and of JSON messages, each in the row of its message."""
        if len(lines) == self._rows:
            return lines
        placed = np.full(self._rows, otherwise, np.int64)
        placed[self._lines.rows], placed[self._json.rows] = lines, json
        return placed
