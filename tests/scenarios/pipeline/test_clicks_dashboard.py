"""The Grafana dashboard of the clicks: each query runs in DuckDB over tables of the pipeline."""

import dataclasses
import json
import re
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from sparq.demo.generator import generate
from sparq.pipeline.report.figures import TABLES, figures_of
from tests.pipeline.mmdb import write_mmdb
from tests.pipeline.report.sample_tables import ALL, written

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "dashboards/clicks.json").read_text(encoding="utf-8"))
QUERIES = {
    (panel["type"], panel["title"]): target["rawSql"]
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", [])
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The tables of a generated day, with all columns that enrichment can add."""
    folder = tmp_path_factory.mktemp("tables")
    file = folder / "countries.mmdb"
    write_mmdb(file, {"0.0.0.0/1": {"country": {"iso_code": "DE"}}})
    reading = dataclasses.replace(ALL, country_file=str(file))
    lines = [one.replace(b"GET / ", b"GET /?utm_campaign=x ") for one in generate(10_000, 3).lines]
    return written(folder, lines, reading)


def run(data, query):
    """The rows of a query, after what Grafana and its data source replace."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for table in TABLES:
        connection.register(
            table.name, DeltaTable(data.of(table.name).address).to_pyarrow_dataset()
        )
    query = re.sub(r"delta_scan\('\$\{data:raw\}/(\w+)'\)", r"\1", query)
    query = query.replace("${step:raw}", "1 hour")
    between = r"\1 >= '2000-01-01T00:00:00Z' AND \1 <= '2100-01-01T00:00:00Z'"
    query = re.sub(r"\$__timeFilter\((\w+)\)", between, query)
    assert "$" not in query
    return connection.sql(query).fetchall()


@pytest.mark.parametrize("panel", QUERIES, ids=" ".join)
def test_a_panels_query_has_rows(data, panel):
    """Each query runs as it stands, and finds something."""
    assert run(data, QUERIES[panel])


def test_the_dashboard_has_the_figures_of_the_report(data):
    """Totals, and what both show, are equal."""
    figures = figures_of(data)
    lists = {one["title"]: [row[:2] for row in one["rows"][:20]] for one in figures["top_lists"]}
    errors = (figures["status_4xx"] + figures["status_5xx"]) / figures["clicks"]

    names = ("visitors", "sessions", "views", "clicks", "bytes")
    titles = ("Visitors", "Sessions", "Page views", "Clicks", "Sent")
    assert [figures[name] for name in names] == [
        run(data, QUERIES["stat", title])[0][0] for title in titles
    ]
    assert [(pytest.approx(errors),)] == run(data, QUERIES["stat", "Errors"])
    for title in ("Pages", "Sources", "Devices", "Countries", "Robots", "Entry pages"):
        assert lists[title] == run(data, QUERIES["table", title])
    assert figures["findings"] == {
        row[0]: row[1] for row in run(data, QUERIES["table", "Findings"])
    }
