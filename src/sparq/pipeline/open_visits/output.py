"""The rows that the query gives out: findings, and what had to be dropped.

kind "finding"  columns of FINDING_COLUMNS: a finding or a newer revision of it
kind "evicted"  evicted_visits, evicted_clicks, evicted_findings: dropped in this batch for
                lack of room, see `limits`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparq.pipeline.open_visits.rows import empty

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
    """What was dropped for lack of room: whole visits, clicks (theirs too), findings."""

    visits: int = 0
    clicks: int = 0
    findings: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """As an output row, if anything was dropped."""
        if not (self.visits or self.clicks or self.findings):
            return []
        counts = (self.visits, self.clicks, self.findings)
        names = (name for name, _ in EVICTED_COLUMNS)
        return [{"kind": EVICTED, **dict(zip(names, counts, strict=True))}]


def output(told: Sequence[dict[str, Any]], evicted: Evicted) -> pa.Table:
    """The rows of OUTPUT_SCHEMA.

    Args:
        told: findings as `findings.Findings.tell` returns them.
        evicted: what was dropped.
    """
    rows = [*({"kind": FINDING, **row} for row in told), *evicted.rows()]
    return pa.Table.from_pylist(rows, OUTPUT_SCHEMA) if rows else empty(OUTPUT_SCHEMA)
