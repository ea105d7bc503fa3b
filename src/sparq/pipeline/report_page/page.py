"""Fills in the template `report.html` for the page of a report.

Pure: equal input gives equal text. The page has no script and makes no request, and its policy
allows neither, whatever text the clicks contain.

1. Jinja2 escapes everything. A template that uses an undefined name fails instead of showing
   nothing.
2. `visible` shows the text of clicks: a character that is invisible, or that changes the direction
   of the surrounding text, is shown as its number.
3. Bars are cells of the tables that they illustrate, so their figures are also available as text,
   for example to screen readers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sparq.pipeline.monitor.progress import QuerySample
from sparq.pipeline.report import newest_findings
from sparq.pipeline.report_page.timeline import minutes_charts, run_charts
from sparq.pipeline.sessions.rules import REASONS

Report = Mapping[str, Any]

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)
LINKS: Final = (
    ("clicks", "Clicks and visitors"),
    ("statuses", "Statuses"),
    ("pages", "Top pages"),
    ("findings", "Findings"),
    ("rate", "Rate"),
    ("lag", "Lag"),
    ("rejected", "Rejected"),
    ("stages", "Stages"),
)
FINDINGS_SHOWN: Final = 20
"""Maximum number of findings shown for each reason, those with the most evidence."""

WARNINGS: Final = (
    (
        "evicted_visits",
        "{:,} visits were ended early for lack of room: their further clicks are other visits",
    ),
    ("resent", "{:,} messages were sent again because an earlier send got no answer"),
)
SIZES: Final = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True)
class CountTable:
    """A part of the page with a table of counts; the highest count has a full bar."""

    name: str
    title: str
    what: str
    unit: str
    counts: Mapping[str, float]


def page_of(
    report: Report, minutes: pa.Table, findings: pa.Table, samples: Sequence[QuerySample] = ()
) -> str:
    """The report of a run as HTML.

    Args:
        report: the result of `report.report_of`, or the content of `report.json`.
        minutes: a row per minute: `minute` (timestamp, UTC), `clicks`, `visitors`, `status_*`.
        findings: rows of `findings`, all revisions.
        samples: the progress of the queries; empty if it was not recorded.
    """
    by_minute, by_run = minutes_charts(minutes), run_charts(samples)
    tops = {page["page"]: page["clicks"] for page in report["top_pages"]}
    reasons = (report.get("rejected_by_reason") or {}).items()
    ordered = dict(sorted(reasons, key=lambda item: (-item[1], item[0])))
    seconds = {k: v for k, v in report.get("stage_seconds", {}).items() if k != "total"}
    counted = (
        CountTable("pages", "Top pages", "Page", "Clicks", tops),
        CountTable("rejected", "Rejected messages", "Reason", "Messages", ordered),
        CountTable("stages", "Stages of the run", "Stage", "Seconds", seconds),
    )
    there = {"clicks", "findings"} | {one.name for one in (*by_minute, *by_run)}
    there |= {one.name for one in counted if one.counts}
    scores = report.get("scores")
    heads = [("Reason", ""), ("Found", "number"), ("", "bar")]
    if scores:
        heads += [(title, "number") for title in ("Planted", "Precision", "Recall")]
    newest = newest_findings(findings)
    strongest = [_strongest(reason, newest) for reason in report["findings"]]
    return (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            policy=POLICY,
            warnings=_warnings(report),
            links=[(name, title) for name, title in LINKS if name in there],
            minutes=by_minute,
            run=by_run,
            scores=scores,
            reasons=REASONS,
            finding_heads=heads,
            strongest=[(name, shown) for name, shown in strongest if shown],
            **{one.name: one for one in counted},
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sparq.pipeline.report_page", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"visible": visible, "figure": figure, "size_text": size_text}
    return environment


def _warnings(report: Report) -> list[str]:
    """Warnings of the report, as sentences."""
    warnings = [text.format(report[key]) for key, text in WARNINGS if report.get(key)]
    if report.get("restarts"):
        warnings.append(f"Restarted during the run: {', '.join(report['restarts'])}")
    return warnings


def _strongest(
    reason: str, newest: Sequence[Mapping[str, Any]]
) -> tuple[str, list[Mapping[str, Any]]]:
    """A title, and the findings of a reason with the most evidence; ties in order of address."""
    mine = [one for one in newest if one["reason"] == reason]
    mine.sort(key=lambda one: (-one["amount"], one["address"], one["user_agent"]))
    shown = mine[:FINDINGS_SHOWN]
    if len(mine) > len(shown):
        return f"{reason}: the {len(shown)} strongest of {len(mine):,} findings", shown
    return f"{reason}: all {len(mine)} findings", shown


def figure(value: float) -> str:
    """Format a count as it is, and another number with one decimal."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size_text(count: float) -> str:
    """Format a number of bytes in a unit that keeps it below 1,000."""
    for unit in SIZES:
        if count < 1_000 or unit == SIZES[-1]:
            break
        count /= 1_000
    return f"{count:,.0f} {unit}" if unit == SIZES[0] else f"{count:,.1f} {unit}"


def visible(text: str, characters_max: int = 200) -> Markup:
    """Text of a click, cut to `characters_max` and isolated from the text direction around it."""
    cut = text if len(text) <= characters_max else f"{text[: characters_max - 3]}..."
    return Markup("<bdi>{}</bdi>").format("".join(map(_shown, cut)))


def _shown(character: str) -> str:
    """A character, or its number if it is not visible.

    Invisible are control characters, direction marks and lone surrogates (which cannot even be
    encoded as UTF-8).
    """
    if unicodedata.category(character)[0] != "C":
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
