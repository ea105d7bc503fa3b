"""The user's own metrics: which ones are accepted, and their figures."""

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from sparq.pipeline.own_metrics import MetricTable, OwnMetric, from_toml
from sparq.pipeline.reading.schema import Reading, click_schema

SCHEMA = click_schema(Reading(columns=(("price", "price: double"), ("region", "geo: string"))))
AT = datetime(2026, 3, 2, 10, tzinfo=UTC)
CLICKS = [
    {"time": AT, "price": 1.5, "region": "DE", "page": "/a", "status": 200},
    {"time": AT.replace(second=59), "price": 2.5, "region": "DE", "page": "/b", "status": 404},
    {"time": AT, "price": None, "region": None, "page": "/a", "status": 200},
    {"time": AT.replace(minute=1), "price": 4.0, "region": "DE", "page": "/a", "status": 200},
]


def table_of(**metric):
    return MetricTable(OwnMetric("m", **metric), SCHEMA)


def figures(table, *batches):
    """The rows of the batches, summed up, without the minute's day and hour."""
    rows = []
    for batch in batches:
        clicks = pa.Table.from_pylist(batch, SCHEMA)
        rows.append(pickle.loads(pickle.dumps(table)).rows(clicks))
    found = table.table.summed(pa.concat_tables(rows))
    return [(row.pop("minute").minute, *row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("sum(price)", [(0, 4.0), (1, 4.0)]),
        ("SUM( price * 2 )", [(0, 8.0), (1, 8.0)]),
        ("sum(status)", [(0, 804), (1, 200)]),
        ("count(*)", [(0, 3), (1, 1)]),
        ("count(price)", [(0, 2), (1, 1)]),
        ("min(price)", [(0, 1.5), (1, 4.0)]),
        ("max(price)", [(0, 2.5), (1, 4.0)]),
        ("mean(price)", [(0, 4.0, 2), (1, 4.0, 1)]),
    ],
)
def test_partial_rows_give_the_aggregate(value, expected):
    """Rows of any batches, summed up, give the aggregate over all clicks."""
    table = table_of(value=value)

    assert expected == figures(table, CLICKS) == figures(table, CLICKS[:1], CLICKS[2:], CLICKS[1:2])


def test_values_are_counted_once():
    """`count(distinct x)` has a hash of each value, in whichever batch it is."""
    rows = figures(table_of(value="count(distinct page)"), CLICKS, CLICKS[:2])

    assert [(0, 2), (1, 1)] == [(minute, len(hashes)) for minute, hashes in rows]


def test_rows_are_grouped_and_filtered():
    """There is a row per minute and value of `by`, null included, for clicks of `where`."""
    table = table_of(value="count(*)", by=("region",), where="status = 200")

    assert ["minute", "region", "value"] == table.table.schema.names
    assert [(0, None, 1), (0, "DE", 1), (1, "DE", 1)] == figures(table, CLICKS)
    assert {"region", "status"} == set(table.columns)


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        ({"value": "sum(prize)"}, "metrics.m: value=prize: no column prize: did you mean price"),
        ({"value": "sum(page)"}, "metrics.m: value=sum(page): page is no number"),
        ({"value": "count((SELECT 1))"}, "an expression may not contain the word SELECT"),
        ({"value": "count(*)", "by": ("minute",)}, "by: minute is a column of the metrics table"),
        ({"value": "sum(*)"}, "value=sum(*) is no aggregate: write sum(x), count(*)"),
        ({"value": "sum(price +)"}, "metrics.m: value=price +: unable to parse"),
        ({"value": "sum(price)", "by": ("land",)}, "metrics.m: by: no column land"),
        ({"value": "count(*)", "where": "status"}, "metrics.m: where=status must be true or false"),
        ({"value": "median(price)"}, "value=median(price) is no aggregate: write sum(x), count(*)"),
    ],
)
def test_a_wrong_metric_is_one_sentence(metric, sentence):
    """A wrong expression, column or type is named before a query starts."""
    with pytest.raises(ValueError, match=r"^") as raised:
        table_of(**metric)

    assert sentence in str(raised.value).replace("'", "").replace('"', "")
    assert 1 == len(str(raised.value).splitlines())


def test_metrics_come_from_tables_of_the_file():
    """Each table is a metric; a wrong key or type is one sentence."""
    revenue = {"value": "sum(price)", "by": ["region"]}

    assert (OwnMetric("revenue", "sum(price)", ("region",)),) == from_toml({"revenue": revenue})
    for wrong, sentence in (
        ({"Revenue": revenue}, "metrics.Revenue: .* is no name"),
        ({"a": {"value": "count(*)", "per": ["x"]}}, "metrics.a.per is unknown"),
        ({"a": {"by": ["x"]}}, "metrics.a: it lacks the key value"),
        ({"a": {"value": "count(*)", "by": "x"}}, "metrics.a.by: Expected a list, got a text"),
        ({"a": "count(*)"}, "metrics.a: Expected a table, got a text"),
    ):
        with pytest.raises(ValueError, match=sentence):
            from_toml(wrong)
