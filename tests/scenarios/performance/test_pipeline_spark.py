"""The benchmark that compares the pipeline with plain Spark compares the same work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.pipeline import Bench, parse
from bench.pipeline_clicks import Crowd, day_file, lines_of, write_parquet
from bench.pipeline_processes import BenchError, java_of, live_heap_mib, memory_mib
from bench.pipeline_targets import GENERATED, LOGGED, ONE_PASS, PARSE, PARSE_RATIO, report

from bench import pipeline_reference
from sparq.pipeline import clicks as click

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
    ours = click.readable(click.parse(messages)).select(*READ_ALIKE)
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


def test_the_reference_evaluates_each_expression_once(spark, files: Path) -> None:
    """The reference's plan evaluates the regular expression and `from_json` once each."""
    messages = spark.read.parquet(str(files))
    plan = pipeline_reference.parsed(messages)._jdf.queryExecution().optimizedPlan().toString()

    assert 1 == plan.count("regexp_replace(")
    assert 1 == plan.count("from_json(")


def test_parsing_is_compared_with_a_single_pass_over_the_text(spark, tmp_path: Path, capfd) -> None:
    """Parsing and a single pass over the text are both measured, and their ratio is reported.

    Without --log, stderr notes that it is missing.
    """
    bench = Bench(tmp_path, rounds=2, clicks=1_000, spark=spark)
    parse(bench)

    names = [PARSE.format(GENERATED), ONE_PASS.format(GENERATED)]
    assert [2, 2] == [len(bench.figures[name].rounds) for name in names]
    assert 0 < bench.figures[names[0]].value
    assert PARSE_RATIO.format(GENERATED) in report(list(bench.figures.values()), "abc")
    assert PARSE_RATIO.format(LOGGED) not in bench.figures
    assert "without --log PATH" in capfd.readouterr().err


def test_parsing_is_also_measured_on_the_lines_of_a_log(spark, tmp_path: Path) -> None:
    """The lines of a log are repeated as needed, and measured separately from generated clicks."""
    log = tmp_path / "access.log"
    log.write_bytes(b"\n".join(Crowd(5, 5).lines(30)) + b"\n")
    bench = Bench(tmp_path / "work", rounds=1, clicks=1_000, log=log, spark=spark)
    parse(bench)

    for which in (GENERATED, LOGGED):
        assert PARSE_RATIO.format(which) in report(list(bench.figures.values()), "abc")
    log.write_bytes(b"")
    with pytest.raises(BenchError, match=r"access.log has no lines"):
        parse(bench)


def test_the_live_heap_of_a_jvm_can_be_measured(spark) -> None:
    """The live heap of a JVM can be measured from outside; it is smaller than resident memory."""
    java = java_of([os.getpid(), spark.sparkContext._gateway.proc.pid])

    assert 5 < live_heap_mib(java) < memory_mib(java)
