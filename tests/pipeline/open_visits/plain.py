"""The plain twin of `sparq.pipeline.open_visits`: all clicks of open visits in one table.

It shares the rules (`visits`) and the low mark with the product, and has no limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline import visits
from sparq.pipeline.low_mark import LowMark
from sparq.pipeline.visits import DECLARED, VISIT_GAP_S, Clicks, Evidence

# A click as the rules take it. `robot` is the word in the user agent that declares a robot.
CLICK_SCHEMA = pa.schema(
    [
        ("visitor", pa.string()),  # digest of address and user agent, 32 hex digits
        ("address", pa.string()),
        ("user_agent", pa.string()),
        ("robot", pa.string()),
        ("second", pa.int64()),
        ("kind", pa.int8()),
        ("page", pa.string()),
        ("id", pa.string()),
    ]
)
FINDING_SCHEMA = pa.schema(
    [
        ("visitor", pa.string()),
        ("address", pa.string()),
        ("user_agent", pa.string()),
        ("reason", pa.string()),
        ("revision", pa.int64()),
        ("amount", pa.int64()),
        ("first_time", pa.timestamp("s", "UTC")),
        ("last_time", pa.timestamp("s", "UTC")),
        ("evidence", pa.string()),  # JSON
        ("message_ids", pa.list_(pa.string())),
    ]
)


@dataclass(slots=True)
class Finding:
    """A finding about one visitor; `reported` is the amount in its newest reported revision."""

    visitor: str
    address: str
    user_agent: str
    reason: str
    revision: int
    reported: int
    amount: int
    first_s: int
    last_s: int
    details: str
    ids: list[str]

    def row(self) -> dict[str, Any]:
        """As a row of FINDING_SCHEMA."""
        return {
            "visitor": self.visitor,
            "address": self.address,
            "user_agent": self.user_agent,
            "reason": self.reason,
            "revision": self.revision,
            "amount": self.amount,
            "first_time": self.first_s,
            "last_time": self.last_s,
            "evidence": self.details,
            "message_ids": self.ids,
        }


class PlainVisits:
    """Open visits and findings."""

    def __init__(self) -> None:
        self._clicks = CLICK_SCHEMA.empty_table()
        self._low_mark = LowMark()
        self._findings: dict[tuple[str, str], Finding] = {}

    def apply(self, batch_ms: int, clicks: pa.Table, newest_s: dict[str, int]) -> pa.Table:
        """Process one batch of CLICK_SCHEMA; returns new findings and revisions."""
        self._note_declared(clicks)
        on_time = clicks.filter(pc.greater(clicks["second"], self._low_mark.low_s - VISIT_GAP_S))
        self._clicks = pa.concat_tables([self._clicks, on_time])
        self._low_mark.advance(newest_s, batch_ms)
        self._judge(pc.unique(on_time["visitor"]), self._low_mark.low_s - VISIT_GAP_S)
        due = [
            finding for finding in self._findings.values() if finding.amount >= 2 * finding.reported
        ]
        return _revised(due)

    def close(self) -> pa.Table:
        """Judge the open visits at the end of the run; returns all unreported amounts."""
        self._judge(pc.unique(self._clicks["visitor"]), self._newest_s())
        return _revised([one for one in self._findings.values() if one.amount != one.reported])

    def _newest_s(self) -> int:
        return pc.max(self._clicks["second"]).as_py() or 0

    def _note_declared(self, clicks: pa.Table) -> None:
        declared = _Sorted(clicks.filter(pc.is_valid(clicks["robot"])))
        for span in declared.visitors():
            mine = declared.clicks(span)
            before = self._findings.get((declared.name(span, "visitor"), DECLARED))
            amount = len(mine) + (before.amount if before else 0)
            self._hold(
                declared, span, mine.evidence(DECLARED, amount, robot=declared.name(span, "robot"))
            )

    def _judge(self, changed: pa.ChunkedArray, over_before_s: int) -> None:
        """Apply the rules: some to visitors with new clicks, others to visits that are over."""
        state = _Sorted(self._clicks)
        just_now = state.marked(changed)
        for span in state.visitors(state.suspects & just_now):
            declared = state.name(span, "robot") is not None
            for evidence in visits.at_once(state.clicks(span), declared=declared):
                self._hold(state, span, evidence)
        over = state.visit_end_s <= over_before_s
        for span in state.visits(state.suspects & over & state.undeclared):
            for evidence in visits.of_visit(state.clicks(span)):
                self._hold(state, span, evidence)
        self._clicks = state.table.filter(pa.array(~over))

    def _hold(self, state: _Sorted, span: slice, evidence: Evidence) -> None:
        """Add evidence to its visitor's finding, if its amount is larger than the known one."""
        who = state.name(span, "visitor")
        finding = self._findings.get((who, evidence.reason))
        if finding is None:
            names = (state.name(span, "address"), state.name(span, "user_agent"))
            finding = Finding(who, *names, evidence.reason, 0, 0, 0, evidence.first_s, 0, "", [])
            self._findings[who, evidence.reason] = finding
        finding.first_s = min(finding.first_s, evidence.first_s)
        finding.last_s = max(finding.last_s, evidence.last_s)
        if evidence.amount > finding.amount:
            finding.amount = evidence.amount
            finding.details = json.dumps(evidence.details)
            finding.ids = finding.ids or list(evidence.ids)


class _Sorted:
    """Clicks sorted by visitor, second and id, with the bounds of visitors and visits.

    Attributes:
        table: the rows in that order; the other attributes have an entry for each row.
        visit_end_s: time of the last click in the row's visit.
        suspects: whether the visitor requested enough pages for any rule, or robots.txt.
        undeclared: whether the visitor's user agent does not declare a robot.
    """

    def __init__(self, clicks: pa.Table) -> None:
        self.table = clicks.sort_by(
            [("visitor", "ascending"), ("second", "ascending"), ("id", "ascending")]
        ).combine_chunks()
        self._seconds = self.table["second"].to_numpy()
        self._kinds = self.table["kind"].to_numpy()
        codes = self.table["visitor"].combine_chunks().dictionary_encode().indices.to_numpy()
        self._visitor_starts = _starts(np.diff(codes) != 0, len(codes))
        self._visit_starts = _starts(
            (np.diff(codes) != 0) | (np.diff(self._seconds) > VISIT_GAP_S), len(codes)
        )
        ends = _ends(self._visit_starts, len(codes))
        self.visit_end_s = np.repeat(self._seconds[ends - 1], ends - self._visit_starts)
        pages = np.bincount(codes, self._kinds == visits.PAGE)
        asked = np.bincount(codes, self._kinds == visits.ROBOTS_TXT)
        self.suspects = ((pages >= visits.PAGES_MIN) | (asked > 0))[codes]
        self.undeclared = self.table["robot"].is_null().to_numpy()

    def marked(self, visitors: pa.Array) -> npt.NDArray[np.bool_]:
        """A mask of the rows of these visitors."""
        marks: npt.NDArray[np.bool_] = pc.is_in(
            self.table["visitor"], value_set=visitors
        ).to_numpy()
        return marks

    def visitors(self, where: npt.NDArray[np.bool_] | None = None) -> Iterator[slice]:
        """The rows of each visitor whose first row is marked."""
        return _spans(self._visitor_starts, len(self._seconds), where)

    def visits(self, where: npt.NDArray[np.bool_]) -> Iterator[slice]:
        """The rows of each visit whose first row is marked."""
        return _spans(self._visit_starts, len(self._seconds), where)

    def clicks(self, span: slice) -> Clicks:
        """These rows in the form that the rules take."""
        rows = self.table.slice(span.start, span.stop - span.start)
        pages, ids = (np.array(rows[name].to_pylist(), dtype=object) for name in ("page", "id"))
        return Clicks(self._seconds[span], self._kinds[span], pages, ids)

    def name(self, span: slice, column: str) -> Any:
        """A column's value in the first of these rows."""
        return self.table[column][span.start].as_py()


def _starts(changes: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
    starts = np.flatnonzero(changes) + 1
    return np.insert(starts, 0, 0) if count else starts


def _ends(starts: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    return np.append(starts[1:], count) if count else starts


def _spans(
    starts: npt.NDArray[np.int64], count: int, where: npt.NDArray[np.bool_] | None
) -> Iterator[slice]:
    for start, end in zip(starts.tolist(), _ends(starts, count).tolist(), strict=True):
        if where is None or where[start]:
            yield slice(start, end)


def _revised(findings: list[Finding]) -> pa.Table:
    for finding in findings:
        finding.revision += 1
        finding.reported = finding.amount
    return pa.Table.from_pylist([finding.row() for finding in findings], FINDING_SCHEMA)
