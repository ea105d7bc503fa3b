"""The user's own metrics: an aggregate per minute over the columns of a click.

    [metrics.revenue]
    value = "sum(price)"       # or count(*), count(x), count(distinct x), min(x), max(x), mean(x)
    by = ["country"]           # columns of a click; optional
    where = "status = 200"     # optional

`x` and `where` are expressions in polars' SQL, over the columns of a click and the user's own. Each
metric is a table `metric_<name>` of partial rows: `minute`, the columns of `by`, and

    value                      of sum, count, min and max
    value_sum, value_count     of mean: divide their sums
    value_hashes               of count(distinct x): XXH3-64 of each text, as for visitors

Nothing here loads polars before a `MetricTable` is made or used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sparq.pipeline.expressions import parse
from sparq.pipeline.tables import Table
from sparq.pipeline.totals import PartialRows, hashes_of, to_arrow
from sparq.program.mistakes import shown, suggestion

if TYPE_CHECKING:
    import polars as pl

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_VALUE: Final = re.compile(
    r"\s*(sum|count|min|max|mean)\s*\(\s*(distinct\s)?\s*(.+?)\s*\)\s*", re.I | re.S
)
_AGGREGATES: Final = "sum(x), count(*), count(x), count(distinct x), min(x), max(x) or mean(x)"
_MINUTE: Final = pa.field("minute", pa.timestamp("us", "UTC"))


@dataclass(frozen=True, slots=True)
class OwnMetric:
    """A metric as the user writes it.

    Raises:
        ValueError: the name or the form of the value is wrong; the text is one sentence.
    """

    name: str
    value: str
    by: tuple[str, ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        """Check what needs no columns."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{shown(self.name)} is no name: use a-z, 0-9 and _, a letter first")
        if not _VALUE.fullmatch(self.value):
            raise ValueError(f"value={shown(self.value)} is no aggregate: write {_AGGREGATES}")

    @property
    def parts(self) -> tuple[str, str]:
        """The aggregate's name and what it is of; `*` for all rows."""
        found = _VALUE.fullmatch(self.value)
        assert found is not None
        return f"{found[1].lower()}{' distinct' if found[2] else ''}", found[3]


def from_toml(tables: Mapping[str, Any]) -> tuple[OwnMetric, ...]:
    """The metrics of the tables `[metrics.NAME]`.

    Raises:
        ValueError: a table is wrong; the text is one sentence that begins with its name.
    """
    found = []
    for name, table in tables.items():
        try:
            if not isinstance(table, Mapping):
                raise ValueError('is no table: write value = "sum(...)" under it')
            unknown = sorted(table.keys() - {"value", "by", "where"})
            if unknown:
                raise ValueError(f"there is no {shown(unknown[0])}: use value, by and where")
            by, texts = table.get("by", []), (table.get("value"), table.get("where", ""))
            lists_texts = isinstance(by, list) and all(isinstance(one, str) for one in by)
            if not lists_texts or not all(isinstance(text, str) for text in texts):
                raise ValueError("value and where are texts, and by is a list of texts")
            found.append(OwnMetric(name, table["value"], tuple(by), table.get("where", "")))
        except ValueError as error:
            raise ValueError(f"metrics.{name}: {error}") from None
    return tuple(found)


class MetricTable:
    """A metric over the columns of a click, checked; picklable.

    Args:
        metric: the metric.
        clicks: the schema of a click, the user's columns included.
    Raises:
        ValueError: an expression or a column is wrong; the text is one sentence.
    """

    def __init__(self, metric: OwnMetric, clicks: pa.Schema) -> None:
        self.metric = metric
        names = [name for name in clicks.names if name != "reason"]
        for name in metric.by:
            if name not in names:
                raise ValueError(
                    f"metrics.{metric.name}: a click has no column {shown(name)}"
                    f"{suggestion(name, names) or ': name one of the columns of clicks'}"
                )
        self.columns = self._columns_of(names)
        aggregate = metric.parts[0]
        kind = self._kind(pa.schema([clicks.field(name) for name in self.columns]))
        self._values, how = _value_columns(aggregate, kind)
        fields = [_MINUTE, *(clicks.field(name) for name in metric.by), *self._values]
        schema = pa.schema(fields)
        keys = ("minute", *metric.by)
        self.table = Table(
            f"metric_{metric.name}", schema, "minute", PartialRows(schema, keys, how)
        )

    def rows(self, clicks: pa.Table) -> pa.Table:
        """Clicks as rows of the table.

        Args:
            clicks: `time` and the columns `columns`.
        """
        import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

        frame = pl.DataFrame(pl.from_arrow(clicks.select(["time", *self.columns])))
        frame = frame.with_columns(pl.col("time").dt.truncate("1m").alias("minute"))
        if self.metric.where:
            frame = frame.filter(pl.sql_expr(self.metric.where))
        aggregate, inner = self.metric.parts
        # No minute is null.
        value = pl.col("minute") if inner == "*" else pl.sql_expr(inner)
        if aggregate == "count distinct":
            texts = frame.select(value.cast(pl.String).alias("x"))["x"].to_arrow()
            frame = frame.with_columns(pl.Series("x", hashes_of(texts.cast(pa.string()))))
            value = pl.col("x")
        grouped = frame.group_by("minute", *self.metric.by)
        found = grouped.agg(one.alias(field.name) for one, field in zip(
            _partial(aggregate, value), self._values, strict=True
        ))  # fmt: skip
        return to_arrow(found, self.table.schema)

    def _columns_of(self, names: list[str]) -> tuple[str, ...]:
        """The columns that the metric needs."""
        _, inner = self.metric.parts
        used = list(self.metric.by)
        for key, text in (("value", inner), ("where", self.metric.where)):
            if text in ("", "*"):
                continue
            try:
                roots = parse(text).meta.root_names()
            except ValueError as error:
                raise self._wrong(key, text, str(error)) from None
            for name in roots:
                if name not in names:
                    close = suggestion(name, names)
                    raise self._wrong(key, text, f"a click has no column {shown(name)}{close}")
            used += roots
        return tuple(dict.fromkeys(name for name in used if name != "time"))

    def _kind(self, schema: pa.Schema) -> pa.DataType:
        """The type of the aggregate's values."""
        import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

        aggregate, inner = self.metric.parts
        time = pa.field("time", _MINUTE.type)
        empty = pa.schema([time, *schema]).empty_table()
        frame = pl.DataFrame(pl.from_arrow(empty))
        for key, text in (("where", self.metric.where), ("value", inner)):
            if text in ("", "*"):
                continue
            try:
                kind = frame.select(pl.sql_expr(text).alias("x")).schema["x"]
                if key == "where" and kind != pl.Boolean:
                    raise self._wrong(key, text, "it is not true or false")
            except pl.exceptions.PolarsError as error:
                raise self._wrong(key, text, str(error)) from None
        if inner == "*":
            if aggregate != "count":
                raise self._wrong("value", self.metric.value, "only count takes *")
            return pa.int64()
        if aggregate in ("sum", "mean", "min", "max") and not (
            kind.is_numeric() or kind == pl.Boolean
        ):
            raise self._wrong("value", self.metric.value, f"{shown(inner)} is no number")
        return pa.float64() if kind.is_float() or kind.is_decimal() else pa.int64()

    def _wrong(self, key: str, text: str, reason: str) -> ValueError:
        line = reason.splitlines()[0]
        return ValueError(f"metrics.{self.metric.name}: {key}={shown(text)}: {line}")


def _value_columns(aggregate: str, kind: pa.DataType) -> tuple[list[pa.Field], dict[str, str]]:
    """The columns of an aggregate, and how partial rows are combined."""
    if aggregate == "count distinct":
        return [pa.field("value_hashes", pa.list_(pa.int64()))], {"value_hashes": "union"}
    if aggregate == "mean":
        columns = [pa.field("value_sum", kind), pa.field("value_count", pa.int64())]
        return columns, {"value_sum": "sum", "value_count": "sum"}
    if aggregate == "count":
        return [pa.field("value", pa.int64())], {"value": "sum"}
    return [pa.field("value", kind)], {"value": aggregate}


def _partial(aggregate: str, value: pl.Expr) -> list[pl.Expr]:
    """The expressions of the columns of an aggregate, within a group of rows."""
    if aggregate == "count distinct":
        return [value.drop_nulls().unique()]
    if aggregate == "mean":
        return [value.sum(), value.count()]
    found: pl.Expr = getattr(value, aggregate)()
    return [found]
