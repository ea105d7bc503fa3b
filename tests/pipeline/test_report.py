"""The report of a run: newest revisions, scores against the labels, the text."""

import pyarrow as pa
import pytest

from sparq.pipeline import report
from sparq.pipeline.audit import AuditResult
from sparq.pipeline.report import PipelineOutput, RunFacts, Score, newest_findings, scores
from sparq.pipeline.sessions.rules import REASONS
from tests.pipeline.report_page import sample_reports

BURST, BARE = "burst", "no_resources"
CLICKS = [("/b", "a", "1", 10), ("/a", "a", "1", 20), ("/b", "c", "2", 30), (None, "c", "2", None)]
ARCHIVE = pa.table(
    dict(zip(("page", "address", "user_agent", "bytes"), zip(*CLICKS, strict=True), strict=True))
)


def test_only_the_newest_revision_of_a_finding_counts():
    """Only the newest revision of each finding counts, in any order, unless it is withdrawn."""
    rows = [
        {"session": session, "reason": reason, "revision": revision, "withdrawn": revision == 9}
        for session, reason, revision in (
            ("u", BURST, 2), ("u", BURST, 1), ("u", BARE, 1), ("v", BURST, 1), ("v", BURST, 3),
            ("w", BURST, 1), ("w", BURST, 9),
        )
    ]  # fmt: skip

    assert [rows[0], rows[2], rows[4]] == newest_findings(pa.Table.from_pylist(rows))


def test_scores_are_counted_by_reason_and_in_total():
    """Scores count found, planted and both; precision is 1 if nothing was found.

    Recall is 1 if nothing was planted.
    """
    found = [
        {"address": address, "user_agent": "x", "reason": reason}
        for address, reason in (("1", BURST), ("2", BURST), ("1", BARE))
    ]
    labels = {("1", "x"): frozenset({BURST}), ("3", "x"): frozenset({BURST})}
    scored = scores(found, labels)

    assert {*REASONS, "all"} == set(scored)
    assert Score(2, 2, 1) == scored[BURST]
    assert Score(1, 0, 0) == scored[BARE]
    assert Score(3, 2, 1) == scored["all"]
    assert (0.5, 0.5) == (scored[BURST].precision, scored[BURST].recall)
    assert (0.0, 1.0) == (scored[BARE].precision, scored[BARE].recall)
    assert 1.0 == Score(0, 5, 0).precision


def test_top_pages_are_sorted_by_clicks():
    """Pages are sorted by clicks, then by name; clicks without a page are left out."""
    assert [{"page": "/b", "clicks": 2}, {"page": "/a", "clicks": 1}] == report.top_pages(ARCHIVE)


def test_a_report_has_counts_and_scores():
    """A report has the counts of audit and output, and scores only if visitors were planted."""
    audit = AuditResult(
        logged=5,
        archived=4,
        distinct=4,
        rejected=1,
        rejected_distinct=1,
        metrics_clicks=4,
        session_clicks=4,
        missing=0,
        surplus=0,
    )
    rejected = pa.table({"reason": ["empty", "empty", "odd"]})
    minutes = sample_reports.minutes([sample_reports.BEGIN_MINUTE], [4])
    sessions = pa.table({"clicks": [1, 3], "ended": ["gap", "room"]})
    output = PipelineOutput(ARCHIVE, rejected, minutes, sessions, sample_reports.findings(0))
    run = RunFacts("a log", 5, 1, {"publishing": 1.26, "total": 2.0}, ["nsqd-1"])
    found = report.report_of(run, audit, output)

    assert (5, 4, 1, 1) == tuple(
        found[name] for name in ("published", "archived", "rejected", "resent")
    )
    assert (2, 4, 1, 3) == tuple(
        found[name] for name in ("sessions", "session_clicks", "evicted_visits", "evicted_clicks")
    )
    assert (1, 60, 2) == (found["minutes"], found["bytes"], found["visitors"])
    assert {"empty": 2, "odd": 1} == found["rejected_by_reason"]
    assert ({"publishing": 1.3, "total": 2.0}, 2) == (
        found["stage_seconds"],
        found["clicks_per_second"],
    )
    assert "scores" not in found
    labelled = RunFacts("a day", 5, 1, {"total": 2.0}, labels={("a", "1"): frozenset({BURST})})
    score = {"found": 0, "planted": 1, "precision": 1.0, "recall": 0.0}
    assert score == report.report_of(labelled, audit, output)["scores"][BURST]


@pytest.mark.parametrize("passed", [True, False])
def test_the_text_ends_with_the_audits_result(passed):
    """The text ends with the audit's result or its failures."""
    failures = [] if passed else ["3 acknowledged messages are missing"]
    text = report.text_of(sample_reports.report(exactly_once=passed, failures=failures))
    last = text.rstrip().splitlines()[-1].strip()

    expected = "audit passed: every acknowledged click is stored exactly once"
    assert (expected if passed else f"- {failures[0]}") == last
    assert ("AUDIT FAILED" in text) is not passed


def test_the_text_lists_restarts_and_visits_that_made_room():
    """Restarts, and visits that ended early to make room, are listed, if there are any."""
    usual = report.text_of(sample_reports.report())
    evicted = {"evicted_visits": 1_000, "evicted_clicks": 2_000}
    text = report.text_of(sample_reports.report(restarts=["nsqd-1", "spark"], **evicted))

    assert "ended early            1,000   visits with 2,000 clicks, to make room" in text
    assert "restarted                  2   nsqd-1, spark" in text
    assert not any(word in usual for word in ("ended early", "restarted"))


def test_the_text_fits_its_width():
    """No line is longer than WIDTH; a long page is cut."""
    text = report.text_of(sample_reports.report(pages=("/" + "x" * 200,)))

    assert f"/{'x' * 48}..." in text
    assert max(map(len, text.splitlines())) <= report.WIDTH
