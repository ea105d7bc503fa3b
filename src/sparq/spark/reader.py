"""The common base of the stream and batch readers, and the batch reader itself.

For a batch read:

1. Where each log begins and ends is looked up once, when Spark plans the read; repeated tasks
   read the same ranges.
2. No channel is created, held or moved.
3. Predicates on the column `timestamp` limit what is read. Reading begins at the first message at
   or after the lower bound: all messages before it are earlier, even if an nsqd's clock was set
   back. For the upper bound the log's order is not enough: after a clock was set back, messages
   with earlier timestamps follow later ones. So reading ends only where timestamps reach
   `CLOCK_SET_BACK_NS` beyond the bound.
4. Spark still evaluates every predicate: the bounds skip only messages that cannot match.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from sparq.spark.bounds import Bounds
from sparq.spark.errors import SparkNsqError
from sparq.spark.losses import Losses
from sparq.spark.offsets import LogPosition, Offset, parse_key
from sparq.spark.planner import Planner
from sparq.spark.ranges import Loss, read_range
from sparq.spark.source_options import SourceOptions
from sparq.spark.topic_connections import TopicConnections

CLOCK_SET_BACK_NS: Final = 3_600_000_000_000
"""One hour: how far an nsqd's clock may be set back without a filtered read missing rows."""

NS_PER_US: Final = 1_000

_COLUMN: Final = ("timestamp",)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_index = attrgetter("index")


class NsqReader:
    """Plans ranges in the driver and reads them in the executors.

    Args:
        options: the query's options.
        columns: the columns of the rows, in order.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._loss = Loss(options.fail_on_data_loss)
        self._losses = Losses(options.topics, self._loss)
        self._connected: TopicConnections | None = None

    @property
    def _fleet(self) -> TopicConnections:
        """Created at first use, in the driver only: readers are pickled for the executors."""
        if self._connected is None:
            self._connected = TopicConnections(self._options)
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
            return iter(())  # Spark's partition of a batch read that planned none
        cluster, columns = self._options.cluster, self._columns
        return read_range(
            partition.value, columns, cluster.timeout_ms, self._loss, layers=cluster.layers
        )

    def _plan(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The messages between two offsets, split into partitions."""
        return [InputPartition(part) for part in self._planner.ranges(start, end)]


class TimeBounds(NamedTuple):
    """Bounds of publish times, in ns since 1970.

    Attributes:
        begin_ns: no earlier message matches; None: no bound.
        end_ns: no message at or after this time matches; None: no bound.
    """

    begin_ns: int | None = None
    end_ns: int | None = None

    @classmethod
    def of(cls, predicates: Sequence[Filter]) -> "TimeBounds":
        """The bounds of predicates that all must hold; predicates on other columns are ignored.

        The column has microseconds, rounded down from the log's nanoseconds.
        """
        begins, ends = [], []
        for predicate in predicates:
            at = _microseconds(predicate)
            if at is None:
                continue
            if isinstance(predicate, GreaterThan | GreaterThanOrEqual | EqualTo):
                begins.append(at + isinstance(predicate, GreaterThan))
            if isinstance(predicate, LessThan | LessThanOrEqual | EqualTo):
                ends.append(at + (not isinstance(predicate, LessThan)))
        return cls(
            max(0, *begins) * NS_PER_US if begins else None,
            max(0, min(ends)) * NS_PER_US if ends else None,
        )

    @property
    def read_until_ns(self) -> int | None:
        """Reading ends at the first message at or after this time; None: no bound."""
        return None if self.end_ns is None else self.end_ns + CLOCK_SET_BACK_NS


def _microseconds(predicate: Any) -> int | None:
    """The microseconds since 1970 that a predicate compares `timestamp` with; None: it does not."""
    if getattr(predicate, "attribute", None) != _COLUMN:
        return None
    value = getattr(predicate, "value", None)
    # Without a time zone the value is no point in time: no bound is always correct, since Spark
    # evaluates the predicate again.
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND


class NsqBatchReader(NsqReader, DataSourceReader):  # type: ignore[misc] # mypy skips pyspark
    """Reads the messages of topics' logs between two positions."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._times = TimeBounds()

    def partitions(self) -> list[InputPartition]:
        """The ranges to read; the logs' ends are looked up once, here."""
        try:
            # Executors open connections of their own: the driver needs these for planning only.
            return self._partitions()
        finally:
            self._fleet.close()

    def _partitions(self) -> list[InputPartition]:
        self._fleet.wait_to_begin()
        self._check_topics()
        starts = self._bounds.starts()
        ends = self._bounds.ends(starts)
        return self._plan(
            Offset({key: self._begun(key, start, ends[key]) for key, start in starts.items()}),
            Offset({key: self._ended(key, end, starts[key]) for key, end in ends.items()}),
        )

    def _check_topics(self) -> None:
        """Check that every topic exists. Raises SparkNsqError: one does not (a wrong name?)."""
        topics = self._options.topics
        found = {member.topic for member in self._fleet.attached.values()}
        if topics.pattern and not found:
            raise SparkNsqError(f"nsqlookupd lists no {topics} (option topicsPattern)")
        if missing := [name for name in topics.names if name not in found]:
            raise SparkNsqError(f"topic not found at any nsqd: {', '.join(missing)}")

    def _begun(self, key: str, start: LogPosition, end: LogPosition) -> LogPosition:
        """Where reading a log begins, limited by the predicates."""
        if self._times.begin_ns is None:
            return start
        at = self._at(key, self._times.begin_ns)
        return min(max(start, at, key=_index), end, key=_index)

    def _ended(self, key: str, end: LogPosition, start: LogPosition) -> LogPosition:
        """Where reading a log ends, limited by the predicates."""
        if self._times.read_until_ns is None:
            return end
        at = self._at(key, self._times.read_until_ns)
        return max(min(end, at, key=_index), start, key=_index)

    def _at(self, key: str, wall_ns: int) -> LogPosition:
        return self._bounds.at_time(self._fleet.attached[parse_key(key).log], wall_ns)


class NsqFilteredReader(NsqBatchReader):
    """Skips messages that predicates on the column `timestamp` exclude.

    This is a separate class because Spark refuses every reader that has `pushFilters` while
    ``spark.sql.python.filterPushdown.enabled`` is false, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the predicates as bounds; returns all of them, so that Spark evaluates them too."""
        self._times = TimeBounds.of(filters)
        return filters
