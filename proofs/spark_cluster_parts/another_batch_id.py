"""The pipeline with its guard switched off: a batch that is run again does not know that it is.

The control of spark_cluster.py. A sink puts what it writes under the number of the batch. So a
batch that is run again after a restart replaces or leaves out what is there. Here each start of the
driver gives its batches other numbers, and what is written twice stays twice.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming import DataStreamWriter

from proofs.spark_cluster_parts.driver import START_NUMBER
from sparq.pipeline import command

STEP = 100_000
by_its_number = DataStreamWriter.foreachBatch


def by_another_number(
    writer: DataStreamWriter, sink: Callable[[Any, int], None]
) -> DataStreamWriter:
    """foreachBatch, with numbers that are this start's own."""
    first = STEP * int(os.environ[START_NUMBER])
    return by_its_number(writer, lambda rows, batch_id: sink(rows, first + batch_id))


if __name__ == "__main__":
    setattr(DataStreamWriter, "foreachBatch", by_another_number)  # noqa: B010 - a replacement
    sys.exit(command.main())
