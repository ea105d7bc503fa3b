"""The report of a run: `report.json`, `report.html`, and the text on the terminal.

If visitors were planted among the clicks, the findings are compared with their labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparq.pipeline.report.audit import Hashes, audit
from sparq.pipeline.report.figures import STATUSES, figures_of, newest_findings, scan
from sparq.pipeline.sessions.rules import REASONS
from sparq.pipeline.spam_analysis import FINDINGS
from sparq.pipeline.storage import TablePlace

Labels = Mapping[tuple[str, str], frozenset[str]]
"""(address, user agent) -> the reasons for which a visitor was planted."""


def report_of(
    data: TablePlace,
    facts: Mapping[str, Any],
    records: tuple[Hashes | None, Hashes],
    labels: Labels | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of `report.json` but for durations, and the figures of all clicks.

    Args:
        data: the data folder.
        facts: `source`; `published` and `resent`, numbers of messages; `logged`, of those in the
            topic's logs; `restarts`, the processes that died and were started again.
        records: hashes of acknowledged and of resent bodies; see `audit`.
        labels: the planted visitors; None if the clicks were the user's own.
    """
    counts, failures = audit(data, facts["logged"], *records)
    figures = figures_of(data)
    lists = {one["title"]: one["rows"] for one in figures["top_lists"]}
    report: dict[str, Any] = {
        **facts,
        **{name: counts[name] for name in ("archived", "distinct", "rejected", "session_clicks")},
        "metrics_clicks": counts["minute_clicks"],
        "exactly_once": not failures,
        "failures": failures,
        **{name: figures[name] for name in ("sessions", "minutes", "bytes", "visitors")},
        **{name: figures[name] for name in ("evicted_visits", "evicted_clicks")},
        "findings": {**dict.fromkeys(REASONS, 0), **figures["findings"]},
        "statuses": {name.removeprefix("status_"): figures[name] for name in STATUSES},
        "top_pages": [{"page": row[0], "clicks": row[1]} for row in lists.get("Pages", [])[:10]],
        "rejected_by_reason": {row[0]: row[1] for row in lists.get("Rejected by reason", [])},
    }
    if labels is not None:
        report["scores"] = scores(newest_findings(scan(data, FINDINGS)).to_dicts(), labels)
    return report, figures


def scores(findings: Iterable[Mapping[str, Any]], labels: Labels) -> dict[str, dict[str, float]]:
    """How well findings match the labels, by reason, and of all reasons together (`all`).

    `precision` is 1 if nothing was found, and `recall` if nothing was planted.
    """
    found = {(row["address"], row["user_agent"], row["reason"]) for row in findings}
    planted = {(*who, reason) for who, reasons in labels.items() for reason in reasons}
    scored = {}
    for name in (*REASONS, "all"):
        mine = {one for one in found if name in ("all", one[2])}
        theirs = {one for one in planted if name in ("all", one[2])}
        right = len(mine & theirs)
        scored[name] = {
            "found": len(mine),
            "planted": len(theirs),
            "precision": round(right / len(mine), 4) if mine else 1.0,
            "recall": round(right / len(theirs), 4) if theirs else 1.0,
        }
    return scored
