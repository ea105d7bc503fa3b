"""The pipeline with its guard switched off: a reader that does not keep to the checkpoint.

The control of spark.py. What a micro-batch reads is planned and written down before it is read, and
a batch that is run again must read just that. This reader keeps to a plan only while it remembers
having made it: run again after a kill, a batch reads on to wherever the logs end by then, and the
next one reads the rest once more.

It is called as small_batches.py is.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from proofs.controls import small_batches
from sparq.pipeline import app
from sparq.spark.data_source import NsqDataSource
from sparq.spark.source import NsqStreamReader


class CarelessReader(NsqStreamReader):
    """Reads beyond the end of a batch that it has not planned itself."""

    planned = False

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        """As ever; from here on the plans are its own."""
        self.planned = True
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
        """The planned ranges, or all that there is."""
        if not self.planned:
            end = super().latestOffset(start, ReadAllAvailable())
        return super().partitions(start, end)


class CarelessSource(NsqDataSource):
    """The format `nsq`, read by a careless reader."""

    def streamReader(self, schema: Any) -> CarelessReader:
        """As ever, but for its class."""
        reader = super().streamReader(schema)
        return CarelessReader(reader._options, reader._columns)


def register_careless(spark: SparkSession) -> None:
    """The format `nsq`, as the pipeline registers it for each query, but for its reader.

    Spark copies a class of the main module as it is.
    """
    spark.dataSource.register(CarelessSource)


if __name__ == "__main__":
    setattr(app, "register_nsq", register_careless)  # noqa: B010 - a replacement
    sys.exit(small_batches.main(sys.argv[1:], "proofs.controls.unplanned_reader"))
