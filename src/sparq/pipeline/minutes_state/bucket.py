"""One batch of one bucket of `metrics`: adds to its minutes, closes them, and makes output rows.

1. `apply` is a function of the state and of the received rows; how the clicks were divided into
   partitions does not matter. A replayed batch gives equal bytes and equal rows.
2. A click of an open minute makes a new revision of its row, however late it comes.
3. A minute closes when the low mark is `horizon_s` past it, or when the bucket is full (the
   oldest minute first, counted as `closed_early`). It never opens again. If it closed early, its
   last row is kept: the minute may still be open in other buckets, and the row is written with each
   batch that touches or closes it there. A click of a closed minute, or of a minute more than
   AHEAD_MAX_S ahead of the batch's newest publish time, is written as `late`.

Spark's state store keeps for each bucket:

    recent   ValueState (meta STRING, data BINARY): JSON, and the newest minutes in one blob
    cold     MapState minute BIGINT -> data BINARY: older minutes, one blob each

`recent` is read and written in each batch, so it is kept small: beyond `recent_bytes_max` its
oldest minutes go to `cold`, where a minute costs nothing until it is touched or closes. Both kinds
of blob have the same four tables, so readers of the state store can treat them alike: minutes, the
texts of their pages, the list of the cold minutes, and the last rows of minutes that closed early
(the last two are empty in a cold blob).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sparq.pipeline.low_mark import LowMark
from sparq.pipeline.minutes_state import minutes, output, page_texts
from sparq.pipeline.minutes_state.minutes import Minutes, added_up, joined
from sparq.pipeline.minutes_state.output import MINUTE_SCHEMA
from sparq.pipeline.minutes_state.packer import received
from sparq.pipeline.minutes_state.page_texts import PageTexts
from sparq.pipeline.packing import BucketInput, Marks, from_blob, to_blob

COLD_SCHEMA = pa.schema([("minute", pa.int64()), ("bytes", pa.int64())])
BLOB_SCHEMAS = (minutes.SCHEMA, page_texts.SCHEMA, COLD_SCHEMA, MINUTE_SCHEMA)
META_VERSION = 1


@dataclass(frozen=True, slots=True)
class MinutesMeta:
    """Facts about a bucket in addition to its minutes, stored as JSON.

    Attributes:
        low_mark: the fields of a LowMark.
        closed_before: minutes before this one are closed.
        counts: since the first batch: clicks in minutes, late clicks, rejected messages, and
            minutes that closed early.
    """

    version: int = META_VERSION
    low_mark: dict[str, Any] = field(default_factory=dict)
    closed_before: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class BucketState(Protocol):
    """Access to the state of one bucket; each call is a round trip to the JVM."""

    def recent(self) -> tuple[str, bytes] | None:
        """Meta as JSON and the blob of the newest minutes; None for a new bucket."""

    def cold(self, minute: int) -> bytes:
        """The blob of a minute that the blob of `recent` lists as cold."""


@dataclass(frozen=True, slots=True)
class Writes:
    """Changes to write after a batch.

    Attributes:
        recent: the new value of `recent`.
        cold: blobs to put into `cold`, by minute.
        gone: minutes to remove from `cold`.
    """

    recent: tuple[str, bytes]
    cold: dict[int, bytes]
    gone: list[int]


@dataclass(frozen=True, slots=True)
class RecentMinutes:
    """The content of `recent`.

    Attributes:
        meta: facts in addition to the minutes.
        minutes: the minutes in `recent`.
        texts: the texts of their pages.
        cold: size of the blob of each minute in `cold`, in bytes.
        early: the last rows, of MINUTE_SCHEMA, of minutes that closed early in this bucket. They
            may still be open in other buckets, and are needed again to sum up all buckets.
    """

    meta: MinutesMeta
    minutes: Minutes
    texts: PageTexts
    cold: dict[int, int]
    early: pa.Table


def load(recent: tuple[str, bytes] | None) -> RecentMinutes:
    """A bucket as its last batch left it; an empty one before the first batch.

    Raises:
        ValueError: another version of sparq wrote the state.
    """
    if recent is None:
        early = MINUTE_SCHEMA.empty_table()
        return RecentMinutes(MinutesMeta(), minutes.EMPTY, page_texts.EMPTY, {}, early)
    meta = json.loads(recent[0])
    if meta["version"] != META_VERSION:
        raise ValueError(
            f"the state of metrics has version {meta['version']}, this sparq reads version "
            f"{META_VERSION}: continue with the sparq that wrote it, or start with a new checkpoint"
        )
    open_minutes, texts, cold, early = from_blob(recent[1], BLOB_SCHEMAS)
    sizes = zip(cold["minute"].to_pylist(), cold["bytes"].to_pylist(), strict=True)
    return RecentMinutes(
        MinutesMeta(**meta),
        minutes.from_table(open_minutes),
        page_texts.from_table(texts),
        dict(sizes),
        early,
    )


def minutes_of(blobs: Iterable[bytes]) -> tuple[Minutes, PageTexts]:
    """The minutes of several blobs of one bucket, of `recent` or of `cold`, one after the other."""
    parts = [from_blob(blob, BLOB_SCHEMAS) for blob in blobs]
    tables = pa.concat_tables([minutes.EMPTY_TABLE, *(part[0] for part in parts)])
    texts = page_texts.EMPTY.with_more([page_texts.from_table(part[1]) for part in parts])
    return minutes.from_table(tables), texts


def early_of(blobs: Iterable[bytes]) -> pa.Table:
    """Return the last row of each minute that closed early, as a table of MINUTE_SCHEMA."""
    tables = [from_blob(blob, BLOB_SCHEMAS)[3] for blob in blobs]
    return pa.concat_tables([MINUTE_SCHEMA.empty_table(), *tables])


def writes(
    held: RecentMinutes,
    touched_cold: Minutes,
    texts: PageTexts,
    gone: list[int],
    recent_bytes_max: int,
) -> Writes:
    """The changes to write for a bucket.

    Args:
        held: the bucket after the batch. Its `texts` include at least those of its minutes, its
            `cold` is still that before the batch.
        touched_cold: changed minutes that stay in `cold`.
        texts: at least those of `touched_cold`.
        gone: minutes that leave `cold`.
        recent_bytes_max: size of `recent` above which its oldest minutes go to `cold`.
    """
    blobs = _cold_blobs(touched_cold, texts)
    cold = {minute: size for minute, size in held.cold.items() if minute not in gone}
    cold |= {minute: len(blob) for minute, blob in blobs.items()}
    blob = _recent_blob(held.minutes, held.texts, cold, held.early)
    if len(blob) > recent_bytes_max and len(held.minutes) > 1:
        stays = _newest_half(held.minutes)
        moved = _cold_blobs(held.minutes.where(~stays), held.texts)
        blobs |= moved
        cold |= {minute: len(blob) for minute, blob in moved.items()}
        kept = held.minutes.where(stays)
        blob = _recent_blob(kept, held.texts.only(kept.pages), cold, held.early)
    return Writes((json.dumps(asdict(held.meta), sort_keys=True), blob), blobs, gone)


def _newest_half(held: Minutes) -> np.ndarray:
    """Mark the newest minutes that make up half of the bytes, and always the newest one."""
    order = np.argsort(-held.minute)
    size = held.bytes_each()[order]
    stays = np.empty(len(held), np.bool_)
    stays[order] = np.cumsum(size) <= size.sum() // 2
    stays[order[0]] = True
    return stays


def _cold_blobs(held: Minutes, texts: PageTexts) -> dict[int, bytes]:
    table, ends = held.table(), np.cumsum(held.page_counts)
    blobs = {}
    for at, minute in enumerate(held.minute.tolist()):
        mine = texts.only(held.pages[ends[at] - held.page_counts[at] : ends[at]])
        none = [schema.empty_table() for schema in (COLD_SCHEMA, MINUTE_SCHEMA)]
        blobs[minute] = to_blob([table.slice(at, 1), mine.table(), *none])
    return blobs


def _recent_blob(held: Minutes, texts: PageTexts, cold: dict[int, int], early: pa.Table) -> bytes:
    listed = {"minute": sorted(cold), "bytes": [cold[minute] for minute in sorted(cold)]}
    return to_blob([held.table(), texts.table(), pa.table(listed, schema=COLD_SCHEMA), early])


HORIZON_S = 86_400
AHEAD_MAX_S = 86_400
RECENT_BYTES_MAX = 1_000_000
BUCKET_BYTES_MAX = 64_000_000  # 8 million visitors of minutes; in 16 buckets about 1 GB of disk


@dataclass(frozen=True, slots=True)
class MinutesLimits:
    """The limits of a bucket.

    Attributes:
        horizon_s: a minute closes when the low mark is this many seconds past it.
        recent_bytes_max: size of `recent` above which its oldest minutes go to `cold`.
        bucket_bytes_max: size of all minutes above which the oldest close early.
    """

    horizon_s: int = HORIZON_S
    recent_bytes_max: int = RECENT_BYTES_MAX
    bucket_bytes_max: int = BUCKET_BYTES_MAX


LIMITS = MinutesLimits()


@dataclass(frozen=True, slots=True)
class _Changed:
    """The minutes that a batch touches or closes, with the batch added.

    Attributes:
        minutes: all of these minutes.
        texts: the texts of their pages, and all texts of `recent`.
        cold: those minutes that were in `cold`.
        rest: mask of the other minutes of `recent`.
    """

    minutes: Minutes
    texts: PageTexts
    cold: list[int]
    rest: Marks


def apply(
    bucket: int, state: BucketState, batch: BucketInput, limits: MinutesLimits = LIMITS
) -> tuple[Writes, pa.Table]:
    """Process one batch of a bucket.

    Args:
        bucket: its number.
        state: its state before the batch.
        batch: all rows that it got, at least one.
        limits: its limits.

    Returns:
        The changes to write to the state, and the output rows, of `output.SCHEMA`.
    """
    held = load(state.recent())
    added, texts, refused = received(batch.blobs)
    touched = added.minute
    is_late = _is_late(added, held.meta.closed_before, batch.header.published_s)
    late = added.where(is_late & (added.sum_of("clicks") > 0))
    added = added.where(~is_late)
    texts = texts.only(added.pages)  # drop the texts of late clicks
    mark = LowMark(**held.meta.low_mark)
    mark.advance(batch.header.marks, batch.header.batch_ms)
    over = (mark.low_s - limits.horizon_s) // 60
    due = max(held.meta.closed_before, over)
    closing = _closing(held, added, due, limits.bucket_bytes_max)

    changed = _changed(state, held, added, texts, closing)
    is_open = changed.minutes.minute >= closing
    still_open, closed = changed.minutes.where(is_open), changed.minutes.where(~is_open)
    early = closed.where(closed.minute >= due)
    last = output.minute_rows(bucket, closed, changed.texts, final=True)
    last = pa.concat_tables([held.early, last.select(MINUTE_SCHEMA.names)])
    rows = output.joined(
        output.minute_rows(bucket, still_open, changed.texts, final=False),
        output.last_rows(bucket, last, touched, over),
        output.counted_rows(output.LATE, bucket, late),
        output.counted_rows(output.CLOSED_EARLY, bucket, early),
        output.rejected_rows(bucket, refused),
    )
    counted = {
        "clicks": int(added.sum_of("clicks").sum()),
        "late": int(late.sum_of("clicks").sum()),
        "rejected": len(refused),
        "closed_early": len(early),
    }
    counts = {name: held.meta.counts.get(name, 0) + more for name, more in counted.items()}
    meta = MinutesMeta(low_mark=asdict(mark), closed_before=closing, counts=counts)
    after = _after(held, changed, still_open, meta, output.since(last, over))
    cold = np.isin(still_open.minute, changed.cold)
    gone = [minute for minute in changed.cold if minute < closing]
    return (
        writes(after, still_open.where(cold), changed.texts, gone, limits.recent_bytes_max),
        rows,
    )


def close(bucket: int, blobs: Iterable[bytes]) -> pa.Table:
    """The last rows of the open minutes of a bucket, for the end of a run.

    Args:
        bucket: its number.
        blobs: blobs of `recent` and `cold`. They may be divided over several calls, since each blob
            has all of its minutes' figures.

    Returns:
        Rows of `output.SCHEMA`, all final.
    """
    held = list(blobs)
    return output.joined(
        output.minute_rows(bucket, *minutes_of(held), final=True),
        output.rows_of(bucket, early_of(held)),
    )


def _is_late(added: Minutes, closed_before: int, published_s: int) -> Marks:
    ahead = (published_s + AHEAD_MAX_S) // 60
    late: Marks = (added.minute < closed_before) | (added.minute > ahead)
    return late


def _closing(held: RecentMinutes, added: Minutes, due: int, bytes_max: int) -> int:
    """The first minute that stays open: `due`, or a later one so that the open minutes fit."""
    minute = np.concatenate([held.minutes.minute, added.minute, np.array([*held.cold], np.int64)])
    size = np.concatenate(
        [held.minutes.bytes_each(), added.bytes_each(), np.array([*held.cold.values()], np.int64)]
    )
    size = np.where(minute >= due, size, 0)
    if size.sum() <= bytes_max:
        return due
    order = np.argsort(-minute, kind="stable")
    first_too_much = np.searchsorted(np.cumsum(size[order]), bytes_max, side="right")
    return int(minute[order[first_too_much]]) + 1


def _changed(
    state: BucketState, held: RecentMinutes, added: Minutes, texts: PageTexts, closing: int
) -> _Changed:
    touched = set(added.minute.tolist())
    cold = [minute for minute in held.cold if minute < closing or minute in touched]
    fetched, fetched_texts = minutes_of(state.cold(minute) for minute in cold)
    rest = ~np.isin(held.minutes.minute, added.minute) & (held.minutes.minute >= closing)
    return _Changed(
        added_up([held.minutes.where(~rest), fetched, added]),
        held.texts.with_more([fetched_texts, texts]),
        cold,
        rest,
    )


def _after(
    held: RecentMinutes, changed: _Changed, still_open: Minutes, meta: MinutesMeta, early: pa.Table
) -> RecentMinutes:
    """Return the bucket as it is after the batch; minutes that were in `cold` stay there."""
    recent = joined(
        [
            held.minutes.where(changed.rest),
            still_open.where(~np.isin(still_open.minute, changed.cold)),
        ]
    )
    texts = changed.texts
    if changed.cold or len(still_open) < len(changed.minutes):
        texts = texts.only(recent.pages)
    return RecentMinutes(meta, recent, texts, held.cold, early)
