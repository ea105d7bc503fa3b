"""The clicks of open sessions in Spark's state, and what a batch puts out: sessions and findings.

    clicks  a list: `low_s`, `batch_ms`, and two tables as bytes (see `pack`). The first element
            holds what was left at the last sweep, the others what has come since, one a partition
    held    one value: `meta` as JSON (`Meta`), and the findings that have been issued (TOLD)

A batch appends its clicks to the list. Reading the list is what costs, so a bucket reads it

- to *judge* visitors with new clicks, every `judge_every` seconds while the query keeps up;
- to *sweep*, every SWEEP batches and when it is full: it judges all sessions, puts out those that
  are over, and writes the rest back. In turn: a batch sweeps one bucket in SWEEP.

1. All follows from the state and the rows: a replayed batch has the same output and state.
2. Each click is in exactly one session: of its visitor, with no gap of `gap` seconds, in order of
   time. A session is put out once, with its last click; a session that is full, or that has to make
   room for others, ends early, and the next click begins another.
3. A click whose session would have been over before its batch is late. Late clicks make sessions of
   their own.
4. A finding's revision is the time of its batch in ms, and never less than one more than the one
   before: it grows over restarts, evictions and new checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd
import polars as pl
from pyspark.sql.streaming import StatefulProcessor

from sparq.pipeline.sessions.judge import (
    findings_of,
    judged,
    sessions_of,
    site_figures,
    sum_of,
)
from sparq.pipeline.sessions.low_mark import LowMark
from sparq.pipeline.sessions.output import OUTPUT_DDL, finding_rows, session_rows
from sparq.pipeline.sessions.pack import VISITOR, from_blob, to_blob
from sparq.pipeline.sessions.rules import CLICK, Compiled, Rules, compiled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

SWEEP = 16
BEHIND_S = 30
"""A query that reads what was published longer ago is behind: its findings are late anyway, and it
has no time to read its state more often than a sweep does."""

CLICKS, HELD = "clicks", "held"
CLICKS_DDL = "low_s BIGINT, batch_ms BIGINT, clicks BINARY, visitors BINARY"
HELD_DDL = "meta STRING, told BINARY"
TOLD: dict[str, Any] = {
    "visitor": pl.Int64,
    "id": pl.UInt64,
    "reason": pl.String,
    "first_second": pl.Int64,
    "amount": pl.Int64,
}
"""A finding that was issued: its session, and the amount in its newest revision."""

Element = tuple[int, int, bytes, bytes]


@dataclass(slots=True)
class Meta:
    """What a bucket knows without reading its clicks.

    Attributes:
        low_mark: the fields of its LowMark.
        batches: number of its batches.
        clicks: number of clicks in the list.
        judged_ms: the time of the batch in which visitors with new clicks were last judged.
        revision: of the findings issued last.
        site: see `judge.judged`; visits that are over.
    """

    low_mark: dict[str, Any] = field(default_factory=dict)
    batches: int = 0
    clicks: int = 0
    judged_ms: int = 0
    revision: int = 0
    site: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ReceivedClicks:
    """The rows of a bucket in one batch, combined."""

    marks: dict[str, int]
    published_s: int
    batch_ms: int
    blobs: list[tuple[bytes, bytes]]

    @classmethod
    def of(cls, frames: Iterable[pd.DataFrame]) -> ReceivedClicks:
        """Combine rows of `pack.PACKED_DDL`, at least one, in an order that replays repeat."""
        marks: dict[str, int] = {}
        published_s = batch_ms = 0
        blobs: list[tuple[bytes, bytes]] = []
        for frame in frames:
            for text in frame["marks"]:
                for nsqd, newest in json.loads(text).items():
                    marks[nsqd] = max(newest, marks.get(nsqd, newest))
            published_s = max(published_s, int(frame["published_s"].max()))
            batch_ms = max(batch_ms, int(frame["batch_ms"].max()))
            pairs = zip(frame["clicks"], frame["visitors"], strict=True)
            blobs += [(bytes(clicks), bytes(visitors)) for clicks, visitors in pairs if clicks]
        return cls(marks, published_s, batch_ms, sorted(blobs))


class SessionsProcessor(StatefulProcessor):  # type: ignore[misc] # mypy does not follow pyspark
    """Adds a batch's packed rows to the state of each bucket, for `transformWithStateInPandas`."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get the state variables; Spark calls this once per task."""
        self._clicks = handle.getListState(CLICKS, CLICKS_DDL)
        self._held = handle.getValueState(HELD, HELD_DDL)

    def handleInputRows(
        self, key: tuple[Any, ...], rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Process one batch of one bucket: rows of `pack.PACKED_DDL` in, of OUTPUT_DDL out."""
        batch, held = ReceivedClicks.of(rows), self._held.get()
        meta = Meta(**json.loads(held[0])) if held else Meta()
        told = bytes(held[1]) if held else b""
        low_mark = LowMark(**meta.low_mark)
        before_s = low_mark.low_s
        low_mark.advance(batch.marks, batch.batch_ms)
        meta.low_mark, meta.batches = asdict(low_mark), meta.batches + 1
        meta.revision = max(batch.batch_ms, meta.revision + 1)
        added = [(before_s, batch.batch_ms, *pair) for pair in batch.blobs]
        if added:
            self._clicks.appendList(added)
            meta.clicks += sum(len(from_blob(clicks)) for clicks, _ in batch.blobs)
        sweep = self._sweeps(meta, int(key[0]))
        if meta.clicks and (sweep or (added and self._judges(meta, batch))):
            elements = [
                (row[0], row[1], bytes(row[2]), bytes(row[3])) for row in self._clicks.get()
            ]
            bucket = OpenSessions.read(elements, told, meta, compiled(self._rules))
            answer = bucket.sweep(low_mark.low_s, batch.batch_ms) if sweep else bucket.judge()
            meta.judged_ms, told = batch.batch_ms, answer.told
            if sweep:
                self._clicks.put(answer.left) if answer.left else self._clicks.clear()
            if answer.row is not None:
                yield answer.row
        self._held.update((json.dumps(asdict(meta)), told))

    def _sweeps(self, meta: Meta, bucket: int) -> bool:
        # Shifted by the bucket: otherwise all buckets would sweep in the same batch.
        return (meta.batches + bucket) % SWEEP == 0 or meta.clicks > self._rules.held_max

    def _judges(self, meta: Meta, batch: ReceivedClicks) -> bool:
        behind = batch.batch_ms // 1000 - batch.published_s > BEHIND_S
        return not behind and batch.batch_ms - meta.judged_ms >= 1000 * self._rules.judge_every

    def close(self) -> None:
        """Do nothing: nothing is held after a batch."""


@dataclass(frozen=True, slots=True)
class BucketAnswer:
    """What a bucket puts out, and what it keeps: the elements of `clicks`, and TOLD as bytes."""

    row: pd.DataFrame | None
    told: bytes
    left: list[Element]


class OpenSessions:
    """The clicks of a bucket, read from its state.

    Args:
        clicks: columns of `rules.CLICK` and those that the rules use, `late`, and `arrived`: the
            time of its batch in ms.
        visitors: `pack.VISITOR`, each of them once.
        told: TOLD.
        meta: is updated.
        use: the rules.
    """

    def __init__(
        self,
        clicks: pl.DataFrame,
        visitors: pl.DataFrame,
        told: pl.DataFrame,
        meta: Meta,
        use: Compiled,
    ) -> None:
        self._clicks, self._visitors, self._told = clicks, visitors, told
        self._meta, self._use = meta, use

    @classmethod
    def read(
        cls, elements: Iterable[Element], told: bytes, meta: Meta, use: Compiled
    ) -> OpenSessions:
        """Decode the state; at least one element."""
        clicks, visitors = [], []
        for low_s, batch_ms, some, theirs in elements:
            frame = from_blob(some)
            if "late" not in frame.columns:
                late = pl.col("second") + use.settings.gap <= low_s
                frame = frame.with_columns(late=late, arrived=pl.lit(batch_ms, pl.Int64))
            # An earlier rule file may have kept other columns.
            kept = [
                (pl.col(name) if name in frame.columns else pl.lit(None)).cast(kind, strict=False)
                for name, kind in use.kept.items()
            ]
            columns = dict(zip(use.kept, kept, strict=True))
            clicks.append(frame.select(*CLICK, "late", "arrived", **columns))
            visitors.append(from_blob(theirs))
        once = pl.concat(visitors).unique("visitor", keep="first", maintain_order=True)
        known = from_blob(told) if told else pl.DataFrame(schema=TOLD)
        return cls(pl.concat(clicks), once, known, meta, use)

    def judge(self) -> BucketAnswer:
        """Judge visitors with clicks that have come since `judged_ms`."""
        new = self._clicks.filter(pl.col("arrived") > self._meta.judged_ms).select("visitor")
        clicks = self._clicks.join(new.unique(), on="visitor", how="semi")
        clicks = sessions_of(clicks, self._use.settings.gap)
        sessions = judged(clicks, self._visitors, self._use, self._meta.site)
        sessions = sessions.with_columns(over=pl.lit(False), ended=pl.lit(None, pl.String))
        findings, told = self._issue(sessions)
        return BucketAnswer(_row(sessions.clear(), findings, self._use), to_blob(told), [])

    def sweep(self, low_s: int, batch_ms: int) -> BucketAnswer:
        """Judge all sessions, put out those that are over, and keep the rest."""
        clicks = sessions_of(self._clicks, self._use.settings.gap)
        sessions = judged(clicks, self._visitors, self._use, self._meta.site)
        sessions = self._ended(sessions, low_s, batch_ms)
        findings, told = self._issue(sessions)
        over = sessions.filter("over")
        self._meta.site = sum_of(self._meta.site, site_figures(over))
        open_ones = sessions.filter(~pl.col("over")).select("session")
        left = clicks.join(open_ones, on="session", how="semi").drop("session")
        self._meta.clicks = len(left)
        elements = []
        if len(left):
            visitors = self._visitors.join(
                left.select("visitor").unique(), on="visitor", how="semi"
            )
            elements = [(0, 0, to_blob(left), to_blob(visitors.select(list(VISITOR))))]
        return BucketAnswer(_row(over, findings, self._use), to_blob(told), elements)

    def close(self) -> BucketAnswer:
        """Judge all sessions as if they were over, for the end of a run."""
        clicks = sessions_of(self._clicks, self._use.settings.gap)
        sessions = judged(clicks, self._visitors, self._use, self._meta.site)
        sessions = sessions.with_columns(over=pl.lit(True), ended=pl.lit("run"))
        self._meta.revision += 1
        findings, told = self._issue(sessions)
        return BucketAnswer(_row(sessions, findings, self._use), to_blob(told), [])

    def _ended(self, sessions: pl.DataFrame, low_s: int, batch_ms: int) -> pl.DataFrame:
        """Add `over`, and `ended`: why a session is over (gap, clicks_max, room), else null."""
        rules = self._use.settings
        waited = batch_ms - pl.col("arrived") >= 1000 * rules.late_wait
        quiet = pl.when("late").then(waited).otherwise(pl.col("last_second") + rules.gap <= low_s)
        reason = pl.when(quiet).then(pl.lit("gap"))
        full = pl.col("clicks") >= rules.clicks_max
        sessions = sessions.with_columns(ended=reason.when(full).then(pl.lit("clicks_max")))
        open_ones = sessions.filter(pl.col("ended").is_null())
        if open_ones["clicks"].sum() > rules.held_max:
            # Half is left: the next sweep for lack of room is far away.
            newest = open_ones.sort("last_second", "id", descending=True)
            most = newest.filter(pl.col("clicks").cum_sum() > rules.held_max // 2)
            room = pl.col("session").is_in(most["session"].implode())
            sessions = sessions.with_columns(
                ended=pl.when(room).then(pl.lit("room")).otherwise("ended")
            )
        return sessions.with_columns(over=pl.col("ended").is_not_null())

    def _issue(self, sessions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The findings to issue now, and all that have been issued about open sessions.

        Issued are findings that are new, whose amount has doubled, or has changed and its session
        is over; and as withdrawn, those that do not hold any more.
        """
        found = findings_of(sessions, self._use).join(sessions, on="session", how="left")
        told = self._told.rename({"amount": "told"})
        found = found.join(told.select("id", "reason", "told"), on=["id", "reason"], how="left")
        changed = pl.col("over") & (pl.col("amount") != pl.col("told"))
        grown = pl.col("amount") >= 2 * pl.col("told")
        issued = found.filter(pl.col("told").is_null() | grown | changed)
        mine = told.join(sessions.select("visitor").unique(), on="visitor", how="semi")
        gone = mine.join(found, on=["id", "reason"], how="anti")
        rows = pl.concat(
            [
                issued.with_columns(withdrawn=pl.lit(False)),
                gone.drop("told").with_columns(amount=pl.lit(0, pl.Int64), withdrawn=pl.lit(True)),
            ],
            how="diagonal",
        ).with_columns(revision=pl.lit(self._meta.revision, pl.Int64))
        now = pl.when(pl.col("told").is_null() | grown).then("amount").otherwise("told")
        kept = found.filter(~pl.col("over")).select(*list(TOLD)[:-1], amount=now)
        others = self._told.join(mine, on=["id", "reason"], how="anti")
        return rows, pl.concat([others, kept]).select(list(TOLD))


def _row(sessions: pl.DataFrame, findings: pl.DataFrame, use: Compiled) -> pd.DataFrame | None:
    """The output row, of OUTPUT_DDL; None if there is nothing to put out."""
    if not len(sessions) and not len(findings):
        return None
    room = sessions.filter(pl.col("ended") == "room")
    return pd.DataFrame(
        {
            "sessions": [to_blob(session_rows(sessions, use))],
            "findings": [to_blob(finding_rows(findings, use))],
            "found": [len(findings)],
            "late": [int(sessions.filter("late")["clicks"].sum())],
            "evicted_visits": [len(room)],
            "evicted_clicks": [int(room["clicks"].sum())],
        }
    )


def sessions_stage(packed: DataFrame, rules: Rules) -> DataFrame:
    """The output rows (OUTPUT_DDL) of a stream of packed rows (`pack.PACKED_DDL`)."""
    return packed.groupBy("bucket").transformWithStateInPandas(
        SessionsProcessor(rules), OUTPUT_DDL, "Append", "None"
    )


def closed(spark: SparkSession, checkpoint: str, rules: Rules) -> DataFrame:
    """The output rows for all open sessions in the state of a stopped query.

    Args:
        spark: any session.
        checkpoint: checkpoint location of the query.
        rules: the query's rules.
    """
    state = spark.read.format("statestore")
    clicks = state.option("stateVarName", CLICKS).load(checkpoint)
    held = state.option("stateVarName", HELD).load(checkpoint)
    rows = clicks.selectExpr("key.bucket", "list_element.*", "NULL AS meta", "NULL AS told")
    rows = rows.unionByName(held.selectExpr("key.bucket", "value.*"), allowMissingColumns=True)

    def close(frame: pd.DataFrame) -> pd.DataFrame:
        value = frame[frame["meta"].notna()].iloc[0]
        clicks = frame[frame["clicks"].notna()]
        columns = (clicks[name] for name in ("low_s", "batch_ms", "clicks", "visitors"))
        elements = [
            (int(low_s), int(batch_ms), bytes(some), bytes(theirs))
            for low_s, batch_ms, some, theirs in zip(*columns, strict=True)
        ]
        row = None
        if elements:
            meta = Meta(**json.loads(value["meta"]))
            bucket = OpenSessions.read(
                sorted(elements), bytes(value["told"]), meta, compiled(rules)
            )
            row = bucket.close().row
        return _NOTHING if row is None else row

    return rows.groupBy("bucket").applyInPandas(close, OUTPUT_DDL)


_NOTHING = pd.DataFrame(
    {
        name: pd.Series(dtype="object" if kind == "BINARY" else "int64")
        for name, kind in (column.split() for column in OUTPUT_DDL.split(", "))
    }
)
