"""The source `nsq` read once, as a batch.

1. Where each log begins and ends is looked up once, when Spark plans the read; tasks that are
   repeated read the same ranges.
2. No channel is created, held or moved.
"""

from collections.abc import Iterable, Sequence

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from sparq.spark.errors import SparkNsqError
from sparq.spark.offsets import LogPosition, Offset, parse_key
from sparq.spark.predicates import TimeBounds
from sparq.spark.reader import NsqReader
from sparq.spark.source_options import SourceOptions


class NsqBatchReader(NsqReader, DataSourceReader):  # type: ignore[misc] # mypy skips pyspark
    """Reads what topics' logs hold between two places."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._times = TimeBounds()

    def partitions(self) -> list[InputPartition]:
        """The ranges to read; where the logs end is looked up once, here."""
        try:
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
        """Every topic is somewhere.

        Raises:
            SparkNsqError: one is nowhere: its name may be wrong.
        """
        topics = self._options.topics
        found = {member.topic for member in self._fleet.attached.values()}
        if topics.pattern and not found:
            raise SparkNsqError(f"nsqlookupd knows no {topics} (option topicsPattern)")
        if missing := [name for name in topics.names if name not in found]:
            raise SparkNsqError(f"no nsqd has a topic {', '.join(missing)}")

    def _begun(self, key: str, start: LogPosition, end: LogPosition) -> LogPosition:
        """Where a log is read first, by what the predicates leave of it."""
        if self._times.begin_ns is None:
            return start
        at = self._at(key, self._times.begin_ns)
        return min(max(start, at, key=_index), end, key=_index)

    def _ended(self, key: str, end: LogPosition, start: LogPosition) -> LogPosition:
        """Where reading a log ends, likewise."""
        if self._times.read_until_ns is None:
            return end
        at = self._at(key, self._times.read_until_ns)
        return max(min(end, at, key=_index), start, key=_index)

    def _at(self, key: str, wall_ns: int) -> LogPosition:
        return self._bounds.at_time(self._fleet.attached[parse_key(key).log], wall_ns)


class NsqFilteredReader(NsqBatchReader):
    """Leaves out what predicates on the column `timestamp` exclude.

    A class of its own, since Spark refuses every reader that has `pushFilters` while
    ``spark.sql.python.filterPushdown.enabled`` is false, as it is by default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes the predicates; Spark is to evaluate all of them on the rows, too."""
        self._times = TimeBounds.of(filters)
        return filters


def _index(position: LogPosition) -> int:
    return position.index
