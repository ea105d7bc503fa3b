"""The pipeline without its guard against repeated batches. The control of spark_cluster.py.

A sink stores its output under the number of the batch. A batch that is run again after a restart
therefore replaces its earlier output, or skips it. Here each start of the driver numbers its
batches differently, so output that is written twice stays twice.
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
    """Call foreachBatch with batch numbers that differ at each start."""
    first = STEP * int(os.environ[START_NUMBER])
    return by_its_number(writer, lambda rows, batch_id: sink(rows, first + batch_id))


if __name__ == "__main__":
    setattr(DataStreamWriter, "foreachBatch", by_another_number)  # noqa: B010 - a replacement
    sys.exit(command.main())
