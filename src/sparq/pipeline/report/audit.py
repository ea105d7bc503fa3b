"""The audit of a run: SQL over its tables, and the publisher's record of bodies against them.

`audit.sql` runs as it stands in polars, DuckDB and Spark; docs/tables.md shows it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import xxhash

from sparq.pipeline.report.figures import TABLES, scan
from sparq.pipeline.storage import TablePlace

SQL = Path(__file__).with_name("audit.sql").read_text(encoding="utf-8")
HASH_DTYPE = "<u8"
Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]


def audit(
    data: TablePlace, logged: int, acknowledged: Hashes | None, resent: Hashes
) -> tuple[dict[str, int], list[str]]:
    """Check that each message of the topic's logs is in the tables, once.

    Returns the figures of `audit.sql` by name, and a sentence for each rule that does not hold.

    Args:
        data: the data folder.
        logged: number of messages that the topic's logs have taken.
        acknowledged, resent: see `compare`. None: the clicks did not come from the publisher
            (`sparq up`), and bodies are not compared.
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
        (
            "{2:,} message ids occur more than once in archive and rejected",
            *(stored, found["distinct_in_all"]),
        ),
        ("{:,} acknowledged messages are missing", missing, 0),
        ("{:,} messages are stored more often than they were sent", surplus, 0),
        ("the minutes have {:,} clicks, but {:,} are archived", found["minute_clicks"], archived),
        ("pages have {:,} clicks, but {:,} have a page", found["page_clicks"], found["with_page"]),
        # Clicks without an address are of no visitor, and in no session.
        (
            "sessions have {:,} clicks, but {:,} have an address",
            *(found["session_clicks"], found["with_address"]),
        ),
        ("{:,} revisions of findings occur more than once", found["repeated_findings"], 0),
    )
    return found, [text.format(one, two, one - two) for text, one, two in rules if one != two]


def hashes(bodies: list[bytes]) -> bytes:
    """A hash of each body, in the form of the audit's files."""
    return np.array([xxhash.xxh3_64_intdigest(body) for body in bodies], HASH_DTYPE).tobytes()


def read_hashes(path: Path) -> Hashes:
    """Read the hashes of one of the audit's files; none if there is no file."""
    return np.fromfile(path, HASH_DTYPE) if path.exists() else np.empty(0, HASH_DTYPE)


def compare(acknowledged: Hashes, resent: Hashes, present: Hashes) -> tuple[int, int]:
    """The number of acknowledged bodies that are missing, and of stored ones that nobody sent.

    Args:
        acknowledged: one hash per acknowledged publish; each body must be stored.
        resent: one hash per send without an answer; each body may be stored.
        present: one hash per stored body.
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
