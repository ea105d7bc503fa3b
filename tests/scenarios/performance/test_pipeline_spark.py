"""The benchmark that compares the pipeline with plain Spark compares the same work."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.pipeline_clicks import Crowd, day_file, lines_of, write_parquet

from bench import pipeline_reference
from sparq.pipeline.enrich import parse_arrow

READ_ALIKE = ("id", "time", "address", "method", "path", "status", "bytes", "user_agent")
DAY_CLICKS, CROWD_CLICKS = 2_000, 500


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A small generated day and a small crowd, as messages in Parquet files."""
    lines = [*lines_of(day_file(tmp_path, DAY_CLICKS)), *Crowd(50, 10).lines(CROWD_CLICKS)]
    write_parquet(lines, len(lines), tmp_path / "clicks")
    return tmp_path / "clicks"


def test_the_reference_parses_the_same_rows(spark, files: Path) -> None:
    """The plain Spark reference parses the same rows with the same values as the pipeline."""
    messages = spark.read.parquet(str(files))
    rows = parse_arrow(messages.toArrow()).select(["reason", *READ_ALIKE])
    ours = spark.createDataFrame(rows).where("reason IS NULL").drop("reason")
    theirs = pipeline_reference.parsed(messages).select(*READ_ALIKE)

    assert DAY_CLICKS + CROWD_CLICKS - 20 < ours.count()
    assert [] == ours.exceptAll(theirs).collect()


def test_each_job_of_the_reference_writes_every_click(spark, tmp_path: Path, files: Path) -> None:
    """The reference's three jobs each write every click: by hour, per minute and per visitor."""
    took = pipeline_reference.seconds(spark, files, tmp_path / "out")
    archived, minutes, visitors = (spark.read.parquet(str(tmp_path / "out" / job)) for job in took)

    assert ["archive", "metrics", "visitors"] == list(took)
    assert {"date", "hour"} < set(archived.columns)
    assert [DAY_CLICKS + CROWD_CLICKS] * 3 == [
        archived.count(),
        minutes.selectExpr("sum(clicks)").first()[0],
        visitors.selectExpr("sum(size(clicks))").first()[0],
    ]
