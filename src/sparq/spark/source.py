"""The readers of the source `nsq`, for streams and batches.

A stream: `initialOffset`, `latestOffset` and `partitions` run in one driver process that lives as
long as the query; `read` runs in the executors, on a copy that has never been connected.

1. Spark has committed the start offset that it passes to `latestOffset`, so the channels' cursors
   move there in that call: `commit` comes only with the next batch that has data.
2. The offset of an unreachable nsqd stays the same, and reading from the others continues. Only a
   drained run (availableNow) waits for the nsqd: it must not end before all its messages are read.
3. A topic that was removed from the options keeps its position in the offset and is not read; a
   batch that was planned with it is still run again unchanged.

A batch read:

4. Where each log begins and ends is looked up once, when Spark plans the read; repeated tasks
   read the same ranges.
5. No channel is created, held or moved.
6. Predicates on the column `timestamp` limit what is read: from the first message at or after the
   lower bound, since all messages before it are earlier, to where timestamps reach
   `CLOCK_SET_BACK_NS` beyond the upper bound, since after an nsqd's clock was set back, messages
   with earlier timestamps follow later ones. Spark still evaluates every predicate.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from logging import getLogger
from typing import Any, Final, NamedTuple, NoReturn

from pyspark.cloudpickle import loads
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sparq.client.range_reader import Ends
from sparq.spark.batches import BatchPlanner, admit
from sparq.spark.connections import TopicConnections
from sparq.spark.errors import SparkNsqError, UnreachableError
from sparq.spark.offsets import Key, LogPosition, Offset, PartitionRule
from sparq.spark.options import OptionError, ReadLimits, SourceOptions
from sparq.spark.ranges import read_range

CLOCK_SET_BACK_NS: Final = 3_600_000_000_000
"""One hour: how far an nsqd's clock may be set back without a filtered read missing rows."""

NEWS_WAIT_SECONDS: Final = 0.3
"""How long an idle query waits in `latestOffset` for new messages; Spark calls again at once."""

NEWS_POLL_SECONDS: Final = 0.02

GROWTH: Final = 4
"""How much larger the next batch may be while the batches are full: see firstOffsetsPerTrigger."""

MOVING_SECONDS: Final = 5.0
"""How long a log may be missing while its nsqd moves to another address, found by nsqlookupd."""

_LOG = getLogger("sparq.spark")

Found = dict[Key, LogPosition]
"""How far each log has been or may be read."""


class NsqReader:
    """Plans ranges in the driver and reads them in the executors, with these columns in order.

    `function`, pickled, turns the rows of a range into others (`NsqDataSource.mapped`).
    """

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], function: bytes | None = None
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._function = function
        # Made at first use, in the driver only: readers are pickled for the executors.
        self._connected: BatchPlanner | None = None

    @property
    def _planner(self) -> BatchPlanner:
        if self._connected is None:
            self._connected = BatchPlanner(TopicConnections(self._options), self._options)
        return self._connected

    @property
    def _fleet(self) -> TopicConnections:
        return self._planner.fleet

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one range, as Arrow record batches."""
        if partition.value is None:
            return iter(())  # Spark's partition of a batch read that planned none
        cluster, fails = self._options.cluster, self._options.fail_on_data_loss
        rows = read_range(partition.value, self._columns, cluster, fails=fails)
        return iter(loads(self._function)(rows)) if self._function else rows

    def _plan(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The messages between two offsets, split into partitions."""
        return [InputPartition(part) for part in self._planner.ranges(start, end)]


# Streams


class NsqStreamReader(
    NsqReader,
    DataSourceStreamReader,  # type: ignore[misc] # mypy does not follow pyspark
    SupportsTriggerAvailableNow,  # type: ignore[misc] # likewise
):
    """Reads topics' logs as they grow, and holds the channel in each topic meanwhile."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], function: bytes | None = None
    ) -> None:
        super().__init__(options, columns, function)
        self._initial: Found | None = None
        self._is_resumed = False
        self._reported: dict[str, object] | None = None
        self._is_drained = False
        self._targets: dict[str, Ends] | None = None
        self._missing_since: dict[Key, float] = {}
        self._last_batch_at = float("-inf")
        self._allowed = options.limits.messages_first

    # Called by Spark

    def prepareForTriggerAvailableNow(self) -> None:
        """Record where the logs end; left to the next call, which waits, if an nsqd is away."""
        self._is_drained = True
        self._fleet.refresh()
        if not self._fleet.out_of_reach:
            self._set_targets()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of messages: Spark takes only one of the options' limits."""
        limits = self._options.limits
        # ReadMaxRows with NO_LIMIT also if only other limits are set: `_limits` takes
        # ReadAllAvailable for the trigger `once`, which knows no limits.
        return ReadAllAvailable() if limits == ReadLimits() else ReadMaxRows(limits.messages_max)

    def initialOffset(self) -> dict[str, object]:
        """Where a query without a checkpoint begins; cached, since Spark calls it twice."""
        if self._initial is None:
            self._wait(lambda: self._fleet.wait_for(begins=True))
            self._set_targets()
            self._initial = self._planner.starts()
            # nsqd keeps only the messages after a channel's cursor: move it back to where the query
            # begins. Not forward yet: if the first batch runs again, it needs the messages before.
            self._fleet.commit(self._initial, only_back=True)
        return Offset(self._initial).as_json()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Where the next batch ends; the start itself if there are no new messages."""
        begin = Offset.parse(start).positions
        self._resume(begin)
        if self._is_drained and self._targets is None:
            self._wait(self._fleet.wait_for)
            self._set_targets()
        idle_until = time.monotonic() + NEWS_WAIT_SECONDS
        while True:
            asked_at = time.monotonic()
            latest = self._step(begin, self._limits(limit))
            if latest != begin:
                begins = begin if begin == self._initial else {}
                return Offset(latest, self._cut(begin, latest), begins).as_json()
            # Wait for a log whose nsqd may be moving to another address: otherwise an availableNow
            # run would end and treat the log as one without messages.
            answered_at = time.monotonic()
            drained = self._targets is not None or answered_at >= idle_until
            if drained and not self._missing_since:
                return start
            # Polling many logs takes long: pause for as long, to spare the driver and the nsqds.
            time.sleep(max(NEWS_POLL_SECONDS, answered_at - asked_at))

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Where the logs end, for the query's progress."""
        return self._reported

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The ranges of one batch, for the executors."""
        return self._plan(Offset.parse(start), Offset.parse(end))

    def commit(self, end: dict[str, object]) -> None:
        """Move the channels' cursors to `end`: Spark has finished everything before it."""
        self._fleet.commit(Offset.parse(end).positions)

    def stop(self) -> None:
        """Release the channels at the end of the query."""
        # Spark may never call this: so the newest ATTACH wins, and nsqd does not wait for the older
        # connection to close.
        if self._connected is not None:
            self._fleet.close()

    # One poll of the logs

    def _resume(self, begin: Found) -> None:
        """Add the checkpoint's logs to the fleet, and warn of topics that are no longer read."""
        if self._is_resumed:
            return
        self._is_resumed = True
        topics = self._options.topics
        self._fleet.remember(key for key in begin if topics.reads(key) and not begin[key].gone)
        if left := sorted({key.topic for key in begin if not topics.reads(key)}):
            _LOG.warning(
                "the options of this query no longer name topic %s: it is not read, and its "
                "position stays in the checkpoint. Its channel %s still holds the messages after "
                "that position: delete the channel if the topic will not be read again",
                ", ".join(left),
                self._options.channel,
            )

    def _limits(self, limit: ReadLimit) -> ReadLimits:
        """The limits of the next batch."""
        if isinstance(limit, ReadAllAvailable):
            return ReadLimits()  # the trigger `once` reads everything, whatever the options say
        limits = self._options.limits
        if isinstance(limit, ReadMaxRows):
            limits = limits._replace(messages_max=min(limit.max_rows, self._allowed))
        # All messages of a drained run exist already: waiting for a minimum would be in vain.
        return limits if self._targets is None else limits._replace(messages_min=0)

    def _step(self, start: Found, limits: ReadLimits) -> Found:
        read = {key: start[key] for key in start if self._options.topics.reads(key)}
        if self._targets is None:
            self._fleet.refresh()
        else:
            wanted = [key for key, position in read.items() if not position.gone]
            self._wait(lambda: self._fleet.wait_for(wanted))
        # Before the commit, which compares positions with these ends.
        ends = self._fleet.ends()
        self._fleet.commit(read)
        found = {key: self._found(key, read[key], ends.get(key.log)) for key in read}
        joining = self._joining(found, ends)
        self._fleet.commit(joining)
        self._reported = {
            str(key): LogPosition(log.end, log.end_ordinal).as_json()
            for key in (*found, *joining)
            if (log := ends.get(key.log))
        }
        # Joining logs enter with their first position and are read from the next batch on: the
        # checkpoint then has both ends of every range.
        return start | found | self._admitted(found, ends, limits) | joining

    def _found(self, key: Key, position: LogPosition, ends: Ends | None) -> LogPosition:
        """Update a log's position from its current ends; `ends` None: no nsqd has the log now."""
        if ends is None:
            return replace(position, gone=not self._awaited(key, position))
        self._missing_since.pop(key, None)
        return self._planner.kept(key, replace(position, gone=False), ends)

    def _awaited(self, key: Key, position: LogPosition) -> bool:
        """Whether a missing log may still be found; reports it as lost if not."""
        if position.gone:
            return False
        now = time.monotonic()
        if self._fleet.may_have(key):
            self._missing_since.pop(key, None)
            return True
        # Addresses in the options are fixed: without nsqlookupd no log moves.
        grace = MOVING_SECONDS if self._options.cluster.lookupd_http_addresses else 0.0
        if now - self._missing_since.setdefault(key, now) < grace:
            return True
        del self._missing_since[key]
        self._planner.report_gone(key, position)
        return False

    def _set_targets(self) -> None:
        """Record the logs' current ends as the targets of a drained run, once."""
        if self._is_drained and self._targets is None:
            self._targets = self._fleet.ends()
            self._warn_of_silence()

    def _wait(self, wait_for: Callable[[], None]) -> None:
        """Wait for nsqds; a drained run without failOnDataLoss continues without some."""
        try:
            wait_for()
        except UnreachableError as error:
            if not self._is_drained:
                raise
            hint = "if it will never come back, name it in the option lostNsqds"
            if self._options.fail_on_data_loss or not self._fleet.give_up():
                raise UnreachableError(f"{error}; {hint}") from error
            _LOG.warning("%s. The query continues without it (failOnDataLoss is false)", error)

    def _joining(self, found: Found, ends: dict[str, Ends]) -> Found:
        """New logs with their first positions; none that would replace a log still awaited."""
        logs = {key.log for key in found}
        living = [key for key in found if not found[key].gone]
        awaited = {(key.address, self._topic(key)) for key in living if key.log not in ends}
        read = set(map(self._topic, living))
        joining = {}
        for log, member in self._fleet.attached.items():
            is_new = log in ends and log not in logs and self._options.topics.has(member.topic)
            is_due = self._targets is None or log in self._targets
            # A new log where one is awaited, such as that of an emptied data path: the loss of the
            # old one is reported first, then the new one joins.
            replaces = {(member.address, member.topic), (member.address, "")} & awaited
            if is_new and is_due and not replaces:
                # An nsqd that becomes unreachable at this moment joins when it is back.
                with contextlib.suppress(ConnectionError):
                    place = self._planner.joined(member, is_topic_read=member.topic in read)
                    joining[self._planner.key(member)] = place
        return joining

    def _topic(self, key: Key) -> str:
        """A log's topic; empty if it is unknown because the log is unreachable."""
        names = self._options.topics.of_key(key)
        if len(names) == 1:
            return names[0]
        member = self._fleet.member(key.log)
        return "" if member is None else member.topic

    def _admitted(self, found: Found, ends: dict[str, Ends], limits: ReadLimits) -> Found:
        """Where the next batch ends in each log that it reads; empty while it is held back."""
        stops = {key: self._stop(key.log, ends[key.log]) for key in found if key.log in ends}
        waited = time.monotonic() - self._last_batch_at
        backlogs = self._planner.backlogs(found, stops, limits.bytes_max)
        counts = admit(backlogs, limits, waited)
        if counts:
            self._last_batch_at = time.monotonic()
        if sum(counts.values()) == self._allowed:
            self._allowed *= GROWTH
        return {
            key: self._planner.after(key, found[key], count, stops[key])
            for key, count in counts.items()
        }

    def _stop(self, log: str, found: Ends) -> Ends:
        """The ends up to which a log may be read now; a drained run stops at its targets."""
        if self._targets is None:
            return found
        # A log that was unreachable when the run began gets its target when it is first seen.
        target = self._targets.setdefault(log, found)
        return min(found, target, key=lambda each: each.end)

    def _cut(self, begin: Found, latest: Found) -> PartitionRule:
        """How the batch from `begin` to `latest` is split."""
        return self._planner.cut(sum(latest[key].ordinal - begin[key].ordinal for key in begin))

    def _warn_of_silence(self) -> None:
        """Warn if the topics have never had a message at any nsqd: their names may be wrong."""
        if not any(ends.end_ordinal for ends in (self._targets or {}).values()):
            members = self._fleet.attached.values()
            nsqds = ", ".join(dict.fromkeys(member.address for member in members))
            _LOG.warning(
                "%s has never had a message at nsqd %s: there is nothing to read. "
                "If you expected messages, check the topic's name",
                self._options.topics,
                nsqds or "(none was found)",
            )


class RefusedStreamReader(DataSourceStreamReader):  # type: ignore[misc] # mypy skips pyspark
    """Raises the error in a stream's options at Spark's first call, whichever that is.

    If creating the reader raised it, Spark 4.3 would show an UnboundLocalError instead.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse


# Batch reads

NS_PER_US: Final = 1_000

_COLUMN: Final = ("timestamp",)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class TimeBounds(NamedTuple):
    """Messages published in [begin_ns, end_ns) may match; in ns since 1970, None: no bound."""

    begin_ns: int | None = None
    end_ns: int | None = None

    @classmethod
    def of(cls, predicates: Sequence[Filter]) -> "TimeBounds":
        """The bounds of predicates that all must hold; those on other columns are ignored."""
        begins, ends = [], []
        for predicate in predicates:
            if (at := _microseconds(predicate)) is None:
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

    _times = TimeBounds()

    def partitions(self) -> list[InputPartition]:
        """The ranges to read; the logs' ends are looked up once, here."""
        # Executors open connections of their own: the driver needs these for planning only.
        with contextlib.closing(self._fleet):
            return self._partitions()

    def _partitions(self) -> list[InputPartition]:
        self._fleet.wait_for(begins=True)
        self._check_topics()
        starts = self._planner.starts()
        ends = self._planner.ends(starts)
        for key in starts:
            starts[key], ends[key] = self._bounded(key, starts[key], ends[key])
        return self._plan(Offset(starts), Offset(ends))

    def _check_topics(self) -> None:
        """Check that every topic exists. Raises SparkNsqError: one does not (a wrong name?)."""
        topics = self._options.topics
        found = {member.topic for member in self._fleet.attached.values()}
        if topics.pattern and not found:
            raise SparkNsqError(f"nsqlookupd lists no {topics} (option topicsPattern)")
        if missing := [name for name in topics.names if name not in found]:
            raise SparkNsqError(f"topic not found at any nsqd: {', '.join(missing)}")

    def _bounded(
        self, key: Key, start: LogPosition, end: LogPosition
    ) -> tuple[LogPosition, LogPosition]:
        """Where reading a log begins and ends, limited by the predicates."""
        member, times = self._fleet.attached[key.log], self._times
        if times.begin_ns is not None:
            start = min(max(start, self._planner.at_time(member, times.begin_ns)), end)
        if times.read_until_ns is not None:
            end = max(min(end, self._planner.at_time(member, times.read_until_ns)), start)
        return start, end


class NsqFilteredReader(NsqBatchReader):
    """Skips messages that predicates on the column `timestamp` exclude.

    This is a separate class because Spark refuses every reader that has `pushFilters` while
    ``spark.sql.python.filterPushdown.enabled`` is false, which is the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Use the predicates as bounds; returns all of them, so that Spark evaluates them too."""
        self._times = TimeBounds.of(filters)
        return filters
