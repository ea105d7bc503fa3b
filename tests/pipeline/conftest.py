"""Fixtures for the tests with Spark: messages, batches and queries in the shared session."""

import pytest

from sparq.demo.generator import generate
from tests.pipeline.query_input import QueryInput, message_table

QUERY = "11111111-aaaa"


@pytest.fixture
def messages(spark):
    """A function that makes a DataFrame of messages, with the source's columns, from bodies."""

    def make(bodies, first=0, nsqds=("a", "b")):
        return spark.createDataFrame(message_table(bodies, first, nsqds))

    return make


@pytest.fixture
def query_input(spark, tmp_path):
    """A function that makes the input of a query; its checkpoint is where the pipeline puts it."""
    return lambda name: QueryInput(spark, tmp_path / "checkpoint" / name)


@pytest.fixture
def query(spark):
    """Make this thread look like that of a streaming query with a given id."""

    def become(name):
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", name)

    become(QUERY)
    yield become
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)


@pytest.fixture
def batches(messages):
    """Three batches of messages, 200 each, of one day."""
    lines = generate(600, seed=3).lines
    return [messages(lines[at : at + 200], first=at) for at in (0, 200, 400)]
