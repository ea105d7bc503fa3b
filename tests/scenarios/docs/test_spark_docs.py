"""The example of a function in docs/spark.md, with a real nsqd and Spark."""

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.scenarios.docs import pipeline_page
from tests.support.published import numbered, publish_batches
from tests.support.servers import spawn_nsqd

TEXT = (pipeline_page.ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def test_the_example_counts_all_messages(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of the example sum up to the messages of the topic."""
    found = re.search(r"^## A function instead.*?^```python\n(.*?)^```$", TEXT, re.M | re.S)
    assert found is not None
    kept: list[int] = []
    with spawn_nsqd(tmp_path / "nsqd") as nsqd:
        publish_batches(nsqd, "clicks", numbered(0, 500))
        names: dict[str, Any] = {"spark": spark}
        exec(found[1].replace("127.0.0.1:4150", nsqd.tcp), names)
        query = (
            names["rows"]
            .writeStream.foreachBatch(
                lambda rows, _: kept.extend(row.messages for row in rows.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    assert 500 == sum(kept)
