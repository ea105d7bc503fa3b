"""The pipeline with a reader that does not keep to the checkpoint. The control of spark.py.

The ranges of a micro-batch are planned and written down before they are read, and a batch that runs
again must read the same ranges. This reader keeps to a plan only while it remembers making it. If a
batch runs again after a kill, it reads to the current end of the logs, and the next batch reads
those messages a second time.

It is called like small_batches.py.
"""

import sys
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from proofs import small_batches
from sparq.pipeline import channels
from sparq.spark.data_source import NsqDataSource
from sparq.spark.source import NsqStreamReader


class UnplannedReader(NsqStreamReader):
    """Reads beyond the end of a batch that it has not planned itself."""

    planned = False

    def latestOffset(self, start: dict[str, object], limit: Any) -> dict[str, object]:
        """Make plans as usual, and remember them."""
        self.planned = True
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[Any]:
        """Return the planned ranges, or all that the logs hold."""
        if not self.planned:
            end = super().latestOffset(start, ReadAllAvailable())
        return super().partitions(start, end)


class UnplannedSource(NsqDataSource):
    """The format `nsq`, with a reader that ignores plans."""

    def streamReader(self, schema: Any) -> UnplannedReader:
        """Return the usual reader, as an `UnplannedReader`."""
        reader = super().streamReader(schema)
        return UnplannedReader(reader._options, reader._columns, reader._function)


if __name__ == "__main__":
    # Spark copies a class of the main module as it is.
    setattr(channels, "NsqDataSource", UnplannedSource)  # noqa: B010 - a replacement
    sys.exit(small_batches.main(sys.argv[1:], "proofs.unplanned_reader"))
