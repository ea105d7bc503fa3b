"""What the stream and the batch reader have in common."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from sparq.spark.bounds import Bounds
from sparq.spark.fleet import Fleet
from sparq.spark.losses import Losses
from sparq.spark.offsets import Offset
from sparq.spark.planner import Planner
from sparq.spark.ranges import Loss, read_range
from sparq.spark.source_options import SourceOptions


class NsqReader:
    """Reads ranges in executors, and plans them in the driver.

    Args:
        options: the query's.
        columns: the columns of the rows, in order.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._loss = Loss(options.fail_on_data_loss)
        self._losses = Losses(options.topics, self._loss)
        self._connected: Fleet | None = None

    @property
    def _fleet(self) -> Fleet:
        """Connected when it is first needed, in the driver: readers are copied to executors."""
        if self._connected is None:
            self._connected = Fleet(self._options)
        return self._connected

    @property
    def _bounds(self) -> Bounds:
        return Bounds(self._fleet, self._options, self._losses)

    @property
    def _planner(self) -> Planner:
        return Planner(self._fleet, self._options, self._losses)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one range, as Arrow record batches."""
        if partition.value is None:
            return iter(())  # what Spark makes of a batch read without any partitions
        cluster, columns = self._options.cluster, self._columns
        return read_range(
            partition.value, columns, cluster.timeout_ms, self._loss, layers=cluster.layers
        )

    def _plan(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The messages between two offsets, cut into partitions."""
        return [InputPartition(part) for part in self._planner.ranges(start, end)]
