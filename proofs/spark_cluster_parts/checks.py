"""Checks that the pipeline has written what was published: its own audit, and a separate count."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from proofs.spark_cluster_parts.feed import TOPIC
from sparq.pipeline import archive, metrics, spam_analysis
from sparq.pipeline.audit import AuditResult, PublisherRecords, audit
from sparq.pipeline.report import Labels, Score, newest_findings, scores
from sparq.pipeline.run.folders import Folders
from sparq.pipeline.run.processes import LocalCluster

FINDING_KEY = ["session", "reason", "revision"]
PRECISION, RECALL = 0.95, 0.90
SCORED_CLICKS = 200_000
"""With fewer clicks, so few visitors are planted that a single one decides the score."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Results of the checks.

    Attributes:
        wrong: what does not hold; empty if all does.
        rows: rows of the archive, counted here.
        distinct: distinct message ids of the archive, counted here.
        score: how well the planted visitors were found; None if nothing was read.
    """

    wrong: list[str] = field(default_factory=list)
    rows: int = 0
    distinct: int = 0
    score: Score | None = None

    @property
    def twice(self) -> int:
        """Return the number of archive rows whose id another row also has."""
        return self.rows - self.distinct


def run_audit(data: Path, cluster: LocalCluster, published: PublisherRecords) -> AuditResult:
    """Run the pipeline's own audit of a data folder.

    Args:
        data: the folder.
        cluster: its nsqds, which must be reachable.
        published: the feed's records.
    """
    folders = Folders(data)
    return audit(
        sum(cluster.message_counts(TOPIC).values()),
        archive.read_clicks(folders),
        archive.read_rejected(folders),
        metrics.read_minutes(folders),
        spam_analysis.read_sessions(folders),
        published=published,
    )


def read(
    data: Path, cluster: LocalCluster, published: PublisherRecords, labels: Labels
) -> CheckResult:
    """Run the audit, and check what else must be true.

    Args:
        data: the data folder.
        cluster: its nsqds, which must be reachable.
        published: the feed's records.
        labels: the visitors that were planted among the clicks.
    """
    found = run_audit(data, cluster, published)
    rows, distinct = archived(data / "clicks")
    wrong = list(found.failures)
    if (rows, distinct) != (found.archived, found.distinct):
        wrong.append(
            f"the audit has {found.archived:,} rows of {found.distinct:,} ids in the archive, a"
            f" count of the files {rows:,} of {distinct:,}"
        )
    sent = 0 if published.acknowledged is None else len(published.acknowledged)
    if distinct + found.rejected_distinct < sent:
        wrong.append(f"{distinct + found.rejected_distinct:,} ids of {sent:,} acknowledged clicks")
    findings = spam_analysis.read_findings(Folders(data))
    again = len(findings) - findings.group_by(FINDING_KEY).aggregate([]).num_rows
    if again:
        wrong.append(f"{again:,} revisions of findings stand twice")
    score = scores(newest_findings(findings), labels)["all"]
    if sent >= SCORED_CLICKS and (score.precision < PRECISION or score.recall < RECALL):
        wrong.append(f"precision {score.precision:.3f} and recall {score.recall:.3f} of findings")
    return CheckResult(wrong, rows, distinct, score)


def archived(folder: Path) -> tuple[int, int]:
    """Return the rows and distinct message ids of a table, read without sparq."""
    if not DeltaTable.is_deltatable(str(folder)):
        return 0, 0
    ids = DeltaTable(folder).to_pyarrow_table(columns=["id"])["id"]
    return len(ids), len(ids.unique())
