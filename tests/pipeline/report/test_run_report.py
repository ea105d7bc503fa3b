"""The report of a run: its keys, its audit, scores against the labels."""

import numpy as np

from sparq.pipeline.report.audit import HASH_DTYPE, hashes
from sparq.pipeline.report.run_report import report_of, scores
from sparq.pipeline.sessions.rules import REASONS

NONE = np.empty(0, HASH_DTYPE)


def test_the_report_has_what_programs_read(data, day):
    """All keys of `report.json` but for durations; the newest findings are scored."""
    count = len(day.lines)
    facts = {"source": "a day", "published": count, "resent": 0, "logged": count, "restarts": []}
    records = np.frombuffer(hashes(list(day.lines)), HASH_DTYPE), NONE
    report, figures = report_of(data, facts, records, day.labels)
    first = figures["top_lists"][0]["rows"][0]

    assert [
        *("source", "published", "resent", "logged", "restarts"),
        *("archived", "distinct", "rejected", "session_clicks", "metrics_clicks"),
        *("exactly_once", "failures", "sessions", "minutes", "bytes", "visitors"),
        *("evicted_visits", "evicted_clicks", "findings", "statuses", "top_pages"),
        *("rejected_by_reason", "scores"),
    ] == list(report)
    assert (True, []) == (report["exactly_once"], report["failures"])
    assert report["archived"] + report["rejected"] == count
    assert report["rejected"] == sum(report["rejected_by_reason"].values()) > 0
    assert {*REASONS} == {*report["findings"]}
    assert figures["findings"] == {name: n for name, n in report["findings"].items() if n}
    assert {"page": first[0], "clicks": first[1]} == report["top_pages"][0]
    assert report["scores"]["all"]["recall"] > 0.9

    failed, _ = report_of(data, {**facts, "logged": count + 1}, (NONE, NONE))
    assert (False, 2) == (failed["exactly_once"], len(failed["failures"]))
    assert "scores" not in failed


def test_scores_are_counted_by_reason_and_in_total():
    """Scores count found, planted and both."""
    reasons = (("1", "burst"), ("2", "burst"), ("1", "no_resources"))
    found = [{"address": one, "user_agent": "x", "reason": reason} for one, reason in reasons]
    labels = {("1", "x"): frozenset({"burst"}), ("3", "x"): frozenset({"burst"})}
    scored = scores(found, labels)

    assert [*REASONS, "all"] == list(scored)
    assert [2, 2, 0.5, 0.5] == list(scored["burst"].values())
    assert [1, 0, 0.0, 1.0] == list(scored["no_resources"].values())
    assert [3, 2, 0.3333, 0.5] == list(scored["all"].values())
    assert [0, 0, 1.0, 1.0] == list(scored["repeats"].values())
