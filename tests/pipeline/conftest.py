"""Clicks as Spark sees them, in the session that all tests share: there is one a process."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

PUBLISHED = datetime(2026, 11, 21, tzinfo=UTC)
GENERATED_CODE = "spark.sql.codegen.wholeStage"


@pytest.fixture
def spark(spark):
    """With the setting of the pipeline's own session that matters most."""
    before = spark.conf.get(GENERATED_CODE)
    spark.conf.set(GENERATED_CODE, "false")
    yield spark
    spark.conf.set(GENERATED_CODE, before)


@pytest.fixture
def messages(spark):
    """Makes a frame of messages, as the source gives them, of bodies."""

    def make(bodies, first=0, nsqds=("a", "b")):
        count = len(bodies)
        places = range(first, first + count)
        table = pa.table(
            {
                "nsqd": pa.array([nsqds[at // 50 % len(nsqds)] for at in places], pa.string()),
                "id": pa.array([f"{at:016x}" for at in places], pa.string()),
                "index": pa.array(list(places), pa.int64()),
                "timestamp": pa.array([PUBLISHED] * count, pa.timestamp("us", "UTC")),
                "body": pa.array(bodies, pa.binary()),
            }
        )
        return spark.createDataFrame(table)

    return make
