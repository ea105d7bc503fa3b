"""docs/sessions.md: its programs print the page's outputs, its rule file is accepted."""

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from sparq.pipeline.command import parse
from sparq.pipeline.reading.schema import CLICK_SCHEMA
from sparq.pipeline.sessions.judge import FINDINGS, SESSIONS
from sparq.pipeline.sessions.rules import REASONS, RulesError, read_rules
from tests.pipeline.sessions.visitors import RULES, Bucket, Click

PAGE = Path(__file__).parents[3] / "docs" / "sessions.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language):
    """The content of each block of code of a language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [content for name, content in found if name == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with `data`: two sessions that are over, and one that was open at the end."""
    bucket = Bucket()
    bucket.batch([Click(at * 6, f"/{at}", "198.51.100.2", "curl/8.5") for at in range(45)])
    bucket.batch([Click(300, "/", "203.0.113.7"), Click(301, "/site.css", "203.0.113.7")])
    pages = [Click(9_001, f"/{at}", "203.0.113.9") for at in range(29)]
    bucket.batch([Click(9_000, "/robots.txt", "203.0.113.9"), *pages])
    bucket.sweep()
    bucket.close()
    made = tmp_path_factory.mktemp("docs")
    for name, rows, schema in (
        ("sessions", bucket.sessions, SESSIONS),
        ("findings", bucket.findings, FINDINGS),
    ):
        table = pl.DataFrame(rows, infer_schema_length=None).to_arrow().cast(schema)
        table = table.sort_by("first_time")
        table = table.append_column("date", pc.cast(table["first_time"], "date32"))
        write_deltalake(made / "data" / name, table, partition_by=["date"])
    return made


@pytest.mark.parametrize("number", range(3))
def test_the_pages_programs_print_its_outputs(folder, number):
    """DuckDB, polars and pandas read the tables, and print what the page shows."""
    program, shown = blocks("python")[number], blocks("")[number]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, check=False, cwd=folder, text=True)

    assert shown == done.stdout, done.stderr


def test_the_pages_sql_gives_the_newest_findings_that_hold(folder):
    """The query in plain SQL has the findings of the program below it."""
    (query,) = blocks("sql")
    connection = duckdb.connect()
    connection.register("findings", pl.read_delta(str(folder / "data" / "findings")).to_arrow())
    rows = connection.sql(query).fetchall()

    assert [str(row[0]) for row in rows] == ["declared_robot", "undeclared_robot", "burst"]


def test_the_pages_rule_file_is_accepted(tmp_path):
    """The rule file changes what the page says, and its mistake is the page's sentence."""
    (text,), (line,) = blocks("toml"), [x for x in blocks("console") if "--rules" in x]
    file = tmp_path / "my_rules.toml"
    file.write_text(text, encoding="utf-8")
    rules = read_rules(file, CLICK_SCHEMA)

    assert (rules.visit.gap, rules.visit.visitor) == (900, ("address",))
    assert [name for name, *_ in rules.rules] == [*list(REASONS)[:-1], "scanner"]
    words = line.split()[3:]
    assert parse(words).rules.endswith("/my_rules.toml")
    file.write_text(text.replace("errors * 2", "error * 2"), encoding="utf-8")
    with pytest.raises(RulesError) as caught:
        read_rules(file, CLICK_SCHEMA)
    assert f"sparq pipeline: {str(caught.value).removeprefix(f'{tmp_path}/')}\n" in blocks("")


def test_the_pages_lists_are_those_of_the_code():
    """Every column and every reason is in a table of the page; limits are those of the rules."""
    words = set(re.findall(r"`(\w+)`", TEXT))

    assert set(SESSIONS.names) | set(REASONS) | {"revision", "withdrawn", "evidence"} <= words
    assert f"had {RULES.visit.clicks_max:,} clicks" in TEXT
    assert (1_800, 2) == (RULES.visit.gap, RULES.visit.judge_every)
