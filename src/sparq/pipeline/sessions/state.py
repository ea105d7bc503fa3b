"""The clicks of open sessions in Spark's state, and what a batch puts out: sessions and findings.

A batch appends its clicks to a list. Reading the list is what costs, so a bucket reads it

- to *judge* visitors with new clicks, every `judge_every` seconds while the query keeps up;
- to *sweep*, in turn one bucket of SWEEP in each batch, and when it is full: it judges all
  sessions, puts out those that are over, and writes the rest back.

All follows from the state and the rows: a replayed batch has the same output and state. Each click
is in one session. One that is full, or that has to make room for others, ends early, and the next
click begins another. A click whose session would have been over before its batch is late: late
clicks make sessions of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import polars as pl
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from sparq.pipeline.sessions.judge import (
    FINDINGS,
    SESSIONS,
    findings_of,
    judged,
    sessions_of,
    site_figures,
    table_rows,
)
from sparq.pipeline.sessions.pack import VISITOR, from_blob, to_blob
from sparq.pipeline.sessions.rules import CLICK, Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

SWEEP = 16
BEHIND_S = 30
"""A query that reads what was published longer ago is behind: its findings are late anyway, and it
has no time to read its state more often than a sweep does."""

OUTPUT_DDL = (
    "sessions BINARY, findings BINARY, found BIGINT, late BIGINT, evicted_visits BIGINT, "
    "evicted_clicks BIGINT"
)
"""A row of the stateful stage: tables as Arrow streams, and counts of what they contain."""

CLICKS, HELD = "clicks", "held"
CLICKS_DDL = "low_s BIGINT, batch_ms BIGINT, clicks BINARY, visitors BINARY"
"""The first element of the list holds what was left at the last sweep (`pack.to_blob`)."""
HELD_DDL = "meta STRING, told BINARY"
TOLD: dict[str, Any] = {
    "visitor": pl.Int64,
    "id": pl.UInt64,
    "reason": pl.String,
    "first_second": pl.Int64,
    "amount": pl.Int64,
}
"""A finding that was issued: its session, and the amount in its newest revision."""

QUIET_S = 30
STEP_S = 10


class LowMark(msgspec.Struct):
    """The event time that all nsqds have reached: one may be read minutes after another.

    It follows from the batches only, so a replay repeats it, and never goes back. An nsqd that has
    sent no click for QUIET_S does not hold it back until its next click. Only time between batches
    counts, at most STEP_S for each pair: neither a pause of the query nor a jump of the clock may
    make every nsqd quiet.
    """

    low_s: int = 0
    newest_s: dict[str, int] = {}  # of each nsqd that is not quiet, its newest event time
    seen_ms: dict[str, int] = {}  # likewise, the time of its last click on the clock `clock_ms`
    clock_ms: int = 0
    batch_ms: int = 0

    def advance(self, marks: Iterable[Mapping[str, int]], batch_ms: int) -> None:
        """Process one batch of this time, with each partition's newest event time of each nsqd."""
        self.clock_ms += min(max(batch_ms - self.batch_ms, 0), STEP_S * 1000)
        self.batch_ms = batch_ms
        for nsqd, at in (pair for one in marks for pair in one.items()):
            self.newest_s[nsqd] = max(at, self.newest_s.get(nsqd, 0))
            self.seen_ms[nsqd] = self.clock_ms
        quiet_before = self.clock_ms - QUIET_S * 1000
        self.seen_ms = {nsqd: at for nsqd, at in self.seen_ms.items() if at >= quiet_before}
        self.newest_s = {nsqd: self.newest_s[nsqd] for nsqd in self.seen_ms}
        # With no nsqd left the mark stays where it is.
        self.low_s = max(self.low_s, min(self.newest_s.values(), default=0))


class Meta(msgspec.Struct):
    """What a bucket knows without reading its clicks."""

    low_mark: LowMark
    batches: int = 0  # that it has had
    clicks: int = 0  # in the list
    judged_ms: int = 0  # time of the batch in which visitors with new clicks were last judged
    revision: int = 0  # of the findings issued last
    site: tuple[int, int] = (0, 0)  # `judge.site_figures` of sessions that are over


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
        batch, held = pd.concat(list(rows)), self._held.get()
        batch_ms, published_s = int(batch["batch_ms"].max()), int(batch["published_s"].max())
        meta = msgspec.json.decode(held[0], type=Meta) if held else Meta(LowMark())
        told = bytes(held[1]) if held else b""
        before_s = meta.low_mark.low_s
        meta.low_mark.advance(map(json.loads, batch["marks"]), batch_ms)
        meta.batches += 1
        # It grows over restarts, evictions and new checkpoints.
        meta.revision = max(batch_ms, meta.revision + 1)
        pairs = zip(batch["clicks"], batch["visitors"], strict=True)
        # In an order that replays repeat.
        blobs = sorted((bytes(clicks), bytes(visitors)) for clicks, visitors in pairs if clicks)
        if blobs:
            self._clicks.appendList([(before_s, batch_ms, *pair) for pair in blobs])
            meta.clicks += sum(len(from_blob(clicks)) for clicks, _ in blobs)
        # Shifted by the bucket: otherwise all buckets would sweep in the same batch.
        in_turn = (meta.batches + int(key[0])) % SWEEP == 0
        sweeps = in_turn or meta.clicks > self._rules.visit.held_max
        is_behind = batch_ms // 1000 - published_s > BEHIND_S
        is_due = batch_ms - meta.judged_ms >= 1000 * self._rules.visit.judge_every
        if meta.clicks and (sweeps or (blobs and is_due and not is_behind)):
            bucket = OpenSessions(self._clicks.get(), told, meta, self._rules)
            if sweeps:
                row, left = bucket.sweep(batch_ms)
                self._clicks.put(left) if left else self._clicks.clear()
            else:
                row = bucket.judge()
            meta.judged_ms, told = batch_ms, to_blob(bucket.told)
            if row is not None:
                yield row
        self._held.update((msgspec.json.encode(meta).decode(), told))

    def close(self) -> None:
        """Do nothing: nothing is held after a batch."""


class OpenSessions:
    """The clicks of a bucket, read from its state; each method returns an output row or None.

    There is at least one element. `meta` and `told` (TOLD, of open sessions) are updated.
    """

    def __init__(
        self, elements: Iterable[Sequence[Any]], told: bytes, meta: Meta, rules: Rules
    ) -> None:
        clicks, visitors = [], []
        for low_s, batch_ms, some, theirs in elements:
            frame = from_blob(bytes(some))
            if "late" not in frame.columns:
                late = pl.col("second") + rules.visit.gap <= low_s
                frame = frame.with_columns(late=late, arrived=pl.lit(batch_ms, pl.Int64))
            # An earlier rule file may have kept other columns.
            missing = {name: pl.lit(None) for name in rules.kept if name not in frame.columns}
            frame = frame.with_columns(**missing).cast(pl.Schema(rules.kept), strict=False)
            clicks.append(frame.select(*CLICK, "late", "arrived", *rules.kept))
            visitors.append(from_blob(bytes(theirs)))
        self._clicks = sessions_of(pl.concat(clicks), rules.visit.gap)
        self._visitors = pl.concat(visitors).unique("visitor", keep="first", maintain_order=True)
        self.told = from_blob(told) if told else pl.DataFrame(schema=TOLD)
        self._meta, self._rules = meta, rules

    def judge(self) -> pd.DataFrame | None:
        """Judge visitors with clicks that have come since `judged_ms`."""
        new = self._clicks.filter(pl.col("arrived") > self._meta.judged_ms).select("visitor")
        clicks = self._clicks.join(new.unique(), on="visitor", how="semi", maintain_order="left")
        return self._put_out(self._judged(clicks).with_columns(ended=pl.lit(None, pl.String)))

    def sweep(self, batch_ms: int) -> tuple[pd.DataFrame | None, list[tuple[Any, ...]]]:
        """Judge all sessions, put out those that are over; also the elements of the rest."""
        sessions = self._ended(self._judged(self._clicks), batch_ms)
        row = self._put_out(sessions)
        open_ones = sessions.filter(pl.col("ended").is_null()).select("session")
        left = self._clicks.join(open_ones, on="session", how="semi").drop("session")
        self._meta.clicks = len(left)
        if not len(left):
            return row, []
        visitors = self._visitors.join(left.select("visitor").unique(), on="visitor", how="semi")
        return row, [(0, 0, to_blob(left), to_blob(visitors.select(list(VISITOR))))]

    def close(self) -> pd.DataFrame | None:
        """Judge all sessions as if they were over, for the end of a run."""
        self._meta.revision += 1
        return self._put_out(self._judged(self._clicks).with_columns(ended=pl.lit("run")))

    def _judged(self, clicks: pl.DataFrame) -> pl.DataFrame:
        return judged(clicks, self._visitors, self._rules, self._meta.site)

    def _ended(self, sessions: pl.DataFrame, batch_ms: int) -> pl.DataFrame:
        """Add `ended`: why a session is over (gap, clicks_max, room), else null."""
        visit, low_s = self._rules.visit, self._meta.low_mark.low_s
        waited = batch_ms - pl.col("arrived") >= 1000 * visit.late_wait
        quiet = pl.when("late").then(waited).otherwise(pl.col("last_second") + visit.gap <= low_s)
        reason = pl.when(quiet).then(pl.lit("gap"))
        full = pl.col("clicks") >= visit.clicks_max
        sessions = sessions.with_columns(ended=reason.when(full).then(pl.lit("clicks_max")))
        open_ones = sessions.filter(pl.col("ended").is_null())
        if open_ones["clicks"].sum() > visit.held_max:
            # Half is left: the next sweep for lack of room is far away.
            newest = open_ones.sort("last_second", "id", descending=True)
            most = newest.filter(pl.col("clicks").cum_sum() > visit.held_max // 2)
            room = pl.col("session").is_in(most["session"].implode())
            sessions = sessions.with_columns(
                ended=pl.when(room).then(pl.lit("room")).otherwise("ended")
            )
        return sessions

    def _put_out(self, sessions: pl.DataFrame) -> pd.DataFrame | None:
        """The output row, of OUTPUT_DDL: sessions that are over, and findings about all."""
        sessions = sessions.with_columns(over=pl.col("ended").is_not_null())
        findings = self._issue(sessions)
        over = sessions.filter("over")
        self._meta.site = site_figures(over, self._meta.site)
        if not len(over) and not len(findings):
            return None
        room = over.filter(pl.col("ended") == "room")
        return pd.DataFrame(
            {
                "sessions": [to_blob(table_rows(over, SESSIONS, self._rules))],
                "findings": [to_blob(table_rows(findings, FINDINGS, self._rules))],
                "found": [len(findings)],
                "late": [int(over.filter("late")["clicks"].sum())],
                "evicted_visits": [len(room)],
                "evicted_clicks": [int(room["clicks"].sum())],
            }
        )

    def _issue(self, sessions: pl.DataFrame) -> pl.DataFrame:
        """The findings to issue now; updates `told`.

        Issued are findings that are new, whose amount has doubled, or has changed and its session
        is over; and as withdrawn, those that do not hold any more.
        """
        found, told = findings_of(sessions, self._rules), self.told.rename({"amount": "told"})
        found = found.join(sessions, on="session", how="left")
        found = found.join(told.select("id", "reason", "told"), on=["id", "reason"], how="left")
        changed = pl.col("over") & (pl.col("amount") != pl.col("told"))
        is_new = pl.col("told").is_null() | (pl.col("amount") >= 2 * pl.col("told"))
        mine = told.join(sessions.select("visitor").unique(), on="visitor", how="semi")
        gone = mine.join(found, on=["id", "reason"], how="anti")
        now = pl.when(is_new).then("amount").otherwise("told")
        kept = found.filter(~pl.col("over")).select(*list(TOLD)[:-1], amount=now)
        others = self.told.join(mine, on=["id", "reason"], how="anti")
        self.told = pl.concat([others, kept]).select(list(TOLD))
        return pl.concat(
            [
                found.filter(is_new | changed).with_columns(withdrawn=pl.lit(False)),
                gone.drop("told").with_columns(amount=pl.lit(0, pl.Int64), withdrawn=pl.lit(True)),
            ],
            how="diagonal",
        ).with_columns(revision=pl.lit(self._meta.revision, pl.Int64))


def sessions_stage(packed: DataFrame, rules: Rules) -> DataFrame:
    """The output rows (OUTPUT_DDL) of a stream of packed rows (`pack.PACKED_DDL`)."""
    return packed.groupBy("bucket").transformWithStateInPandas(
        SessionsProcessor(rules), OUTPUT_DDL, "Append", "None"
    )


def closed(spark: SparkSession, checkpoint: str, rules: Rules) -> DataFrame:
    """The output rows for all open sessions in the state of a stopped query."""
    state = spark.read.format("statestore")
    elements = F.sort_array(F.collect_list("list_element")).alias("elements")
    clicks = state.option("stateVarName", CLICKS).load(checkpoint)
    clicks = clicks.groupBy(F.col("key.bucket")).agg(elements)
    held = state.option("stateVarName", HELD).load(checkpoint).selectExpr("key.bucket", "value.*")

    def close(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for row in (one for frame in frames for one in frame.itertuples()):
            elements = [tuple(one.values()) for one in row.elements]
            meta = msgspec.json.decode(row.meta, type=Meta)
            found = OpenSessions(elements, bytes(row.told), meta, rules).close()
            assert found is not None
            yield found

    return held.join(clicks, "bucket").mapInPandas(close, OUTPUT_DDL)
