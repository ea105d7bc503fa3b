"""docs/pipeline.md, tables.md and sessions.md: their commands, files and queries work.

The programs for Spark Connect and for declarative pipelines are run in tests/scenarios/spark.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparq.pipeline import archive, metrics, own_metrics
from sparq.pipeline.command import parse as parse_pipeline
from sparq.pipeline.reading.schema import CLICK_SCHEMA
from sparq.pipeline.sessions.rules import RulesError, read_rules
from sparq.pipeline.sink import Sink
from tests.pipeline.query_input import message_table
from tests.pipeline.stored import process
from tests.scenarios.docs import pages

PIPELINE, TABLES, SESSIONS_PAGE = (f"docs/{name}.md" for name in ("pipeline", "tables", "sessions"))
START = pages.section(PIPELINE, "Start")
LOG = "".join(pages.blocks(START, ""))
"""The lines of `access.log` that the examples read."""
ENGINES = re.compile(
    r"^### (.*?)\n.*?^```python\n(.*?)^```\n\n```\n(.*?)^```$", re.M | re.S
).findall(pages.text_of(TABLES))


def pipeline_commands() -> list[list[str]]:
    """The flags of each command line of `sparq pipeline`."""
    lines = [
        line for line in pages.lines_of(PIPELINE, "sparq") if line.startswith("sparq pipeline")
    ]
    return [shlex.split(line)[2:] for line in lines]


@pytest.mark.parametrize("words", pipeline_commands(), ids=" ".join)
def test_the_pipeline_accepts_its_command_lines(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sparq pipeline` accepts each command line, with the page's file and an offset in JSON."""
    (text,) = pages.blocks(START, "toml")
    (tmp_path / "clicks.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    offset = json.dumps({"127.0.0.1:4150/ab": {"index": 1, "ordinal": 1}})

    assert parse_pipeline([word.replace("$(cat place.json)", offset) for word in words]).data


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the tables of docs/tables.md in `data`: each line is a batch."""
    folder = tmp_path_factory.mktemp("tables")
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", "11111111-aaaa")
    for output in (archive.output(), metrics.output()):
        sink = Sink(spark, str(folder / "data"), output)
        for at, line in enumerate(LOG.encode().splitlines()):
            process(sink, spark.createDataFrame(message_table([line], at)), at, output.split)
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.mark.parametrize(("title", "query", "output"), ENGINES, ids=[one[0] for one in ENGINES])
def test_a_query_of_the_tables_prints_the_pages_output(
    title: str, query: str, output: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """polars, DuckDB, pandas and Spark print what the page says."""
    if title == "Spark":  # its JVM, which all tests share, was started in another folder
        query = query.replace('"data"', f'"{written / "data"}"')
    exec(compile(query, title, "exec"), {})

    assert output == capsys.readouterr().out


def test_the_metrics_and_rules_of_the_pages_are_accepted(tmp_path: Path) -> None:
    """The files in TOML are valid, and a mistake in the rules gives the page's sentence."""
    (text,) = pages.blocks(pages.text_of(TABLES), "toml")
    for metric in own_metrics.from_toml(tomllib.loads(text)["metrics"]):
        own_metrics.MetricTable(metric, CLICK_SCHEMA)

    page = pages.text_of(SESSIONS_PAGE)
    (text,) = pages.blocks(page, "toml")
    file = tmp_path / "my_rules.toml"
    file.write_text(text, encoding="utf-8")
    assert "scanner" in [name for name, *_ in read_rules(file, CLICK_SCHEMA).rules]
    file.write_text(text.replace("errors * 2", "error * 2"), encoding="utf-8")
    with pytest.raises(RulesError) as caught:
        read_rules(file, CLICK_SCHEMA)
    said = str(caught.value).removeprefix(f"{tmp_path}/")
    assert f"sparq pipeline: {said}\n" in pages.blocks(page, "")
