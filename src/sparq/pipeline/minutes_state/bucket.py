"""What one batch makes of one bucket of `metrics`: its minutes add up, close, and are written.

1. `apply` is a function of the state and of the received rows; it does not matter into which
   partitions the clicks fell. A replayed batch gives equal bytes and equal rows.
2. A click of an open minute makes a new revision of its row, however late it comes.
3. A minute closes `horizon_s` behind the low mark, or when the bucket is full (the oldest first;
   then it is counted as `closed_early`, and its last row is kept: other buckets may have the
   minute open, and the row is written with each batch that touches or closes it there), and never
   opens again. A click of a closed minute, or
   of one more than AHEAD_MAX_S ahead of the batch's newest publish time, is written as `late`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sparq.pipeline.low_mark import LowMark
from sparq.pipeline.minutes_state import output
from sparq.pipeline.minutes_state.bucket_state import (
    BucketState,
    Counts,
    Held,
    Meta,
    Writes,
    early_of,
    load,
    minutes_of,
    writes,
)
from sparq.pipeline.minutes_state.minutes import Minutes, added_up, joined
from sparq.pipeline.minutes_state.output import MINUTE_SCHEMA
from sparq.pipeline.minutes_state.packer import received
from sparq.pipeline.minutes_state.page_texts import PageTexts
from sparq.pipeline.packing import Received

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

HORIZON_S = 86_400
AHEAD_MAX_S = 86_400
RECENT_BYTES_MAX = 1_000_000
BUCKET_BYTES_MAX = 64_000_000  # 8 million visitors of minutes; in 16 buckets about 1 GB of disk


@dataclass(frozen=True, slots=True)
class Limits:
    """What a bucket may hold.

    Attributes:
        horizon_s: how long a minute stays open behind the low mark.
        recent_bytes_max: size of `recent` from which on its oldest minutes go to `cold`.
        bucket_bytes_max: size of all minutes from which on the oldest close early.
    """

    horizon_s: int = HORIZON_S
    recent_bytes_max: int = RECENT_BYTES_MAX
    bucket_bytes_max: int = BUCKET_BYTES_MAX


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class _Changed:
    """The minutes that a batch touches or closes, added up with what it brought.

    Attributes:
        minutes: all of them.
        texts: of their pages, and all that `recent` had.
        cold: those that were in `cold`.
        rest: marks the minutes of `recent` that are not among them.
    """

    minutes: Minutes
    texts: PageTexts
    cold: list[int]
    rest: Flags


def apply(
    bucket: int, state: BucketState, batch: Received, limits: Limits = LIMITS
) -> tuple[Writes, pa.Table]:
    """Take one batch into a bucket.

    Args:
        bucket: its number.
        state: its state before the batch.
        batch: all rows that it got, at least one.
        limits: what it may hold.

    Returns:
        What to write into the state, and the output rows, of `output.SCHEMA`.
    """
    held = load(state.recent())
    added, texts, refused = received(batch.blobs)
    touched = added.minute
    is_late = _is_late(added, held.meta["closed_before"], batch.header.published_s)
    late = added.where(is_late & (added.sum_of("clicks") > 0))
    added = added.where(~is_late)
    texts = texts.only(added.pages)  # of late clicks nothing stays
    mark = LowMark(held.meta["low_mark"])
    mark.advance(batch.header.marks, batch.header.batch_ms)
    over = (mark.low_s - limits.horizon_s) // 60
    due = max(held.meta["closed_before"], over)
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
    meta: Meta = {
        "version": held.meta["version"],
        "low_mark": mark.books(),
        "closed_before": closing,
        "counts": _counted(held.meta["counts"], added, late, len(refused), len(early)),
    }
    after = _after(held, changed, still_open, meta, output.since(last, over))
    cold = np.isin(still_open.minute, changed.cold)
    gone = [minute for minute in changed.cold if minute < closing]
    return (
        writes(after, still_open.where(cold), changed.texts, gone, limits.recent_bytes_max),
        rows,
    )


def close(bucket: int, blobs: Iterable[bytes]) -> pa.Table:
    """The last rows of the open minutes of a bucket: nothing more will come.

    Args:
        bucket: its number.
        blobs: blobs of `recent` and `cold`, in any number of calls; each holds its minutes whole.

    Returns:
        Rows of `output.SCHEMA`, all final.
    """
    held = list(blobs)
    return output.joined(
        output.minute_rows(bucket, *minutes_of(held), final=True),
        output.rows_of(bucket, early_of(held)),
    )


def _is_late(added: Minutes, closed_before: int, published_s: int) -> Flags:
    ahead = (published_s + AHEAD_MAX_S) // 60
    late: Flags = (added.minute < closed_before) | (added.minute > ahead)
    return late


def _closing(held: Held, added: Minutes, due: int, bytes_max: int) -> int:
    """The first minute that stays open: `due`, or a later one so that the rest fits."""
    minute = np.concatenate([held.minutes.minute, added.minute, np.array([*held.cold], np.int64)])
    size = np.concatenate(
        [
            held.minutes.bytes_each(),
            added.bytes_each(),
            np.array([*held.cold.values()], np.int64),
        ]
    )
    size = np.where(minute >= due, size, 0)
    if size.sum() <= bytes_max:
        return due
    order = np.argsort(-minute, kind="stable")
    first_too_much = np.searchsorted(np.cumsum(size[order]), bytes_max, side="right")
    return int(minute[order[first_too_much]]) + 1


def _changed(
    state: BucketState, held: Held, added: Minutes, texts: PageTexts, closing: int
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


def _after(held: Held, changed: _Changed, still_open: Minutes, meta: Meta, early: pa.Table) -> Held:
    """The bucket after the batch; minutes that were in `cold` stay there."""
    recent = joined(
        [
            held.minutes.where(changed.rest),
            still_open.where(~np.isin(still_open.minute, changed.cold)),
        ]
    )
    texts = changed.texts
    if changed.cold or len(still_open) < len(changed.minutes):
        texts = texts.only(recent.pages)
    return Held(meta, recent, texts, held.cold, early)


def _counted(counts: Counts, added: Minutes, late: Minutes, refused: int, early: int) -> Counts:
    return {
        "clicks": counts["clicks"] + int(added.sum_of("clicks").sum()),
        "late": counts["late"] + int(late.sum_of("clicks").sum()),
        "rejected": counts["rejected"] + refused,
        "closed_early": counts["closed_early"] + early,
    }
