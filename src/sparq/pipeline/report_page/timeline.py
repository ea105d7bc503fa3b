"""The parts of the page that are charts over time, each with its figures as a table.

Pure. A chart is drawn twice, for wide and for narrow screens, with as many points as either can
show; the figures under the pointer and those of the table are of TABLE_POINTS points at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from sparq.pipeline.report_page import times
from sparq.pipeline.report_page.charts import (
    NARROW,
    WIDE,
    Chart,
    Hit,
    Layer,
    Size,
    draw,
    halved_between,
    stacked,
)
from sparq.pipeline.report_page.markup import Html, element, trusted
from sparq.pipeline.report_page.points import POINTS_MAX, Floats, Points, points_of
from sparq.pipeline.report_page.sections import number, row_head, section, table
from sparq.pipeline.samples import Sample

TABLE_POINTS: Final = 240
NARROW_POINTS: Final = 300
LAYERS_OF_QUERIES: Final = 4
"""Lines that the style sheet tells apart; further queries begin again."""

STATUSES: Final = ("2xx", "3xx", "4xx", "5xx", "1xx", "other")
"""From the bottom of the chart to its top."""

Draw = Callable[[Points], list[Layer]]


def minutes_sections(minutes: pa.Table) -> list[Html]:
    """Clicks, visitors and statuses per minute."""
    if not len(minutes):
        return [section("clicks", "Clicks and visitors per minute", element("p", "No minutes."))]
    names = [f"status_{status}" for status in STATUSES]
    used = [
        name for name in names if name in minutes.column_names and minutes[name].to_numpy().any()
    ]
    found = [_by_minute("clicks", "Clicks and visitors per minute", minutes, _COUNTED, _lines)]
    if used:
        found.append(_by_minute("statuses", "Statuses per minute", minutes, used, _areas))
    return found


_COUNTED: Final = ["clicks", "visitors"]


def _by_minute(name: str, title: str, minutes: pa.Table, columns: list[str], layers: Draw) -> Html:
    few = points_of(minutes, columns, TABLE_POINTS)
    charts = []
    for size, points_max in ((WIDE, POINTS_MAX), (NARROW, NARROW_POINTS)):
        points = points_of(minutes, columns, points_max)
        span = (float(points.starts[0]), float(points.starts[-1] + points.step))
        chart = Chart(
            _summary(title, few, columns),
            span,
            layers(points),
            times.minute_ticks(*span, size.ticks),
            _hits(few, columns),
        )
        charts += [element("p", _note(points), class_=f"note {size.name}"), draw(chart, size)]
    keys = [_key(column) for column in columns]
    return section(
        name,
        title,
        element("figure", legend(keys, keys, filled=layers is _areas), *charts),
        _table(title, few, columns),
    )


def _key(column: str) -> str:
    """A column's name in the legend, and its class in the style sheet."""
    return column.removeprefix("status_")


def _middles(points: Points) -> Floats:
    """Where points are drawn; of a single point its ends, since a line has two."""
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
    """What a point is, and what is not shown."""
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
    """The chart in words."""
    ends = [times.minute_text(points.starts[0]), times.minute_text(points.starts[-1] + points.step)]
    said = [
        f"{_key(name)}: mean {values.mean():,.1f}, most {values.max():,.1f} at"
        f" {times.span_text(int(points.starts[values.argmax()]), points.step)}"
        for name, values in ((name, points.values[name]) for name in columns)
    ]
    return f"{title}, {ends[0]} to {ends[1]} UTC. {'. '.join(said)}. The table has the figures."


def _hits(points: Points, columns: list[str]) -> list[Hit]:
    unit = "" if points.step == 1 else " per minute"
    return [
        Hit(
            float(start),
            float(start + points.step),
            f"{times.span_text(int(start), points.step)}: "
            + ", ".join(f"{rounded(points.values[c][at])} {_key(c)}" for c in columns)
            + unit,
        )
        for at, start in enumerate(points.starts.tolist())
    ]


def _table(title: str, points: Points, columns: list[str]) -> Html:
    heads = [("Time (UTC)", ""), *((_key(name), "number") for name in columns)]
    rows = (
        element(
            "tr",
            row_head(times.span_text(start, points.step)),
            *(number(rounded(points.values[name][at])) for name in columns),
        )
        for at, start in enumerate(points.starts.tolist())
    )
    name = f"{title}, figures" if points.step == 1 else f"{title}, means of {_each(points.step)}"
    return element("details", element("summary", "Show as table"), table(name, heads, rows))


def rounded(value: float) -> str:
    """A mean: whole where it is great, with a decimal where it is small."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def legend(keys: Sequence[str], names: Sequence[str], *, filled: bool = False) -> Html:
    """Which line, or which area, is which."""
    kind = " filled" if filled else ""
    line = trusted(
        '<svg viewBox="0 0 26 10" aria-hidden="true"><path class="line" d="M0 5h26"/></svg>'
    )
    entries = (
        element("li", element("span", line, class_=f"layer layer-{key}{kind}"), name)
        for key, name in zip(keys, names, strict=True)
    )
    return element("ul", *entries, class_="legend")


# The run


def run_sections(samples: Sequence[Sample]) -> list[Html]:
    """How fast the queries were and how far behind, by the time of the run."""
    charts: tuple[tuple[str, str, str, Callable[[Sample], float | None]], ...] = (
        ("rate", "Clicks per second during the run", "of the newest batch, by query", _rate),
        ("lag", "Lag during the run, in messages", "in the logs beyond the newest batch", _lag),
        ("age", "Lag during the run, in seconds", "age of the newest message read", _age),
    )
    found = [_by_run(*chart[:3], samples, chart[3]) for chart in charts]
    return [one for one in found if one is not None]


def _rate(sample: Sample) -> float | None:
    return sample.rows_per_second


def _lag(sample: Sample) -> float | None:
    return sample.lag_messages


def _age(sample: Sample) -> float | None:
    return sample.lag_seconds


def _by_run(
    name: str,
    title: str,
    what: str,
    samples: Sequence[Sample],
    value: Callable[[Sample], float | None],
) -> Html | None:
    known = [sample for sample in samples if value(sample) is not None]
    queries = sorted({sample.query for sample in known})
    if not queries:
        return None
    began = min(sample.time_s for sample in samples)
    keys = [f"q{number % LAYERS_OF_QUERIES}" for number in range(len(queries))]
    layers, rows = [], []
    for key, query in zip(keys, queries, strict=True):
        mine = sorted((s for s in known if s.query == query), key=lambda s: s.time_s)
        xs = np.array([sample.time_s - began for sample in mine])
        ys = np.array([float(value(sample) or 0.0) for sample in mine])
        rows += [(x, query, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
        layers.append(_drawn(key, xs, ys))
    figure = element(
        "figure",
        legend(keys, queries),
        [_run_chart(title, layers, queries, rows, size) for size in (WIDE, NARROW)],
    )
    note = element("p", f"Each batch of each query: {what}.", class_="note")
    return section(name, title, note, figure, _run_table(title, rows))


def _drawn(key: str, xs: Floats, ys: Floats) -> Layer:
    """A line; where all samples are of one time, one of a second's length."""
    if xs[0] == xs[-1]:
        xs, ys = np.array([xs[0], xs[0] + 1.0]), np.repeat(ys[-1:], 2)
    return Layer(key, xs, ys)


def _run_chart(
    title: str,
    layers: list[Layer],
    queries: list[str],
    rows: list[tuple[float, str, float]],
    size: Size,
) -> Html:
    last = max(float(layer.xs[-1]) for layer in layers)
    said = [
        f"{query}: mean {layer.ys.mean():,.1f}, most {layer.ys.max():,.1f}"
        for query, layer in zip(queries, layers, strict=True)
    ]
    summary = f"{title}, {times.seconds_text(last)}. {'. '.join(said)}. The table has the figures."
    ticks = times.second_ticks(last, size.ticks)
    return draw(Chart(summary, (0.0, last), layers, ticks, _run_hits(rows)), size)


def _few(rows: list[tuple[float, str, float]]) -> list[tuple[float, str, float]]:
    """Not more than TABLE_POINTS samples, evenly chosen, by time."""
    ordered = sorted(rows)
    if len(ordered) <= TABLE_POINTS:
        return ordered
    return [ordered[at] for at in np.linspace(0, len(ordered) - 1, TABLE_POINTS).astype(int)]


def _run_hits(rows: list[tuple[float, str, float]]) -> list[Hit]:
    few = _few(rows)
    places = halved_between(np.array([at for at, _, _ in few]))
    return [
        Hit(begin, end, f"{times.seconds_text(at)}: {query} {rounded(value)}")
        for (begin, end), (at, query, value) in zip(places, few, strict=True)
    ]


def _run_table(title: str, rows: list[tuple[float, str, float]]) -> Html:
    few = _few(rows)
    heads = [("Time into the run", ""), ("Query", ""), ("Value", "number")]
    shown = (
        element("tr", row_head(f"{at:,.1f} s"), element("td", query), number(rounded(value)))
        for at, query, value in few
    )
    name = f"{title}, figures" if len(few) == len(rows) else f"{title}, {len(few)} of {len(rows)}"
    return element("details", element("summary", "Show as table"), table(name, heads, shown))
