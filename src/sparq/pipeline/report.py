"""The report of a run: for people on the terminal, for programs as `data/report.json`.

Pure: tables and figures in, a dictionary and a page of text out. Only the newest revision of a
finding counts. If visitors were planted, the findings are compared with the labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.audit import AuditResult
from sparq.pipeline.sessions.rules import REASONS

TOP_PAGES = 10
WIDTH = 78

Labels = Mapping[tuple[str, str], frozenset[str]]
"""(address, user agent) -> the reasons for which a visitor was planted."""


@dataclass(frozen=True, slots=True)
class Score:
    """How well findings match the labels: number found, number planted, and number in both."""

    found: int
    planted: int
    right: int

    @property
    def precision(self) -> float:
        """The share of the found that was planted; 1 if nothing was found."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """The share of the planted that was found; 1 if nothing was planted."""
        return self.right / self.planted if self.planted else 1.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run that are not part of its output.

    Attributes:
        published: acknowledged messages.
        resent: messages that were sent again after a send without an answer.
        seconds: duration of the whole and of its parts, by name.
        restarts: processes that died and were started again.
        labels: the planted visitors; None if the clicks were the user's own.
    """

    source: str
    published: int
    resent: int
    seconds: dict[str, float]
    restarts: list[str] = field(default_factory=list)
    labels: Labels | None = None


@dataclass(frozen=True, slots=True)
class PipelineOutput:
    """The output of the pipeline: tables of archive, rejected, metrics, sessions and findings."""

    archive: pa.Table
    rejected: pa.Table
    minutes: pa.Table
    sessions: pa.Table
    findings: pa.Table


def newest_findings(findings: pa.Table) -> list[dict[str, Any]]:
    """The newest revision of each finding that holds."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in findings.to_pylist():
        key = (row["session"], row["reason"])
        if key not in newest or newest[key]["revision"] < row["revision"]:
            newest[key] = row
    return [row for row in newest.values() if not row["withdrawn"]]


def scores(findings: Iterable[dict[str, Any]], labels: Labels) -> dict[str, Score]:
    """The score of each reason, and of all reasons together (`all`)."""
    found = {(row["address"], row["user_agent"], row["reason"]) for row in findings}
    planted = {(*who, reason) for who, reasons in labels.items() for reason in reasons}
    parts = {
        reason: ({one for one in found if one[2] == reason}, {p for p in planted if p[2] == reason})
        for reason in REASONS
    }
    parts["all"] = (found, planted)
    return {name: Score(len(f), len(p), len(f & p)) for name, (f, p) in parts.items()}


def top_pages(archive: pa.Table) -> list[dict[str, Any]]:
    """The pages with the most clicks; pages with equal clicks in order of their names."""
    pages = archive["page"].drop_null()
    counts = pa.table(dict(zip(("page", "clicks"), pc.value_counts(pages).flatten(), strict=True)))
    ordered = counts.sort_by([("clicks", "descending"), ("page", "ascending")])
    return list(ordered.slice(0, TOP_PAGES).to_pylist())


def report_of(run: RunFacts, audit: AuditResult, output: PipelineOutput) -> dict[str, Any]:
    """All figures in the form of `report.json`: the issue's keys first."""
    findings = newest_findings(output.findings)
    by_reason = Counter(row["reason"] for row in findings)
    rows = output.minutes
    total = run.seconds["total"]
    report: dict[str, Any] = {
        "published": run.published,
        "archived": audit.archived,
        "distinct": audit.distinct,
        "rejected": audit.rejected,
        "resent": run.resent,
        "metrics_clicks": audit.metrics_clicks,
        "sessions": len(output.sessions),
        "session_clicks": audit.session_clicks,
        "findings": {reason: by_reason.get(reason, 0) for reason in REASONS},
        "exactly_once": audit.exactly_once,
        "seconds": round(total, 1),
        "source": run.source,
        "logged": audit.logged,
        "failures": audit.failures,
        "restarts": run.restarts,
        **_evicted(output.sessions),
        "minutes": len(rows),
        "bytes": pc.sum(output.archive["bytes"]).as_py() or 0,
        "visitors": _visitors(output.archive),
        "statuses": _statuses(rows),
        "top_pages": top_pages(output.archive),
        "rejected_by_reason": dict(Counter(output.rejected["reason"].to_pylist())),
        "stage_seconds": {name: round(value, 1) for name, value in run.seconds.items()},
        "clicks_per_second": round(audit.archived / max(total, 0.001)),
    }
    if run.labels is not None:
        report["scores"] = {
            name: {
                "found": score.found,
                "planted": score.planted,
                "precision": round(score.precision, 4),
                "recall": round(score.recall, 4),
            }
            for name, score in scores(findings, run.labels).items()
        }
    return report


def _visitors(archive: pa.Table) -> int:
    """Number of distinct visitors of the run, by address and user agent."""
    return int(archive.group_by(["address", "user_agent"]).aggregate([]).num_rows)


def _evicted(sessions: pa.Table) -> dict[str, int]:
    """Number of the sessions that ended early to make room for others, and of their clicks."""
    clicks = sessions.filter(pc.equal(sessions["ended"], "room"))["clicks"]
    return {"evicted_visits": len(clicks), "evicted_clicks": pc.sum(clicks).as_py() or 0}


def _statuses(rows: pa.Table) -> dict[str, int]:
    names = [name for name in rows.column_names if name.startswith("status_")]
    return {name.removeprefix("status_"): pc.sum(rows[name]).as_py() or 0 for name in names}


# For people


def text_of(report: Mapping[str, Any]) -> str:
    """Format the report as text."""
    parts = [
        ["", f"  {report['source']}", "  " + "-" * (WIDTH - 4)],
        _figure_lines(report),
        _findings(report),
        _pages(report),
        _verdict(report),
    ]
    return "\n".join("\n".join(part) for part in parts if part)


def _figure_lines(report: Mapping[str, Any]) -> list[str]:
    statuses = ", ".join(f"{name} {n:,}" for name, n in report["statuses"].items() if n)
    minutes = f"{report['minutes']:,} minutes"
    lines = [
        ("published", f"{report['published']:>12,}   resent {report['resent']:,}"),
        ("archived", f"{report['archived']:>12,}   distinct ids {report['distinct']:,}"),
        ("rejected", f"{report['rejected']:>12,}   {_reasons(report['rejected_by_reason'])}"),
        ("in minutes", f"{report['metrics_clicks']:>12,}   {minutes}"),
        ("in sessions", f"{report['session_clicks']:>12,}   {report['sessions']:,} sessions"),
        ("visitors", f"{report['visitors']:>12,}"),
        ("bytes", f"{report['bytes']:>12,}"),
        ("statuses", f"{'':>12}   {statuses}"),
        (
            "seconds",
            f"{report['seconds']:>12,}   {report['clicks_per_second']:,} clicks per second",
        ),
    ]
    restarts = report["restarts"]
    if report["evicted_visits"]:
        text = f"visits with {report['evicted_clicks']:,} clicks, to make room"
        lines.append(("ended early", f"{report['evicted_visits']:>12,}   {text}"))
    if restarts:
        lines.append(("restarted", f"{len(restarts):>12,}   {', '.join(restarts)}"))
    return [f"  {name:<16}{text}" for name, text in lines]


def _reasons(reasons: Mapping[str, int]) -> str:
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ("\n" + " " * 33).join(f"{count:>5,} {reason}" for reason, count in ordered)


def _findings(report: Mapping[str, Any]) -> list[str]:
    scored = report.get("scores")
    columns = f"{'planted':>10}{'precision':>11}{'recall':>9}" if scored else ""
    lines = ["", f"  {'spam analysis':<22}{'found':>8}{columns}"]
    for reason, count in report["findings"].items():
        lines.append(f"  {reason:<22}{count:>8,}{_score(scored, reason)}")
    if scored:
        lines.append(f"  {'all':<22}{scored['all']['found']:>8,}{_score(scored, 'all')}")
    return lines


def _score(scored: Mapping[str, Any] | None, name: str) -> str:
    if not scored:
        return ""
    score = scored[name]
    return f"{score['planted']:>10,}{score['precision']:>11.3f}{score['recall']:>9.3f}"


def _pages(report: Mapping[str, Any]) -> list[str]:
    lines = ["", f"  {'top pages':<54}{'clicks':>8}"]
    for row in report["top_pages"]:
        page = row["page"] if len(row["page"]) <= 52 else row["page"][:49] + "..."
        lines.append(f"  {page:<54}{row['clicks']:>8,}")
    return lines


def _verdict(report: Mapping[str, Any]) -> list[str]:
    if report["exactly_once"]:
        text = "audit passed: every acknowledged click is stored exactly once"
        return ["", f"  {text}", ""]
    return ["", "  AUDIT FAILED", *(f"  - {failure}" for failure in report["failures"]), ""]
