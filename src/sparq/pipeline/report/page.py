"""Fills in `report.html`: one file that requests nothing, whatever text clicks contain.

Equal input gives an equal page. Each chart reads its figures from the table below it, so they are
on the page once, and also there without JavaScript and for programs that read pages aloud.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sparq.pipeline.report.figures import EXAMPLES, STATUSES
from sparq.pipeline.sessions.rules import REASONS

CHARTS: Final = (
    ("traffic", "Clicks and page views", "lines", {"clicks": "clicks", "views": "page views"}),
    ("people", "Visitors and sessions", "lines", {"visitors": "visitors", "sessions": "sessions"}),
    ("statuses", "Statuses", "areas", {one: one.removeprefix("status_") for one in STATUSES}),
    ("bytes", "Bytes sent", "lines", {"bytes": "bytes"}),
)
CHARACTERS_MAX: Final = 120


def page_of(source: str, figures: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """The page about the result of `figures_of`; `run` is `report.json`, or empty without a run."""
    vendor, own = files("sparq.nsqadmin") / "static" / "vendor", files("sparq.pipeline.report")
    style, script = (
        (vendor / f"uplot.min.{kind}").read_text() + (own / f"report.{kind}").read_text()
        for kind in ("css", "js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return TEMPLATES.get_template("report.html").render(
        digest=digest,
        style=style,
        script=script,
        source=source,
        charts=list(_charts_over_time(figures["over_time"])) if figures["over_time"] else [],
        run=run,
        about=REASONS,
        examples_max=EXAMPLES,
        **figures,
    )


def _charts_over_time(over_time: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The arguments of the macro `chart` for each chart with figures."""
    style = "%Y-%m-%d" if over_time["step"] == "day" else "%Y-%m-%d %H:%M"
    rows = over_time["rows"].with_columns(pl.col("time").dt.strftime(style))
    for name, title, kind, columns in CHARTS:
        used = {head: column for column, head in columns.items() if rows[column].sum()}
        if used:
            yield name, title, kind, rows.select("time", **used)


def text_of(report: Mapping[str, Any]) -> str:
    """The content of `report.json` as text for a terminal."""
    return TEMPLATES.get_template("report.txt").render(report)


def visible(text: str) -> Markup:
    """Text of a click, cut, with numbers for what is not printable, and with its own direction."""
    cut = text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 3]}..."
    shown = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in cut)
    return Markup("<bdi>{}</bdi>").format("".join(shown))


TEMPLATES: Final = Environment(
    loader=PackageLoader("sparq.pipeline.report", ""),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {"visible": visible, "from_json": json.loads}
