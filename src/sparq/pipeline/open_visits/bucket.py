"""One batch of one bucket: from its state and its packed rows to its output and its new state.

1. Everything follows from the state, the rows and the limits: a batch that is replayed on the same
   state gives the same output and the same bytes.
2. The findings do not depend on how clicks are divided into batches, partitions and buckets, nor on
   when the state is compacted; only on the low mark before each click.
3. An ordinary batch reads `hot` and appends to `hot` and `names`. It reads `findings` only for new
   suspects. Only a compaction reads `base`: in batch 16, 32 ... (shifted by the bucket's number),
   when `hot` has grown too large, when visits are over, and when a suspect may have pages in
   `base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from sparq.pipeline import packing
from sparq.pipeline.open_visits import judge
from sparq.pipeline.open_visits.batch import VisitsBatch, robot_clicks, touched
from sparq.pipeline.open_visits.bucket_visits import BucketVisits
from sparq.pipeline.open_visits.findings import Evicted, Findings, bounded, newest_of, output
from sparq.pipeline.open_visits.folding import FOLDS, WINDOWS, folds_table, windows_table
from sparq.pipeline.open_visits.recent import judged
from sparq.pipeline.open_visits.rows import (
    TEXTS,
    Pages,
    VisitorNames,
    Visits,
    concat,
    empty,
    take,
    to_table,
)
from sparq.pipeline.open_visits.tiers import (
    BUSY_PAGES,
    DEFAULT_LIMITS,
    BasePart,
    Element,
    HotPart,
    VisitsLimits,
    VisitsMeta,
    VisitsState,
    read_findings,
    read_names,
)
from sparq.pipeline.packing import BucketInput, Ints
from sparq.pipeline.visits import (
    CLOCK_GAPS,
    DECLARED,
    ROBOTS_TXT,
    VISIT_GAP_S,
    Evidence,
    declared_name,
)


def apply(
    state: VisitsState, bucket: int, received: BucketInput, limits: VisitsLimits = DEFAULT_LIMITS
) -> pa.Table:
    """Process one batch.

    Args:
        state: the state of this bucket; it is updated.
        bucket: its number.
        received: the result of `packing.receive` for its rows.
        limits: its limits.

    Returns:
        Rows of `findings.OUTPUT_SCHEMA`.
    """
    hot = HotPart(state)
    batch = VisitsBatch.of(received, hot.meta)
    findings = Findings(hot.findings(), lambda: read_findings(state))
    _hold_robots(batch, findings)
    quick = None if _is_due(hot, batch, bucket, limits) else judged(hot, batch, findings)
    if quick is None:
        return _compacted(state, hot, batch, findings, limits)
    for visitor, evidence in quick.evidence:
        findings.add(visitor, batch.names.of(visitor), evidence)
    report = findings.report()
    element = _element(hot, batch, findings, quick.texts)
    state.hot.append(element.bytes())
    if len(batch.names.table):
        state.names.append(packing.to_blob([batch.names.table]))
    return output(report, Evicted())


def _is_due(hot: HotPart, batch: VisitsBatch, bucket: int, limits: VisitsLimits) -> bool:
    """Whether this batch compacts the state, whatever its content."""
    meta = hot.meta
    if meta is None:
        return False
    overdue = meta.due_s is not None and batch.low_mark.low_s >= meta.due_s + limits.overdue_s
    # Shifted by the bucket: otherwise all buckets would compact in the same batch.
    scheduled = (meta.batches + 1 + bucket) % limits.batches_max == 0
    return overdue or scheduled or meta.hot_bytes > limits.hot_bytes_max


def _hold_robots(batch: VisitsBatch, findings: Findings) -> None:
    """Add the batch's evidence about declared robots, including late clicks."""
    for robot in robot_clicks(batch.arrivals):
        name = batch.names.of(robot.visitor)
        before = findings.get(robot.visitor, DECLARED)
        amount = robot.clicks + (before.amount if before else 0)
        ids = tuple(f"{one:016x}" for one in robot.ids)
        details = {"robot": declared_name(name.agent)}
        evidence = Evidence(DECLARED, amount, robot.first_s, robot.last_s, ids, details)
        findings.add(robot.visitor, name, evidence)


def _element(
    hot: HotPart, batch: VisitsBatch, findings: Findings, texts: dict[int, str]
) -> Element:
    """The element that an ordinary batch adds to `hot`."""
    meta = hot.meta
    due_s = [meta.due_s] if meta and meta.due_s is not None else []
    if len(batch.seconds.visitor):
        due_s.append(int(batch.seconds.last_s.min()) + VISIT_GAP_S)
    tables = (to_table(batch.seconds), to_table(batch.pages), _texts_table(texts))
    size = sum(table.nbytes for table in tables)
    figures = VisitsMeta(
        batches=meta.batches + 1 if meta else 1,
        before_s=batch.before_s,
        low_mark=asdict(batch.low_mark),
        due_s=min(due_s, default=None),
        hot_bytes=(meta.hot_bytes if meta else 0) + size,
        has_base=meta.has_base if meta else False,
    )
    return Element(figures, *tables, empty(FOLDS), empty(WINDOWS), findings.used())


def _compacted(
    state: VisitsState, hot: HotPart, batch: VisitsBatch, findings: Findings, limits: VisitsLimits
) -> pa.Table:
    """Judge and rewrite everything that the bucket holds."""
    base, evicted = BasePart.read(state), Evicted()
    names = VisitorNames([base.names, *read_names(state), batch.names.table])
    texts = {**hot.texts(), **batch.texts}
    new = (batch.seconds, batch.pages)
    whole = BucketVisits.of(base, hot, new, before_s=batch.before_s, names=names, texts=texts)
    lows = [*hot.lows(), batch.low_mark.low_s]
    report = whole.judge(findings, lows, touched(batch.seconds))
    report += findings.report()
    whole = whole.only(whole.over_in(lows) == len(lows))
    whole = whole.folded(lows[-1], limits, evicted)
    whole = whole.bounded(limits, evicted)
    recent = _keep_findings(state, hot, findings, limits, evicted)
    meta = VisitsMeta(
        batches=hot.meta.batches + 1 if hot.meta else 1,
        before_s=0,
        low_mark=asdict(batch.low_mark),
        due_s=int(whole.visits.last_s.min()) + VISIT_GAP_S if len(whole.visits.visitor) else None,
        hot_bytes=0,
        has_base=True,
    )
    _write(state, whole, meta, recent)
    return output(report, evicted)


def _keep_findings(
    state: VisitsState, hot: HotPart, findings: Findings, limits: VisitsLimits, evicted: Evicted
) -> pa.Table:
    """Write the part `findings` if it has changed; returns the findings that stay in `hot`."""
    in_use = newest_of([hot.findings_in_use(), findings.used()])
    if len(in_use):
        newest = findings.newest()
        kept = bounded(newest, limits.findings_max)
        evicted.findings += len(newest) - len(kept)
        state.findings.put(packing.to_blob([kept]))
    return in_use


def _write(state: VisitsState, whole: BucketVisits, meta: VisitsMeta, recent: pa.Table) -> None:
    """Divide visits, pages and names between the tiers, and write them."""
    busy = _busy(whole)
    visits, pages = (np.isin(rows.visitor, busy) for rows in (whole.visits, whole.pages))
    hot_pages = take(whole.pages, pages)
    element = Element(
        meta,
        to_table(take(whole.visits, visits)),
        to_table(hot_pages),
        _texts_table(judge.texts_of(hot_pages, whole.texts)),
        folds_table(whole.all_folds()),
        windows_table(whole.all_windows()),
        recent,
    )
    base = BasePart(
        take(whole.visits, ~visits),
        take(whole.pages, ~pages),
        whole.names.only(whole.visits.visitor),
    )
    state.base.put(base.bytes())
    state.hot.put(element.bytes())
    state.names.clear()


def _busy(whole: BucketVisits) -> Ints:
    """The visitors whose next click may complete evidence together with stored clicks."""
    visits, pages = whole.visits, whole.pages
    some = (
        judge.busy(pages, BUSY_PAGES),
        pages.visitor[pages.kind == ROBOTS_TXT],
        visits.visitor[visits.pages > CLOCK_GAPS],  # `recent` must wait for these (`_must_wait`)
        [
            *(one.visitor for one in whole.all_folds()),
            *(one.visitor for one in whole.all_windows()),
        ],
    )
    return np.unique(np.concatenate([np.array(visitors, np.int64) for visitors in some]))


def _texts_table(texts: Mapping[int, str]) -> pa.Table:
    if not texts:
        return empty(TEXTS)
    return pa.Table.from_arrays(
        [pa.array(list(texts), pa.int64()), pa.array(list(texts.values()), pa.string())],
        schema=TEXTS,
    )


def close(state: VisitsState) -> pa.Table:
    """Judge the open visits, and report all unreported findings, since no click will come.

    Args:
        state: the state of one bucket after its last batch; it is not changed.

    Returns:
        Rows of `findings.OUTPUT_SCHEMA`.
    """
    hot, base = HotPart(state), BasePart.read(state)
    findings = Findings(hot.findings(), lambda: read_findings(state))
    findings.use_grown()
    nothing = (concat(Visits, []), concat(Pages, []))
    names = VisitorNames([base.names, *read_names(state)])
    whole = BucketVisits.of(base, hot, nothing, before_s=0, names=names, texts=hot.texts())
    report = []
    if len(whole.visits.visitor):
        lows = [*hot.lows(), int(whole.visits.last_s.max()) + VISIT_GAP_S]
        report = whole.judge(findings, lows, whole.visits.visitor)
    return output([*report, *findings.report(everything=True)], Evicted())
