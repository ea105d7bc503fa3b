"""The audit: it passes if the tables have each message once; and the report of a run."""

from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from sparq.demo.generator import generate
from sparq.demo.scores import scores
from sparq.pipeline import archive, metrics, spam_analysis
from sparq.pipeline.report.audit import HASH_DTYPE, SQL, audit, compare, hashes, report_of
from sparq.pipeline.sessions.rules import REASONS
from tests.pipeline.report.sample_tables import add, written

LINES = [*generate(300, 5).lines, b"no click", *[b"GET /a twice"] * 2]
NONE = np.empty(0, HASH_DTYPE)
DOCS = Path(__file__).parents[3] / "docs" / "tables.md"


def sent(*lines):
    """Hashes as the publisher writes them."""
    return np.frombuffer(hashes(list(lines)), HASH_DTYPE)


@pytest.fixture
def own(tmp_path):
    """The tables of LINES."""
    return written(tmp_path, LINES)


def again(data, table):
    """Add the first row of a table a second time."""
    rows = DeltaTable(data.of(table.name).address).to_pyarrow_table()
    add(data, [table], [{table.name: rows.slice(0, 1)}], "again")


def test_the_audit_passes_if_every_message_is_stored_once(own):
    """Equal bodies are counted; a body that was sent again may be stored once more, or not."""
    figures, failures = audit(own, len(LINES), sent(*LINES), NONE)

    assert [] == failures
    assert len(LINES) == figures["archived"] + figures["rejected"]
    assert figures["minute_clicks"] == figures["session_clicks"] == figures["archived"] > 290
    assert [] == audit(own, len(LINES), sent(*LINES[:-1]), sent(LINES[-1], LINES[0]))[1]
    assert [] == audit(own, len(LINES), None, NONE)[1]


def test_bodies_are_compared_with_those_that_were_sent(own):
    """A lost message and one that nobody sent have a sentence each."""
    lost = audit(own, len(LINES), sent(*LINES, b"lost"), NONE)[1]
    foreign = audit(own, len(LINES) + 1, sent(*LINES[1:]), NONE)[1]

    assert ["1 acknowledged messages are missing"] == lost
    assert [
        f"archived + rejected is {len(LINES)}, but the logs hold {len(LINES) + 1} messages",
        "1 messages are stored more often than they were sent",
    ] == foreign


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (archive.CLICKS, "1 message ids occur more than once"),
        (archive.REJECTED, "1 message ids occur more than once"),
        (metrics.MINUTES, "the minutes have"),
        (metrics.PAGES, "pages have"),
        (spam_analysis.SESSIONS, "sessions have"),
        (spam_analysis.FINDINGS, "1 revisions of findings occur more than once"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_row_that_is_twice_in_any_table_is_a_failure(own, table, sentence):
    """Each of the six tables is checked."""
    again(own, table)

    assert any(one.startswith(sentence) for one in audit(own, len(LINES), None, NONE)[1])


def test_the_documents_sql_is_the_audits_and_runs_in_duckdb(own):
    """docs/tables.md shows the audit's SQL, and DuckDB has the same figures."""
    connection = duckdb.connect()
    for name in ("clicks", "rejected", "minutes", "pages", "sessions", "findings"):
        connection.register(name, DeltaTable(own.of(name).address).to_pyarrow_dataset())

    assert f"```sql\n{SQL}```" in DOCS.read_text(encoding="utf-8")
    assert audit(own, 0, None, NONE)[0] == dict(connection.sql(SQL).fetchall())


@given(
    st.lists(st.integers(0, 5), max_size=12),
    st.lists(st.integers(0, 5), max_size=6),
    st.lists(st.integers(0, 5), max_size=12),
)
def test_compare_equals_plain_counting(sent, again, there):
    """`compare` gives the same numbers as plain counters."""
    arrays = [np.array(part, np.uint64) for part in (sent, again, there)]
    surplus = Counter(there) - Counter(sent) - Counter(again)

    assert compare(*arrays) == ((Counter(sent) - Counter(there)).total(), surplus.total())


def test_the_report_has_what_programs_read(data, day):
    """All keys of `report.json` but for durations; the newest findings are scored."""
    count = len(day.lines)
    facts = {"source": "a day", "published": count, "resent": 0, "logged": count, "restarts": []}
    records = sent(*day.lines), NONE
    report, figures = report_of(data, facts, records, day.labels)
    first = figures["top_lists"][0]["rows"][0]

    assert {
        *("source", "published", "resent", "logged", "restarts"),
        *audit(data, count, *records)[0],
        *("exactly_once", "failures", "sessions", "minutes", "bytes", "visitors"),
        *("evicted_visits", "evicted_clicks", "findings", "statuses", "top_pages"),
        *("rejected_by_reason", "scores"),
    } == {*report}
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
