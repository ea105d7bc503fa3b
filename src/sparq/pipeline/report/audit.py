"""A run's audit and its `report.json`.

The audit is SQL over the tables, and the publisher's record of bodies against them. `audit.sql`
runs as it stands in polars, DuckDB and Spark; docs/tables.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import xxhash

from sparq.demo.scores import Labels, scores
from sparq.pipeline.report.figures import STATUSES, TABLES, figures_of, newest_findings, scan
from sparq.pipeline.sessions.rules import REASONS
from sparq.pipeline.spam_analysis import FINDINGS
from sparq.pipeline.storage import TablePlace

SQL = Path(__file__).with_name("audit.sql").read_text(encoding="utf-8")
FIGURES = ("sessions", "minutes", "bytes", "visitors", "evicted_visits", "evicted_clicks")
HASH_DTYPE = "<u8"
RECORDS = ("acknowledged", "resent")
"""Files with a hash for each publish with OK, and for each further send without an answer."""

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]


def audit(
    data: TablePlace, logged: int, acknowledged: Hashes | None, resent: Hashes
) -> tuple[dict[str, int], list[str]]:
    """The figures of `audit.sql` by name, and a sentence for each rule that does not hold.

    The topic's logs have taken `logged` messages; without `acknowledged`, bodies are not compared.
    """
    tables = {table.name: scan(data, table) for table in TABLES}
    found = dict(pl.SQLContext(tables).execute(SQL).collect(engine="streaming").iter_rows())
    archived, stored = found["archived"], found["archived"] + found["rejected"]
    missing = surplus = 0
    if acknowledged is not None:
        present = np.concatenate([_body_hashes(tables[name]) for name in ("clicks", "rejected")])
        missing, surplus = compare(acknowledged, resent, present)
    rules = (
        ("archived + rejected is {:,}, but the logs hold {:,} messages", stored, logged),
        ("{2:,} message ids occur more than once", stored, found["distinct_in_all"]),
        ("{:,} acknowledged messages are missing", missing, 0),
        ("{:,} messages are stored more often than they were sent", surplus, 0),
        ("the minutes have {:,} clicks, but {:,} are archived", found["minute_clicks"], archived),
        ("pages have {:,} clicks, but {:,} have a page", found["page_clicks"], found["with_page"]),
        # Clicks without an address are of no visitor.
        ("sessions have {:,} clicks, and not {:,}", found["session_clicks"], found["with_address"]),
        ("{:,} revisions of findings occur more than once", found["repeated_findings"], 0),
    )
    return found, [text.format(one, two, one - two) for text, one, two in rules if one != two]


def hashes(bodies: list[bytes]) -> bytes:
    """A hash of each body, in the form of the audit's files."""
    return np.array([xxhash.xxh3_64_intdigest(body) for body in bodies], HASH_DTYPE).tobytes()


def read_records(folder: Path) -> tuple[Hashes, Hashes]:
    """The hashes in the files RECORDS of a folder."""
    acknowledged, resent = (np.fromfile(folder / name, HASH_DTYPE) for name in RECORDS)
    return acknowledged, resent


def compare(acknowledged: Hashes, resent: Hashes, present: Hashes) -> tuple[int, int]:
    """The number of acknowledged bodies that are missing, and of stored ones that nobody sent.

    Each of the hashes is of a body that must be stored, that may be stored, or that is stored.
    """
    # Counts, not sets: the same body may be published many times, and every copy must be stored.
    every, places = np.unique(np.concatenate([acknowledged, resent, present]), return_inverse=True)
    parts = np.split(places, np.cumsum([len(acknowledged), len(resent)]))
    sent, again, stored = (np.bincount(part, minlength=len(every)) for part in parts)
    missing, surplus = np.maximum(sent - stored, 0), np.maximum(stored - sent - again, 0)
    return int(missing.sum()), int(surplus.sum())


def _body_hashes(table: pl.LazyFrame) -> Hashes:
    """The hash of each stored body; streamed, so that bodies are not held in memory."""
    hashed = pl.col("body").map_batches(
        lambda bodies: pl.Series(np.frombuffer(hashes(bodies.to_list()), HASH_DTYPE)),
        return_dtype=pl.UInt64,
        is_elementwise=True,
    )
    return table.select(hashed).collect(engine="streaming")["body"].to_numpy()


def report_of(
    data: TablePlace,
    facts: Mapping[str, Any],
    records: tuple[Hashes | None, Hashes],
    labels: Labels | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of `report.json` but for durations, and the figures of all clicks."""
    counts, failures = audit(data, facts["logged"], *records)
    figures = figures_of(data)
    lists = {one["title"]: one["rows"] for one in figures["top_lists"]}
    report: dict[str, Any] = {
        **facts,
        **counts,
        "exactly_once": not failures,
        "failures": failures,
        **{name: figures[name] for name in FIGURES},
        "findings": {**dict.fromkeys(REASONS, 0), **figures["findings"]},
        "statuses": {name.removeprefix("status_"): figures[name] for name in STATUSES},
        "top_pages": [{"page": row[0], "clicks": row[1]} for row in lists.get("Pages", [])[:10]],
        "rejected_by_reason": {row[0]: row[1] for row in lists.get("Rejected by reason", [])},
    }
    if labels is not None:
        report["scores"] = scores(newest_findings(scan(data, FINDINGS)).to_dicts(), labels)
    return report, figures
