"""The audit: it passes if the numbers agree, and names each difference."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparq.pipeline.audit import AuditResult, PublisherRecords, audit, compare
from sparq.pipeline.run.publishing import hashes

BODIES = [b"click %d" % number for number in range(10)]


def messages(bodies: list[bytes], first_id: int = 0) -> pa.Table:
    """Archived or rejected messages with consecutive ids."""
    ids = [f"{first_id + number:016x}" for number in range(len(bodies))]
    return pa.table({"id": pa.array(ids, pa.string()), "body": pa.array(bodies, pa.binary())})


def minutes(*clicks: int) -> pa.Table:
    """Minutes with these clicks."""
    return pa.table({"clicks": pa.array(clicks, pa.int64())})


def written(bodies: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Hashes as the publisher writes them."""
    return np.frombuffer(hashes(bodies), np.uint64)


def audit_result(
    *,
    logged: int = 10,
    archived: list[bytes] = BODIES[:9],
    rejected: list[bytes] = BODIES[9:],
    rejected_first_id: int = 100,
    rows: pa.Table | None = None,
    uncounted: int = 0,
    acknowledged: list[bytes] = BODIES,
    resent: tuple[bytes, ...] = (),
) -> AuditResult:
    """The result of an audit that passes, apart from the given changes."""
    return audit(
        logged,
        messages(archived),
        messages(rejected, rejected_first_id),
        minutes(6, 3) if rows is None else rows,
        pa.table({"clicks": pa.array([2, len(archived) - 2 - uncounted], pa.int64())}),
        published=PublisherRecords(written(acknowledged), written(list(resent))),
    )


def test_the_audit_passes_if_every_message_is_stored_once() -> None:
    """The audit passes if every message is stored exactly once."""
    found = audit_result()

    assert found.exactly_once
    assert (found.archived, found.distinct, found.rejected) == (9, 9, 1)
    assert found.metrics_clicks == 9


def test_each_audit_rule_has_its_own_failure() -> None:
    """A lost, duplicated, foreign or uncounted message each has its own failure."""
    assert "the logs hold 11" in audit_result(logged=11).failures[0]
    assert "1 message ids occur more than once" in audit_result(rejected_first_id=0).failures[0]
    assert "are missing" in audit_result(acknowledged=[*BODIES, b"lost"]).failures[0]
    assert "more often than they were sent" in audit_result(acknowledged=BODIES[1:]).failures[0]
    assert "the minutes have 8 clicks" in audit_result(rows=minutes(8)).failures[0]
    assert "sessions have 8 clicks" in audit_result(uncounted=1).failures[0]


def test_a_resent_body_may_be_stored_twice_but_not_more_often() -> None:
    """A body that was re-sent once may be stored once or twice, not more often."""
    twice = [*BODIES[:9], BODIES[0]]
    even = minutes(10)

    assert audit_result(logged=11, archived=twice, rows=even, resent=(BODIES[0],)).exactly_once
    assert audit_result(resent=(BODIES[0],)).exactly_once
    assert not audit_result(logged=11, archived=twice, rows=even).exactly_once


@given(
    st.lists(st.integers(0, 5), max_size=12),
    st.lists(st.integers(0, 5), max_size=6),
    st.lists(st.integers(0, 5), max_size=12),
)
def test_compare_equals_plain_counting(sent: list[int], again: list[int], there: list[int]) -> None:
    """`compare` gives the same numbers as plain counters."""
    arrays = [np.array(part, np.uint64) for part in (sent, again, there)]
    surplus = Counter(there) - Counter(sent) - Counter(again)

    assert compare(*arrays) == ((Counter(sent) - Counter(there)).total(), surplus.total())
