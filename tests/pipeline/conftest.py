"""Clicks as Spark sees them, in the session that all tests share: there is one a process."""

import pytest

from sparq.demo.generator import generate
from sparq.pipeline import archive
from tests.pipeline.archived import QUERY
from tests.pipeline.feed import Feed, message_table


@pytest.fixture
def messages(spark):
    """Makes a frame of messages, as the source gives them, of bodies."""

    def make(bodies, first=0, nsqds=("a", "b")):
        return spark.createDataFrame(message_table(bodies, first, nsqds))

    return make


@pytest.fixture
def feed(spark, tmp_path):
    """Batches for a query, whose checkpoint lies where the pipeline has it."""
    return lambda name: Feed(spark, tmp_path / "checkpoint" / name)


@pytest.fixture
def query(spark):
    """Makes this thread look like a streaming query's, by its id."""

    def become(name):
        spark.sparkContext.setLocalProperty("sql.streaming.queryId", name)

    become(QUERY)
    yield become
    spark.sparkContext.setLocalProperty("sql.streaming.queryId", None)


@pytest.fixture
def batches(messages):
    """Three batches of archived clicks."""
    lines = generate(600, seed=3).lines
    return [archive.archived(messages(lines[at : at + 200], first=at)) for at in (0, 200, 400)]
