"""What Spark's state store keeps of one bucket of `metrics`, and how it is read and written.

    recent   ValueState (meta STRING, data BINARY): JSON, and the newest minutes in one blob
    cold     MapState minute BIGINT -> data BINARY: older minutes, each alone

`recent` is read and written in each batch, so it is kept small: beyond `recent_bytes_max` its
oldest minutes go to `cold`, where a minute costs nothing until it is touched or closes. A blob has
the same four tables in both, so whoever reads the state store reads them alike: minutes, the texts
of their pages, the list of the cold minutes, and the last rows of minutes that closed early (the
last two are empty in a cold one).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypedDict

import numpy as np
import pyarrow as pa

from sparq.pipeline.low_mark import LowMarkBooks
from sparq.pipeline.minutes_state import minutes, page_texts
from sparq.pipeline.minutes_state.minutes import Minutes
from sparq.pipeline.minutes_state.output import MINUTE_SCHEMA
from sparq.pipeline.minutes_state.page_texts import PageTexts
from sparq.pipeline.packing import from_blob, to_blob

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

COLD_SCHEMA = pa.schema([("minute", pa.int64()), ("bytes", pa.int64())])
BLOB_SCHEMAS = (minutes.SCHEMA, page_texts.SCHEMA, COLD_SCHEMA, MINUTE_SCHEMA)
META_VERSION = 1


class Counts(TypedDict):
    """What a bucket has counted since the first batch."""

    clicks: int  # in minutes
    late: int  # clicks
    rejected: int  # messages
    closed_early: int  # minutes


class Meta(TypedDict):
    """What a bucket knows beside its minutes, as JSON."""

    version: int
    low_mark: LowMarkBooks | None
    closed_before: int  # minutes before this one are closed
    counts: Counts


class BucketState(Protocol):
    """Reads the state of one bucket; each call is a round trip to the JVM."""

    def recent(self) -> tuple[str, bytes] | None:
        """Meta as JSON and the blob of the newest minutes; None for a new bucket."""

    def cold(self, minute: int) -> bytes:
        """The blob of a minute that the blob of `recent` lists as cold."""


@dataclass(frozen=True, slots=True)
class Writes:
    """What to write after a batch.

    Attributes:
        recent: to put in place of `recent`.
        cold: blobs to put into `cold`, by minute.
        gone: minutes to remove from `cold`.
    """

    recent: tuple[str, bytes]
    cold: dict[int, bytes]
    gone: list[int]


@dataclass(frozen=True, slots=True)
class Held:
    """What `recent` says.

    Attributes:
        meta: as its JSON has it.
        minutes: those of `recent`.
        texts: of their pages.
        cold: of each minute in `cold`, the bytes of its blob.
        early: the last rows, of MINUTE_SCHEMA, of minutes that closed early in this bucket: in
            other buckets they may be open, and whoever adds up the buckets needs them again.
    """

    meta: Meta
    minutes: Minutes
    texts: PageTexts
    cold: dict[int, int]
    early: pa.Table


def load(recent: tuple[str, bytes] | None) -> Held:
    """A bucket as its last batch left it; an empty one at first.

    Raises:
        ValueError: another version of sparq wrote the state.
    """
    if recent is None:
        early = MINUTE_SCHEMA.empty_table()
        return Held(_first_meta(), minutes.EMPTY, page_texts.EMPTY, {}, early)
    meta = json.loads(recent[0])
    if meta["version"] != META_VERSION:
        raise ValueError(
            f"the state of metrics has version {meta['version']}, this sparq reads version "
            f"{META_VERSION}: go on with the sparq that wrote it, or start with a new checkpoint"
        )
    open_minutes, texts, cold, early = from_blob(recent[1], BLOB_SCHEMAS)
    sizes = zip(cold["minute"].to_pylist(), cold["bytes"].to_pylist(), strict=True)
    return Held(
        meta,
        minutes.from_table(open_minutes),
        page_texts.from_table(texts),
        dict(sizes),
        early,
    )


def _first_meta() -> Meta:
    counts: Counts = {"clicks": 0, "late": 0, "rejected": 0, "closed_early": 0}
    return {"version": META_VERSION, "low_mark": None, "closed_before": 0, "counts": counts}


def minutes_of(blobs: Iterable[bytes]) -> tuple[Minutes, PageTexts]:
    """The minutes of blobs of one bucket, of `recent` or of `cold`, one after the other."""
    parts = [from_blob(blob, BLOB_SCHEMAS) for blob in blobs]
    tables = pa.concat_tables([minutes.EMPTY_TABLE, *(part[0] for part in parts)])
    texts = page_texts.EMPTY.with_more([page_texts.from_table(part[1]) for part in parts])
    return minutes.from_table(tables), texts


def early_of(blobs: Iterable[bytes]) -> pa.Table:
    """The last rows of minutes that closed early, of MINUTE_SCHEMA."""
    tables = [from_blob(blob, BLOB_SCHEMAS)[3] for blob in blobs]
    return pa.concat_tables([MINUTE_SCHEMA.empty_table(), *tables])


def writes(
    held: Held, touched_cold: Minutes, texts: PageTexts, gone: list[int], recent_bytes_max: int
) -> Writes:
    """What to write for a bucket.

    Args:
        held: the bucket after the batch; its `texts` have those of its minutes at least, its
            `cold` is still as before the batch.
        touched_cold: minutes that stay in `cold`, as they are now.
        texts: those of `touched_cold` at least.
        gone: minutes that leave `cold`.
        recent_bytes_max: size of `recent` from which on its oldest minutes go to `cold`.
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
    return Writes((json.dumps(held.meta, sort_keys=True), blob), blobs, gone)


def _newest_half(held: Minutes) -> np.ndarray:
    """Marks the newest minutes that make up half of the bytes; the newest of all in any case."""
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
