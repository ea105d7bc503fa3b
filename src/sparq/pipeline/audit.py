"""The audit: compares acknowledged messages, messages in the logs, and archived clicks.

Pure: tables and figures in, an `AuditResult` out. The audit passes if

1. archived + rejected = messages in the logs, and no id occurs twice;
2. every acknowledged body is stored as often as it was acknowledged, and none more often than that
   plus its sends without an answer;
3. clicks of all minutes = archived;
4. each click is in one session: clicks of the sessions = archived.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]


@dataclass(frozen=True, slots=True)
class PublisherRecords:
    """The publisher's records: hashes of acknowledged and of re-sent bodies.

    `acknowledged` is None if the clicks did not come from the publisher (`sparq up`): rule 2 is
    then not checked.
    """

    acknowledged: Hashes | None
    resent: Hashes


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The figures, and the rules that do not hold; if `failures` is empty, all of them hold."""

    logged: int
    archived: int
    distinct: int
    rejected: int
    rejected_distinct: int
    metrics_clicks: int
    session_clicks: int
    missing: int
    surplus: int
    failures: list[str] = field(default_factory=list)

    @property
    def exactly_once(self) -> bool:
        """Whether all rules hold."""
        return not self.failures


def body_hashes(bodies: pa.ChunkedArray) -> Hashes:
    """The hash of each body, computed as in the publisher."""
    hashed = (xxhash.xxh3_64_intdigest(body.as_buffer()) for body in bodies)
    return np.fromiter(hashed, np.uint64, len(bodies))


def compare(acknowledged: Hashes, resent: Hashes, present: Hashes) -> tuple[int, int]:
    """Compare bodies by their hashes; a body may occur several times.

    Args:
        acknowledged: one hash per acknowledged publish; each body must be stored.
        resent: one hash per send without an answer; each body may be stored.
        present: one hash per stored body.

    Returns:
        The number of acknowledged bodies that are missing, and the number of stored ones that are
        neither acknowledged nor resent.
    """
    # Counts, not sets: the same body may be published many times, and every copy must be stored.
    every, places = np.unique(np.concatenate([acknowledged, resent, present]), return_inverse=True)
    first, second = len(acknowledged), len(acknowledged) + len(resent)
    counts = [
        np.bincount(part, minlength=len(every))
        for part in (places[:first], places[first:second], places[second:])
    ]
    over = counts[2] - counts[0]
    missing = int(-over[over < 0].sum())
    surplus = np.maximum(over - counts[1], 0)
    return missing, int(surplus.sum())


def audit(
    logged: int,
    archive: pa.Table,
    rejected: pa.Table,
    minutes: pa.Table,
    sessions: pa.Table,
    *,
    published: PublisherRecords,
) -> AuditResult:
    """Check all rules.

    Args:
        logged: number of messages that the topic's logs have taken.
        archive: columns `id`, `body`, one row per click.
        rejected: columns `id`, `body`, one row per message that could not be read.
        minutes: rows with `clicks`.
        sessions: rows with `clicks`, those of open sessions included.
        published: the publisher's records.
    """
    distinct = pc.count_distinct(archive["id"]).as_py()
    rejected_distinct = pc.count_distinct(rejected["id"]).as_py()
    both = pa.chunked_array([*archive["id"].chunks, *rejected["id"].chunks], pa.string())
    clicks = pc.sum(minutes["clicks"]).as_py() or 0
    missing = surplus = 0
    if published.acknowledged is not None:
        present = np.concatenate([body_hashes(archive["body"]), body_hashes(rejected["body"])])
        missing, surplus = compare(published.acknowledged, published.resent, present)
    found = AuditResult(
        logged,
        len(archive),
        distinct,
        len(rejected),
        rejected_distinct,
        clicks,
        pc.sum(sessions["clicks"]).as_py() or 0,
        missing,
        surplus,
    )
    found.failures.extend(_failures(found, pc.count_distinct(both).as_py()))
    return found


def _failures(found: AuditResult, distinct_in_all: int) -> list[str]:
    stored = found.archived + found.rejected
    rules = (
        (
            stored == found.logged,
            f"archived + rejected is {stored:,}, but the logs hold {found.logged:,} messages",
        ),
        (
            distinct_in_all == stored,
            f"{stored - distinct_in_all:,} message ids occur more than once"
            " in archive and rejected",
        ),
        (found.missing == 0, f"{found.missing:,} acknowledged messages are missing"),
        (
            found.surplus == 0,
            f"{found.surplus:,} messages are stored more often than they were sent",
        ),
        (
            found.metrics_clicks == found.archived,
            f"the minutes have {found.metrics_clicks:,} clicks, but {found.archived:,} are"
            " archived",
        ),
        (
            found.session_clicks == found.archived,
            f"sessions have {found.session_clicks:,} clicks, but {found.archived:,} are archived",
        ),
    )
    return [text for holds, text in rules if not holds]
