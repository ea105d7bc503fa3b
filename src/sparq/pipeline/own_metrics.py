"""The user's own metrics: an aggregate per minute over the columns of a click.

    metrics.revenue = { value = "sum(price)", by = ["country"], where = "status = 200" }

Price and status are expressions in polars' SQL. Each metric is a table `metric_<name>` of partial
rows: `minute`, the columns of `by`, and `value`, `value_sum` and `value_count` (of mean: divide
their sums) or `value_hashes` (of count(distinct x): XXH3-64 of each text, as for visitors).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from sparq.options.mistakes import shown, suggestion
from sparq.pipeline.expressions import checked, typed
from sparq.pipeline.metrics import MINUTE, hashes_of, partial_table, to_arrow
from sparq.pipeline.tables import Table

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_VALUE: Final = re.compile(
    r"\s*(sum|count|min|max|mean)\s*\(\s*(distinct\s)?\s*(.+?)\s*\)\s*", re.I | re.S
)
_FORMS: Final = "sum(x), count(*), count(x), count(distinct x), min(x), max(x) or mean(x)"
_INT: Final = pa.int64()
_TAKEN: Final = ("time", "minute", "date", "value", "value_sum", "value_count", "value_hashes")
# By aggregate: its columns; for each polars' method, how rows are summed up, and the type (None:
# that of x).
_COLUMNS: Final[dict[str, list[tuple[str, str, str, pa.DataType | None]]]] = {
    **{name: [("value", name, name, None)] for name in ("sum", "min", "max")},
    "count": [("value", "count", "sum", _INT)],
    "mean": [("value_sum", "sum", "sum", None), ("value_count", "count", "sum", _INT)],
    "count distinct": [("value_hashes", "unique", "union", pa.list_(_INT))],
}


class OwnMetric(msgspec.Struct, frozen=True):
    """A metric as the user writes it; ValueError, of one sentence, if it is wrong."""

    name: str
    value: str
    by: tuple[str, ...] = ()
    where: str = ""

    def __post_init__(self) -> None:
        """Check what needs no columns."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{shown(self.name)} is no name: use a-z, 0-9 and _, a letter first")
        found = _VALUE.fullmatch(self.value)
        if not found or (found[3] == "*" and self.parts[0] != "count"):
            raise ValueError(f"value={shown(self.value)} is no aggregate: write {_FORMS}")
        for name in self.by:
            if name in _TAKEN or self.by.count(name) > 1:
                raise ValueError(f"by: {name} is a column of the metric's table already")

    @property
    def parts(self) -> tuple[str, str]:
        """The aggregate's name and what it is of; `count(*)` counts times, which no click lacks."""
        found = _VALUE.fullmatch(self.value)
        assert found is not None
        aggregate = f"{found[1].lower()}{' distinct' if found[2] else ''}"
        return aggregate, "time" if found[3] == "*" else found[3]


def from_toml(tables: Mapping[str, Any]) -> tuple[OwnMetric, ...]:
    """The metrics of the tables `[metrics.NAME]`; ValueError, of one sentence, if one is wrong."""
    found = []
    for name, given in typed(tables, dict[str, Any], "metrics").items():
        content = typed(given, dict[str, Any], f"metrics.{name}")
        found.append(typed({**content, "name": name}, OwnMetric, f"metrics.{name}"))
    return tuple(found)


class MetricTable:
    """A metric over the columns of a click, checked; picklable.

    `columns` are those that it needs besides `time`. ValueError, of one sentence, if it is wrong.
    """

    def __init__(self, metric: OwnMetric, clicks: pa.Schema) -> None:
        import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

        self.metric = metric
        empty = pl.DataFrame(pl.from_arrow(clicks.empty_table())).drop("reason")
        place, (aggregate, inner) = f"metrics.{metric.name}", metric.parts
        for name in metric.by:
            if name not in empty.columns:
                close = suggestion(name, empty.columns) or ": name one of the columns of clicks"
                raise ValueError(f"{place}: by: no column {shown(name)}{close}")
        value, kind = checked(empty, inner, f"{place}: value={shown(inner)}")
        if not aggregate.startswith("count") and not (kind.is_numeric() or kind == pl.Boolean):
            raise ValueError(f"{place}: value={shown(metric.value)}: {shown(inner)} is no number")
        used = [*metric.by, *value.meta.root_names()]
        if metric.where:
            where = f"{place}: where={shown(metric.where)}"
            used += checked(empty, metric.where, where, pl.Boolean)[0].meta.root_names()
        self.columns = tuple(dict.fromkeys(name for name in used if name != "time"))
        number = pa.float64() if kind.is_float() or kind.is_decimal() else _INT
        values = {name: (its or number, how) for name, _, how, its in _COLUMNS[aggregate]}
        keys = [MINUTE, *(clicks.field(name) for name in metric.by)]
        self.table: Table = partial_table(f"metric_{metric.name}", keys, values)

    def rows(self, clicks: pa.Table) -> pa.Table:
        """Clicks, with `time` and the columns `columns`, as rows of the table."""
        import polars as pl  # noqa: PLC0415 - not before Spark forks its workers

        frame = pl.DataFrame(pl.from_arrow(clicks.select(["time", *self.columns])))
        frame = frame.with_columns(pl.col("time").dt.truncate("1m").alias("minute"))
        if self.metric.where:
            frame = frame.filter(pl.sql_expr(self.metric.where))
        aggregate, inner = self.metric.parts
        value = pl.sql_expr(inner)
        if aggregate == "count distinct":
            texts = frame.select(value.cast(pl.String).alias("x"))["x"].to_arrow()
            frame = frame.with_columns(pl.Series("x", hashes_of(texts.cast(pa.string()))))
            value = pl.col("x").drop_nulls()
        found = frame.group_by("minute", *self.metric.by).agg(
            getattr(value, method)().alias(name) for name, method, _, _ in _COLUMNS[aggregate]
        )
        return to_arrow(found, self.table.schema)
