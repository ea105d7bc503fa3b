"""Checks that the pipeline has written what was published: its own audit, and a separate count."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from proofs.exactly_once import archived, problems
from proofs.spark_cluster_parts.feed import TOPIC
from sparq.demo.scores import Labels, scores
from sparq.pipeline import spam_analysis
from sparq.pipeline.report.audit import Hashes, audit
from sparq.pipeline.report.figures import newest_findings, scan
from sparq.pipeline.run.processes import LocalCluster
from sparq.pipeline.storage import TablePlace

PRECISION, RECALL = 0.95, 0.90
SCORED_CLICKS = 200_000
"""With fewer clicks, so few visitors are planted that a single one decides the score."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Results of the checks.

    Attributes:
        wrong: what does not hold; empty if all does.
        rows: rows of `clicks` and `rejected`.
        distinct: their distinct message ids.
        score: how well the planted visitors were found; None if nothing was read.
    """

    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    distinct: int = 0
    score: dict[str, float] | None = None

    @property
    def twice(self) -> int:
        """Return the number of these rows whose id another row also has."""
        return self.rows - self.distinct


def read(
    data: Path, cluster: LocalCluster, published: tuple[Hashes, Hashes], labels: Labels
) -> CheckResult:
    """Run the audit, and check what else must be true.

    Args:
        data: the data folder.
        cluster: its nsqds, which must be reachable.
        published: the feed's records.
        labels: the visitors that were planted among the clicks.
    """
    place = TablePlace(str(data))
    _, wrong = audit(place, cluster.message_count(TOPIC), *published)
    wrong += problems(data)
    rows, distinct = archived(data)
    sent = len(published[0])
    if distinct < sent:
        wrong.append(f"{distinct:,} ids of {sent:,} acknowledged clicks")
    findings = newest_findings(scan(place, spam_analysis.FINDINGS))
    score = scores(findings.to_dicts(), labels)["all"]
    if sent >= SCORED_CLICKS and (score["precision"] < PRECISION or score["recall"] < RECALL):
        wrong.append(f"precision {score['precision']} and recall {score['recall']} of findings")
    return CheckResult(wrong, rows, distinct, score)
