"""The parts of the page that are words and numbers: the audit, the figures, pages, findings.

Pure: the report's dictionary in, HTML out. Optional keys that a report lacks are not shown. Bars
are cells of the tables that they illustrate, so their figures are text, also for screen readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sparq.pipeline.report_page.markup import Html, Part, element, visible

Report = Mapping[str, Any]

FINDINGS_SHOWN: Final = 20
"""Of each reason, those with the most evidence."""

WARNINGS: Final = (
    ("late", "{:,} clicks came after their minute was closed: they are archived, and counted here"),
    (
        "evicted_visits",
        "{:,} visits left the memory before they were over: not every rule saw them",
    ),
    ("evicted_clicks", "{:,} clicks were of such visits"),
    ("evicted_findings", "{:,} findings were forgotten: seen again, they are told as new ones"),
    ("closed_early", "{:,} minutes were closed before their time, for want of memory"),
    ("resent", "{:,} messages were sent again after a send without an answer"),
)
REASONS: Final = {
    "declared_robot": "says in its user agent that it is one",
    "undeclared_robot": "does not say so, yet asks for robots.txt or clicks like clockwork",
    "burst": "more pages within seconds than anyone opens by hand",
    "no_resources": "a visit of many pages without any image, style or script",
    "repeats": "the same page again and again",
}
SIZES: Final = ("bytes", "kB", "MB", "GB", "TB")


def section(name: str, title: str, *parts: Part) -> Html:
    """A part of the page, named by its heading."""
    heading = element("h2", title, id=name)
    return element("section", heading, *parts, aria_labelledby=name)


def verdict(report: Report) -> Html:
    """The audit's result."""
    if report["exactly_once"]:
        title = "Audit passed"
        said: Part = element(
            "p",
            f"Each of the {report['published']:,} acknowledged clicks is there exactly once: "
            f"{report['archived']:,} archived, {report['rejected']:,} rejected as unreadable.",
        )
    else:
        title = "Audit failed"
        said = element("ul", *(element("li", text) for text in report["failures"]))
    kind = "holds" if report["exactly_once"] else "fails"
    heading = element("h2", title, id="audit")
    return element("section", heading, said, class_=f"verdict {kind}", aria_labelledby="audit")


def warnings(report: Report) -> Html | None:
    """What needs attention; None if nothing does."""
    said = [text.format(report[key]) for key, text in WARNINGS if report.get(key)]
    if report.get("restarts"):
        said.append(f"Started again during the run: {', '.join(report['restarts'])}")
    if not said:
        return None
    return element("ul", *(element("li", text) for text in said), class_="warnings")


def figures(report: Report) -> Html:
    """The numbers of the run."""
    shown: list[tuple[str, str, str]] = [
        ("Published", f"{report['published']:,}", "acknowledged clicks"),
        ("Archived", f"{report['archived']:,}", f"{report['distinct']:,} different ids"),
        ("Rejected", f"{report['rejected']:,}", "unreadable lines"),
        ("Late", f"{report['late']:,}", "after their minute was closed"),
        ("Visitors", f"{report['visitors']:,}", "address and user agent"),
        ("Minutes", f"{report['minutes']:,}", "with a click"),
        ("Sent", size_text(report["bytes"]), "by the web server"),
        ("Findings", f"{sum(report['findings'].values()):,}", "visitors and reasons"),
        ("Rate", f"{report['clicks_per_second']:,}", "clicks a second, start to end"),
        ("Duration", f"{report['seconds']:,} s", "start to report"),
    ]
    boxes = (
        element("div", element("dt", name), element("dd", value, element("small", unit)))
        for name, value, unit in shown
    )
    return element("dl", *boxes, class_="figures")


def size_text(count: float) -> str:
    """Bytes in a unit of three digits."""
    for unit in SIZES:
        if count < 1_000 or unit == SIZES[-1]:
            break
        count /= 1_000
    return f"{count:,.0f} {unit}" if unit == SIZES[0] else f"{count:,.1f} {unit}"


def bar(value: float, highest: float) -> Html:
    """A cell whose length says what the cell before it says as a number."""
    share = round(100 * value / highest, 1) if highest else 0
    none = None if share else "none"
    cell = element("span", style=f"width:{share}%", class_=none)
    return element("td", cell, class_="bar", aria_hidden="true")


def number(value: Part) -> Html:
    """A cell with a number."""
    return element("td", f"{value:,}" if isinstance(value, int) else value, class_="number")


def table(name: str, heads: Sequence[tuple[str, str]], rows: Iterable[Html]) -> Html:
    """A table in a region that scrolls by itself, also by keys.

    Args:
        name: what it is, for those who do not see it.
        heads: of each column: title, and class of its cells ("" for plain text).
        rows: of `element("tr", ...)`.
    """
    titles = (element("th", text, scope="col", class_=kind or None) for text, kind in heads)
    whole = element(
        "table", element("thead", element("tr", *titles)), element("tbody", *rows), aria_label=name
    )
    return element("div", whole, class_="scroll", tabindex=0, role="region", aria_label=name)


def row_head(*parts: Part) -> Html:
    """The cell that names its row."""
    return element("th", *parts, scope="row", class_="text")


def top_pages(report: Report) -> Html | None:
    """The pages with the most clicks."""
    pages = report["top_pages"]
    if not pages:
        return None
    highest = max(page["clicks"] for page in pages)
    rows = (
        element(
            "tr",
            row_head(visible(page["page"])),
            number(page["clicks"]),
            bar(page["clicks"], highest),
        )
        for page in pages
    )
    heads = [("Page", ""), ("Clicks", "number"), ("", "bar")]
    return section("pages", "Top pages", table("Top pages", heads, rows))


def rejected(report: Report) -> Html | None:
    """Why messages could not be read."""
    counts = report.get("rejected_by_reason") or {}
    ordered = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return _counted("rejected", "Rejected messages", "Reason", ordered)


def stages(report: Report) -> Html | None:
    """Where the time of the run went."""
    seconds = {k: v for k, v in report.get("stage_seconds", {}).items() if k != "total"}
    return _counted("stages", "Stages of the run", "Stage", seconds, "Seconds")


def _counted(
    name: str, title: str, what: str, counts: Mapping[str, Any] | None, unit: str = "Messages"
) -> Html | None:
    if not counts:
        return None
    highest = max(counts.values())
    rows = (
        element(
            "tr",
            row_head(visible(key)),
            number(value if isinstance(value, int) else f"{value:,.1f}"),
            bar(value, highest),
        )
        for key, value in counts.items()
    )
    heads = [(what, ""), (unit, "number"), ("", "bar")]
    return section(name, title, table(title, heads, rows))


def findings(report: Report, newest: Sequence[Mapping[str, Any]]) -> Html:
    """Findings by reason, how right they are where that is known, and the strongest of each."""
    scores = report.get("scores")
    heads = [("Reason", ""), ("Found", "number"), ("", "bar")]
    if scores:
        heads += [(title, "number") for title in ("Planted", "Precision", "Recall")]
    counts = report["findings"]
    highest = max(counts.values(), default=0)
    rows = [_reason(reason, counts[reason], highest, scores) for reason in counts]
    if scores:
        rows.append(_reason("all", scores["all"]["found"], 0, scores))
    note = None
    if scores:
        note = "Planted visitors are known, so findings can be checked: precision is the share of"
        note += " findings that were planted, recall the share of the planted that were found."
    return section(
        "findings",
        "Findings by reason",
        element("p", note, class_="note") if note else None,
        table("Findings by reason", heads, rows),
        [_strongest(reason, newest) for reason in counts],
    )


def _reason(reason: str, count: int, highest: int, scores: Mapping[str, Any] | None) -> Html:
    said = REASONS.get(reason)
    cells: list[Part] = [
        row_head(reason, element("div", said, class_="note") if said else None),
        number(count),
        bar(count, highest),
    ]
    if scores:
        score = scores[reason]
        cells += [
            number(score["planted"]),
            number(f"{score['precision']:.3f}"),
            number(f"{score['recall']:.3f}"),
        ]
    return element("tr", *cells)


def _strongest(reason: str, newest: Sequence[Mapping[str, Any]]) -> Html | None:
    """The findings of a reason with the greatest amount, of equals the first by address."""
    mine = [one for one in newest if one["reason"] == reason]
    if not mine:
        return None
    mine.sort(key=lambda one: (-one["amount"], one["address"], one["user_agent"]))
    heads = [("Visitor", ""), ("Amount", "number"), ("First", ""), ("Last", ""), ("Evidence", "")]
    shown = mine[:FINDINGS_SHOWN]
    of = f"the {len(shown)} strongest of {len(mine):,}" if len(mine) > len(shown) else "all"
    name = f"{reason}: {of} findings" if of != "all" else f"{reason}: all {len(mine)} findings"
    return element("details", element("summary", name), table(name, heads, map(_finding, shown)))


def _finding(finding: Mapping[str, Any]) -> Html:
    who = [visible(finding["address"], 60), element("br"), visible(finding["user_agent"])]
    times = [
        element("td", _time(finding[name]), class_="when") for name in ("first_time", "last_time")
    ]
    evidence = element("td", visible(finding["evidence"]), class_="text")
    return element("tr", row_head(who), number(int(finding["amount"])), *times, evidence)


def _time(value: datetime) -> str:
    return f"{value:%-d %b %H:%M:%S}"
