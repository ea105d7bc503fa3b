"""docs/tables.md: its queries run as they stand, over the lines of docs/pipeline.md."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparq.pipeline import archive, metrics, own_metrics
from sparq.pipeline.reading.schema import CLICK_SCHEMA
from sparq.pipeline.sink import Sink
from tests.pipeline.query_input import message_table
from tests.pipeline.stored import process
from tests.scenarios.docs import pipeline_page

TEXT = (pipeline_page.ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^### (.*?)\n.*?^```python\n(.*?)^```\n\n```\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the tables in `data`: each line is a batch."""
    folder = tmp_path_factory.mktemp("tables")
    lines = "".join(pipeline_page.blocks("Start", "")).encode().splitlines()
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "11111111-aaaa")
    for output in (archive.output(), metrics.output()):
        sink = Sink(spark, str(folder / "data"), output)
        for at, line in enumerate(lines):
            process(sink, spark.createDataFrame(message_table([line], at)), at, output.split)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def test_each_engine_has_a_query() -> None:
    """The page has a query with its output for each engine that it names."""
    assert ["polars", "DuckDB", "pandas", "Spark"] == [title for title, _, _ in QUERIES]


@pytest.mark.parametrize(("title", "query", "output"), QUERIES, ids=[one[0] for one in QUERIES])
def test_a_query_prints_the_pages_output(
    title: str, query: str, output: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each query prints what the page says."""
    if title == "Spark":  # its JVM, which all tests share, was started in another folder
        query = query.replace('"data"', f'"{written / "data"}"')
    exec(compile(query, title, "exec"), {})

    assert output == capsys.readouterr().out


def test_the_page_has_the_columns(written: Path) -> None:
    """The page names all columns of the metrics' tables."""
    names = {*metrics.MINUTES.schema.names, *metrics.PAGES.schema.names}

    assert [] == sorted(
        name for name in names if name not in TEXT and not name.startswith("status")
    )


def test_the_pages_metrics_are_accepted() -> None:
    """The metrics of the page's file are valid over the columns of a click."""
    (text,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.M | re.S)
    found = own_metrics.from_toml(tomllib.loads(text)["metrics"])

    assert ["metric_sent", "metric_buyers"] == [
        own_metrics.MetricTable(metric, CLICK_SCHEMA).table.name for metric in found
    ]
