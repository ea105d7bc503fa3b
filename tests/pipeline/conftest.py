"""Clicks as Spark sees them, in the session that all tests share: there is one a process."""

import pytest

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
