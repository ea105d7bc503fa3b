"""The page: all parts in their order, the audit's result first.

Pure: equal input gives equal text. The page has no script and makes no request, and its policy
allows neither, whatever the text of a click is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from sparq.pipeline.audit import newest_rows
from sparq.pipeline.report import newest_findings
from sparq.pipeline.report_page import sections
from sparq.pipeline.report_page.markup import Html, Part, element, trusted, visible
from sparq.pipeline.report_page.style import STYLE
from sparq.pipeline.report_page.timeline import minutes_sections, run_sections
from sparq.pipeline.samples import Sample

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


def page_of(
    report: Mapping[str, Any],
    minutes: pa.Table,
    findings: pa.Table,
    samples: Sequence[Sample] = (),
) -> str:
    """The report of a run as HTML.

    Args:
        report: what `report.report_of` returns, or `report.json` holds.
        minutes: rows of the metrics, all revisions: `minute` (timestamp, UTC), `revision`,
            `clicks`, `visitors` and `status_*`.
        findings: rows of FINDING_SCHEMA, all revisions.
        samples: the progress of the queries; empty where nobody listened.
    """
    main = [
        *minutes_sections(newest_rows(minutes)),
        sections.top_pages(report),
        sections.findings(report, newest_findings(findings)),
        *run_sections(samples),
        sections.rejected(report),
        sections.stages(report),
    ]
    body = [
        element("a", "Skip to the charts", href="#charts", class_="skip"),
        element("header", *_top(report)),
        _links(main),
        element("main", *main, id="charts", tabindex=-1),
    ]
    whole = element("html", element("head", *_head(report)), element("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _head(report: Mapping[str, Any]) -> list[Part]:
    result = "audit passed" if report["exactly_once"] else "AUDIT FAILED"
    return [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        # Without one, a browser would ask the server of the page for /favicon.ico.
        element("link", rel="icon", href="data:,"),
        element("title", f"Clicks: {result}"),
        element("style", trusted(STYLE)),
    ]


def _top(report: Mapping[str, Any]) -> list[Part]:
    return [
        element("h1", "Report of the clicks pipeline"),
        element("p", visible(str(report["source"])), class_="source"),
        sections.verdict(report),
        sections.warnings(report),
        sections.figures(report),
    ]


def _links(main: Sequence[Html | None]) -> Html:
    """To the parts that are there."""
    there = "".join(part for part in main if part is not None)
    links = [
        element("li", element("a", title, href=f"#{name}"))
        for name, title in LINKS
        if f'<h2 id="{name}">' in there
    ]
    return element("nav", element("ul", *links), aria_label="Parts of this page")
