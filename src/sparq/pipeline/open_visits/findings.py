"""Findings about the visitors of a bucket, and which of them have been reported.

1. There is one finding per visitor and reason. If its evidence has doubled, it is reported again as
   a newer revision; the rest is reported in the last revision, at the end of a run. So a robot that
   clicks for days does not cause a flood of revisions.
2. The part `findings` has all findings. Those that were looked up since the last compaction are
   also in `hot`, in a newer form. So ordinary batches need `findings` only for new suspects.
3. Their number is limited; the older half is dropped first. If a visitor is found again after that,
   it is a new finding.

The output rows of the query (`output`):

kind "finding"  columns of FINDING_SCHEMA: a finding or a newer revision of it
kind "evicted"  evicted_visits, evicted_clicks, evicted_findings: dropped in this batch for
                lack of room, see `tiers.VisitsLimits`
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparq.pipeline.open_visits.rows import Name, empty, joined, only
from sparq.pipeline.visits import Evidence

FINDINGS = pa.schema(
    [
        ("visitor", pa.int64()),
        ("digest", pa.string()),  # of address and user agent: the visitor's id in the output
        ("address", pa.string()),
        ("agent", pa.string()),
        ("reason", pa.string()),
        ("revision", pa.int64()),
        ("told", pa.int64()),
        ("amount", pa.int64()),
        ("first_s", pa.int64()),
        ("last_s", pa.int64()),
        ("details", pa.string()),
        ("ids", pa.list_(pa.string())),
    ]
)
DIGEST_CHARACTERS = 32
Key = tuple[int, str]


@dataclass(slots=True)
class Finding:
    """A finding about one visitor; `told` is the amount that its newest revision reported."""

    visitor: int
    digest: str
    address: str
    agent: str
    reason: str
    revision: int
    told: int
    amount: int
    first_s: int
    last_s: int
    details: str
    ids: list[str]

    def would_change(self, evidence: Evidence) -> bool:
        """Whether the evidence adds anything to this finding."""
        return (
            evidence.amount > self.amount
            or evidence.first_s < self.first_s
            or evidence.last_s > self.last_s
        )

    def add(self, evidence: Evidence) -> None:
        """Add evidence, as far as it exceeds this finding."""
        self.first_s = min(self.first_s, evidence.first_s)
        self.last_s = max(self.last_s, evidence.last_s)
        if evidence.amount > self.amount:
            self.amount = evidence.amount
            self.details = json.dumps(evidence.details)
            self.ids = self.ids or list(evidence.ids)

    def row(self) -> dict[str, Any]:
        """The finding as an output row."""
        return {
            "visitor": self.digest,
            "address": self.address,
            "user_agent": self.agent,
            "reason": self.reason,
            "revision": self.revision,
            "amount": self.amount,
            "first_time": self.first_s * 1_000_000,
            "last_time": self.last_s * 1_000_000,
            "evidence": self.details,
            "message_ids": self.ids,
        }


def digest_of(name: Name) -> str:
    """A visitor's id in the output: equal in all runs, and hard to turn back into an address."""
    text = f"{name.address}\n{name.agent}"
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


class Findings:
    """The findings of one bucket in one batch.

    Args:
        recent: findings in `hot`; of two about the same, the later one is newer.
        read_all: reads the part `findings`; called at most once, when it is needed.
    """

    def __init__(self, recent: pa.Table, read_all: Callable[[], pa.Table]) -> None:
        self._recent = recent
        self._read_all = read_all
        self._all: pa.Table | None = None
        self._used: dict[Key, Finding] = {}

    def get(self, visitor: int, reason: str) -> Finding | None:
        """The finding about a visitor with this reason; None if there is none."""
        key = (visitor, reason)
        if key not in self._used:
            found = _newest(self._recent, key) or _newest(self.all(), key)
            if found is None:
                return None
            self._used[key] = found
        return self._used[key]

    def all(self) -> pa.Table:
        """The part `findings`; `hot` may have newer forms of its findings."""
        if self._all is None:
            self._all = self._read_all()
        return self._all

    def add(self, visitor: int, name: Name, evidence: Evidence) -> None:
        """Add evidence about a visitor."""
        finding = self.get(visitor, evidence.reason)
        if finding is None:
            names = (digest_of(name), name.address, name.agent, evidence.reason)
            first_s = evidence.first_s
            finding = Finding(visitor, *names, 0, 0, 0, first_s, 0, "", [])
            self._used[visitor, evidence.reason] = finding
        finding.add(evidence)

    def report(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """Report findings that have doubled since their last report, or all that have grown."""
        rows = [
            one
            for one in self._used.values()
            if (one.amount != one.told if everything else one.amount >= 2 * one.told)
        ]
        for one in rows:
            one.revision += 1
            one.told = one.amount
        return [one.row() for one in rows]

    def use_grown(self) -> None:
        """Look up all findings that have grown since their last report, for the end of a run."""
        for table in (self._recent, self.all()):
            grown = only(table, pc.not_equal(table["amount"], table["told"]).to_numpy())
            for key in zip(grown["visitor"].to_pylist(), grown["reason"].to_pylist(), strict=True):
                self.get(*key)

    def used(self) -> pa.Table:
        """The findings that were looked up, in their current form: FINDINGS."""
        rows = [asdict(one) for one in self._used.values()]
        return pa.Table.from_pylist(rows, FINDINGS) if rows else empty(FINDINGS)

    def newest(self) -> pa.Table:
        """All findings in their current form: FINDINGS."""
        return newest_of([self.all(), self._recent, self.used()])


def bounded(findings: pa.Table, count_max: int) -> pa.Table:
    """The newest `count_max // 2` findings if there are more than `count_max`, else all."""
    if len(findings) <= count_max:
        return findings
    order = np.lexsort((findings["visitor"].to_numpy(), findings["last_s"].to_numpy()))
    newer = np.zeros(len(findings), bool)
    newer[order[-(count_max // 2) :]] = True
    return only(findings, newer)


def _newest(findings: pa.Table, key: Key) -> Finding | None:
    if not len(findings):
        return None
    for at in reversed(np.flatnonzero(findings["visitor"].to_numpy() == key[0]).tolist()):
        if findings["reason"][at].as_py() == key[1]:
            return Finding(**findings.slice(at, 1).to_pylist()[0])
    return None


def newest_of(tables: Sequence[pa.Table]) -> pa.Table:
    """Each finding once, in the form of the last table that has it: FINDINGS."""
    findings = joined(FINDINGS, tables)
    marks = np.zeros(len(findings), bool)
    keys = zip(findings["visitor"].to_pylist(), findings["reason"].to_pylist(), strict=True)
    marks[list({key: at for at, key in enumerate(keys)}.values())] = True
    return only(findings, marks)


FINDING, EVICTED = KINDS = ("finding", "evicted")
FINDING_COLUMNS = (
    ("visitor", pa.string()),  # digest of address and user agent, 32 hex digits
    ("address", pa.string()),
    ("user_agent", pa.string()),
    ("reason", pa.string()),
    ("revision", pa.int64()),
    ("amount", pa.int64()),
    ("first_time", pa.timestamp("us", "UTC")),
    ("last_time", pa.timestamp("us", "UTC")),
    ("evidence", pa.string()),  # JSON
    ("message_ids", pa.list_(pa.string())),
)
EVICTED_COLUMNS = tuple(
    (name, pa.int64()) for name in ("evicted_visits", "evicted_clicks", "evicted_findings")
)
OUTPUT_SCHEMA = pa.schema([("kind", pa.string()), *FINDING_COLUMNS, *EVICTED_COLUMNS])
FINDING_SCHEMA = pa.schema(FINDING_COLUMNS)
EVICTED_SCHEMA = pa.schema(EVICTED_COLUMNS)
FINDING_DDL = (
    "visitor STRING, address STRING, user_agent STRING, reason STRING, revision BIGINT, "
    "amount BIGINT, first_time TIMESTAMP, last_time TIMESTAMP, evidence STRING, "
    "message_ids ARRAY<STRING>"
)
EVICTED_DDL = ", ".join(f"{name} BIGINT" for name, _ in EVICTED_COLUMNS)
OUTPUT_DDL = f"kind STRING, {FINDING_DDL}, {EVICTED_DDL}"


@dataclass(slots=True)
class Evicted:
    """Counts of visits, clicks (also those of visits) and findings dropped for lack of room."""

    visits: int = 0
    clicks: int = 0
    findings: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """The counts as an output row; no row if nothing was dropped."""
        if not (self.visits or self.clicks or self.findings):
            return []
        counts = (self.visits, self.clicks, self.findings)
        names = (name for name, _ in EVICTED_COLUMNS)
        return [{"kind": EVICTED, **dict(zip(names, counts, strict=True))}]


def output(reported: Sequence[dict[str, Any]], evicted: Evicted) -> pa.Table:
    """The output rows, of OUTPUT_SCHEMA.

    Args:
        reported: findings as `Findings.report` returns them.
        evicted: counts of what was dropped.
    """
    rows = [*({"kind": FINDING, **row} for row in reported), *evicted.rows()]
    return pa.Table.from_pylist(rows, OUTPUT_SCHEMA) if rows else empty(OUTPUT_SCHEMA)
