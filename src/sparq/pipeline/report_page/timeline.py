"""The charts over time, each with its figures for a table.

Pure. Each chart is drawn twice, for wide and for narrow screens, with as many points as the screen
can show. The figures under the pointer and in the table cover at most TABLE_POINTS points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from markupsafe import Markup

from sparq.pipeline.monitor.progress import QuerySample
from sparq.pipeline.report_page import times
from sparq.pipeline.report_page.charts import (
    NARROW,
    WIDE,
    HoverArea,
    Layer,
    ReportChart,
    Size,
    draw,
    halved_between,
    stacked,
)
from sparq.pipeline.report_page.points import POINTS_MAX, Floats, Points, points_of

TABLE_POINTS: Final = 240
NARROW_POINTS: Final = 300
LAYERS_OF_QUERIES: Final = 4
"""Number of lines that the style sheet distinguishes; further queries reuse their styles."""

STATUSES: Final = ("2xx", "3xx", "4xx", "5xx", "1xx", "other")
"""Order in the chart, from bottom to top."""

Draw = Callable[[Points], list[Layer]]
Row = tuple[float, str, float]
"""A sample of a run: seconds since its start, the query, and the value."""


class DrawnChart(NamedTuple):
    """A chart for screens of one size, and the note above it."""

    size: str
    svg: Markup
    note: str = ""


@dataclass(frozen=True, slots=True)
class Charts:
    """A section of the page: one chart over time, and the table of its figures.

    Attributes:
        legend: the lines or areas: class in the style sheet, and name.
        filled: whether they are areas.
        charts: the same chart for each screen size.
        table: the title of the table.
        heads: of each column: title, and class of its cells ("" for plain text).
        rows: the cells of each row.
        note: a note for all charts of this part.
    """

    name: str
    title: str
    legend: Sequence[tuple[str, str]]
    filled: bool
    charts: Sequence[DrawnChart]
    table: str
    heads: Sequence[tuple[str, str]]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def minutes_charts(minutes: pa.Table) -> list[Charts]:
    """Charts of clicks, visitors and statuses per minute; none if there are no minutes."""
    if not len(minutes):
        return []
    names = [f"status_{status}" for status in STATUSES]
    used = [
        name for name in names if name in minutes.column_names and minutes[name].to_numpy().any()
    ]
    counted = ["clicks", "visitors"]
    found = [_by_minute("clicks", "Clicks and visitors per minute", minutes, counted, _lines)]
    if used:
        found.append(_by_minute("statuses", "Statuses per minute", minutes, used, _areas))
    return found


def _by_minute(
    name: str, title: str, minutes: pa.Table, columns: list[str], layers: Draw
) -> Charts:
    few = points_of(minutes, columns, TABLE_POINTS)
    charts = []
    for size, points_max in ((WIDE, POINTS_MAX), (NARROW, NARROW_POINTS)):
        points = points_of(minutes, columns, points_max)
        span = (float(points.starts[0]), float(points.starts[-1] + points.step))
        chart = ReportChart(
            _summary(title, few, columns),
            span,
            layers(points),
            times.minute_ticks(*span, size.ticks),
            _hits(few, columns),
        )
        charts.append(DrawnChart(size.name, draw(chart, size), _note(points)))
    keys = [_key(column) for column in columns]
    rows = [
        (times.span_text(start, few.step), *(rounded(few.values[one][at]) for one in columns))
        for at, start in enumerate(few.starts.tolist())
    ]
    return Charts(
        name,
        title,
        legend=[(key, key) for key in keys],
        filled=layers is _areas,
        charts=charts,
        table=f"{title}, figures" if few.step == 1 else f"{title}, means of {_each(few.step)}",
        heads=[("Time (UTC)", ""), *((key, "number") for key in keys)],
        rows=rows,
    )


def _key(column: str) -> str:
    """The name of a column in the legend, and its class in the style sheet."""
    return column.removeprefix("status_")


def _middles(points: Points) -> Floats:
    """Return the middle of each point on the x axis; of a single one both ends: lines need two."""
    if len(points) == 1:
        return np.array([points.starts[0], points.starts[0] + points.step], np.float64)
    return points.starts.astype(np.float64) + points.step / 2


def _of_line(points: Points, column: str) -> Floats:
    values = points.values[column]
    return np.repeat(values, 2) if len(points) == 1 else values


def _lines(points: Points) -> list[Layer]:
    xs = _middles(points)
    return [
        Layer("clicks", xs, _of_line(points, "clicks"), filled=True),
        Layer("visitors", xs, _of_line(points, "visitors")),
    ]


def _areas(points: Points) -> list[Layer]:
    columns = list(points.values)
    keys = [_key(column) for column in columns]
    return stacked(keys, _middles(points), [_of_line(points, column) for column in columns])


def _note(points: Points) -> str:
    """A note: the time shown, the length of a point, and the clicks that are left out."""
    ends = (points.starts[0], points.starts[-1] + points.step)
    span = " to ".join(times.minute_text(int(end)) for end in ends)
    text = f"{span} UTC. A point is one minute."
    if points.step > 1:
        text = f"{span} UTC. A point is the mean per minute of {_each(points.step)}."
    if points.left_out:
        text += f" {points.left_out:,} clicks far away in time are not shown."
    return text


def _each(step: int) -> str:
    words = times.step_text(step)
    return words if words[0].isdigit() else f"one {words}"


def _summary(title: str, points: Points, columns: list[str]) -> str:
    """A description of the chart in words."""
    ends = [times.minute_text(points.starts[0]), times.minute_text(points.starts[-1] + points.step)]
    parts = [
        f"{_key(name)}: mean {values.mean():,.1f}, maximum {values.max():,.1f} at"
        f" {times.span_text(int(points.starts[values.argmax()]), points.step)}"
        for name, values in ((name, points.values[name]) for name in columns)
    ]
    return f"{title}, {ends[0]} to {ends[1]} UTC. {'. '.join(parts)}. The table has the figures."


def _hits(points: Points, columns: list[str]) -> list[HoverArea]:
    unit = "" if points.step == 1 else " per minute"
    return [
        HoverArea(
            float(start),
            float(start + points.step),
            f"{times.span_text(int(start), points.step)}: "
            + ", ".join(f"{rounded(points.values[c][at])} {_key(c)}" for c in columns)
            + unit,
        )
        for at, start in enumerate(points.starts.tolist())
    ]


def rounded(value: float) -> str:
    """Format a mean: large or whole numbers without decimals, others with one."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


# The run


def run_charts(samples: Sequence[QuerySample]) -> list[Charts]:
    """Charts of the queries' rate and lag, by the time of the run."""
    kinds = (
        ("rate", "Clicks per second during the run", "its messages divided by its duration"),
        ("lag", "Lag during the run, in messages", "messages in the logs after its end"),
        ("age", "Lag during the run, in seconds", "age of the newest message read, at its end"),
    )
    values = (
        [(sample, sample.rows_per_second) for sample in samples],
        [(sample, sample.lag_messages) for sample in samples],
        [(sample, sample.lag_seconds) for sample in samples],
    )
    known = ([(s, value) for s, value in some if value is not None] for some in values)
    began = min((sample.time_s for sample in samples), default=0.0)
    return [_by_run(*kind, began, some) for kind, some in zip(kinds, known, strict=True) if some]


def _by_run(
    name: str, title: str, what: str, began: float, known: Sequence[tuple[QuerySample, float]]
) -> Charts:
    rows = sorted((sample.time_s - began, sample.query, float(value)) for sample, value in known)
    queries = sorted({query for _, query, _ in rows})
    keys = [f"q{number % LAYERS_OF_QUERIES}" for number in range(len(queries))]
    layers = [
        _drawn(key, *np.array([(x, y) for x, one, y in rows if one == query]).T)
        for key, query in zip(keys, queries, strict=True)
    ]
    few = _few(rows)
    charts = [
        DrawnChart(one.name, _run_chart(title, layers, queries, few, one)) for one in (WIDE, NARROW)
    ]
    whole = len(few) == len(rows)
    return Charts(
        name,
        title,
        legend=list(zip(keys, queries, strict=True)),
        filled=False,
        charts=charts,
        table=f"{title}, figures" if whole else f"{title}, {len(few)} of {len(rows)}",
        heads=[("Time into the run", ""), ("Query", ""), ("Value", "number")],
        rows=[(f"{at:,.1f} s", query, rounded(value)) for at, query, value in few],
        note=f"For each batch of each query: {what}.",
    )


def _drawn(key: str, xs: Floats, ys: Floats) -> Layer:
    """A line; if all samples have the same time, it is one second long."""
    if xs[0] == xs[-1]:
        xs, ys = np.array([xs[0], xs[0] + 1.0]), np.repeat(ys[-1:], 2)
    return Layer(key, xs, ys)


def _run_chart(
    title: str, layers: list[Layer], queries: list[str], few: list[Row], size: Size
) -> Markup:
    last = max(float(layer.xs[-1]) for layer in layers)
    parts = [
        f"{query}: mean {layer.ys.mean():,.1f}, maximum {layer.ys.max():,.1f}"
        for query, layer in zip(queries, layers, strict=True)
    ]
    summary = f"{title}, {times.seconds_text(last)}. {'. '.join(parts)}. The table has the figures."
    places = halved_between(np.array([at for at, _, _ in few]))
    hits = [
        HoverArea(begin, end, f"{times.seconds_text(at)}: {query} {rounded(value)}")
        for (begin, end), (at, query, value) in zip(places, few, strict=True)
    ]
    ticks = times.second_ticks(last, size.ticks)
    return draw(ReportChart(summary, (0.0, last), layers, ticks, hits), size)


def _few(rows: list[Row]) -> list[Row]:
    """At most TABLE_POINTS samples, evenly chosen from rows that are ordered by time."""
    if len(rows) <= TABLE_POINTS:
        return rows
    return [rows[at] for at in np.linspace(0, len(rows) - 1, TABLE_POINTS).astype(int)]
