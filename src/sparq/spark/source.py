"""The source `nsq`: reads topics' logs as a stream, or once as a batch.

What Spark calls, in its order: `initialOffset` (of a query without a checkpoint), `latestOffset`
and `partitions` in one process of the driver that lives as long as the query; `read` in the
executors, on a copy of the reader that has never been connected.

1. What `latestOffset` is given as the start, Spark has committed: the channels' cursors follow it
   there already, since `commit` comes only with the next batch that has data.
2. An nsqd out of reach keeps its last offset, and the others go on. Only a drained run
   (availableNow) waits for it: it must not end without what it was to read.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sparq.client.range_reader import Attached, Ends, Place
from sparq.spark.cut import Cut
from sparq.spark.errors import SparkNsqError, UnreachableError
from sparq.spark.fleet import Fleet, Member
from sparq.spark.losses import Losses
from sparq.spark.offsets import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Key,
    LogPosition,
    Offset,
    Positions,
    parse_key,
    share,
)
from sparq.spark.options import OptionError, SourceOptions
from sparq.spark.planner import Planner
from sparq.spark.ranges import Loss, read_range

NEWS_WAIT_SECONDS: Final = 0.3
"""How long an idle query waits in `latestOffset` for news; Spark would ask again at once."""

NEWS_POLL_SECONDS: Final = 0.02

MOVING_SECONDS: Final = 5.0
"""How long a log may be nowhere while its nsqd moves to another address, as nsqlookupd tells."""

_NO_LIMIT: Final = 1 << 62

_LOG = getLogger("sparq.spark")


class _Reader:
    """What the stream and the batch reader have in common."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._loss = Loss(options.fail_on_data_loss)
        self._losses = Losses(options.topic, self._loss)
        self._connected: Fleet | None = None

    @property
    def _fleet(self) -> Fleet:
        """Connected when it is first needed, in the driver: readers are copied to executors."""
        if self._connected is None:
            self._connected = Fleet(self._options)
        return self._connected

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one range, as Arrow record batches."""
        if partition.value is None:
            return iter(())  # what Spark makes of a batch read without any partitions
        cluster, columns = self._options.cluster, self._columns
        return read_range(
            partition.value, columns, cluster.timeout_ms, self._loss, layers=cluster.layers
        )

    def _starts(self) -> dict[str, LogPosition]:
        """Where reading begins in each log."""
        attached = self._fleet.attached.items()
        keys = {log: str(Key(member.address, log)) for log, member in attached}
        self._check_names("startingOffsets", self._options.starting, set(keys.values()))
        return {keys[log]: self._start(keys[log], member) for log, member in attached}

    def _start(self, key: str, member: Member) -> LogPosition:
        """Where reading begins in one log."""
        attached = known(member.attached)
        ends = attached.ends
        if self._options.starting_timestamp_ms >= 0:
            return self._start_at_time(member, ends)
        position = self._options.starting.of(*parse_key(key))
        if position == EARLIEST:
            return LogPosition(ends.first, ends.first_ordinal)
        if position == LATEST:
            return LogPosition(ends.end, ends.end_ordinal)
        if position == COMMITTED:
            return committed(attached)
        assert isinstance(position, LogPosition)
        self._check_within("startingOffsets", key, position, ends)
        if position.ordinal is None:
            if position.index < ends.first:
                self._losses.deleted(key, position.index, ends)
            place = reached(member, self._fleet.place_after(ends.log, position.index, 0))
            return LogPosition(max(position.index, ends.first), place.from_ordinal)
        return self._kept(key, position, ends)

    def _start_at_time(self, member: Member, ends: Ends) -> LogPosition:
        wall_ns = self._options.starting_timestamp_ms * 1_000_000
        place = reached(member, self._fleet.place_at_time(ends.log, wall_ns))
        return LogPosition(place.at, place.at_ordinal)

    def _kept(self, key: str, position: LogPosition, ends: Ends) -> LogPosition:
        """The position, or the log's beginning when messages in between are lost.

        Raises:
            DataLossError: they are, and the query is to fail then.
        """
        if position.ordinal is None or position.ordinal >= ends.first_ordinal:
            return position
        self._losses.overtaken(key, position, ends, ends.first_ordinal)
        return LogPosition(ends.first, ends.first_ordinal)

    def _check_within(self, option: str, key: str, position: LogPosition, ends: Ends) -> None:
        if position.index > ends.end:
            raise OptionError(
                f"option {option}: index {position.index} is beyond the end, {ends.end}, of "
                f"{self._losses.place(key)}"
            )

    def _check_names(self, option: str, positions: Positions, keys: set[str]) -> None:
        unknown = positions.unknown(keys)
        if unknown:
            raise OptionError(
                f"option {option}: no log of topic {self._options.topic} was found for "
                f"{', '.join(sorted(unknown))} (found: {', '.join(sorted(keys)) or 'none'})"
            )

    def _plan(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The messages between two offsets, cut into partitions."""
        planner = Planner(self._fleet, self._options, self._losses)
        return [InputPartition(part) for part in planner.ranges(start, end)]


def known(attached: Attached | None) -> Attached:
    """What is held at an nsqd that is in reach."""
    assert attached is not None
    return attached


def reached(member: Member, place: Place | None) -> Place:
    """An nsqd's answer.

    Raises:
        ConnectionError: it gave none.
    """
    if place is None:
        raise ConnectionError(f"nsqd {member.address} went away")
    return place


def committed(attached: Attached) -> LogPosition:
    """Where a channel stands."""
    ends = attached.ends
    if attached.committed <= ends.first:
        return LogPosition(ends.first, ends.first_ordinal)
    return LogPosition(attached.committed, attached.committed_ordinal)


class NsqStreamReader(
    _Reader,
    DataSourceStreamReader,  # type: ignore[misc] # mypy does not follow pyspark
    SupportsTriggerAvailableNow,  # type: ignore[misc] # likewise
):
    """Reads a topic's logs as they grow; holds one channel meanwhile."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._initial: dict[str, LogPosition] | None = None
        self._reported: dict[str, object] | None = None
        self._targets: dict[str, Ends] | None = None
        self._missing_since: dict[str, float] = {}

    # What Spark calls

    def prepareForTriggerAvailableNow(self) -> None:
        """Remembers where the logs end: the query is to read up to there."""
        self._wait_for(None)
        self._targets = self._fleet.ends()
        self._warn_of_silence()

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most maxOffsetsPerTrigger messages in one batch."""
        limit = self._options.offsets_per_trigger_max
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def initialOffset(self) -> dict[str, object]:
        """Where a query without a checkpoint begins; Spark asks twice."""
        if self._initial is None:
            self._fleet.wait_for()
            self._initial = self._starts()
            self._fleet.commit(self._initial)
        return Offset(self._initial).as_json()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """How far the next batch goes; the start itself when there is nothing new."""
        begin = Offset.parse(start).positions
        self._fleet.remember(parse_key(key).address for key in begin)
        idle_until = time.monotonic() + NEWS_WAIT_SECONDS
        while True:
            latest = self._step(begin, limit)
            if latest != begin:
                return Offset(latest, self._cut(begin, latest)).as_json()
            # A log that may be on its way to another address is waited for, lest a run that reads
            # what is there and ends (availableNow) takes it for one without messages.
            drained = self._targets is not None or time.monotonic() >= idle_until
            if drained and not self._missing_since:
                return start
            time.sleep(NEWS_POLL_SECONDS)

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Where the logs end, for the query's progress."""
        return self._reported

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The ranges of one batch, for the executors."""
        return self._plan(Offset.parse(start), Offset.parse(end))

    def commit(self, end: dict[str, object]) -> None:
        """Everything before `end` is done with."""
        self._fleet.commit(Offset.parse(end).positions)

    def stop(self) -> None:
        """The query has ended: lets go of the channels."""
        if self._connected is not None:
            self._connected.close()

    # One look at the logs

    def _step(self, start: dict[str, LogPosition], limit: ReadLimit) -> dict[str, LogPosition]:
        if self._targets is None:
            self._fleet.refresh()
        else:
            self._wait_for({parse_key(key).log for key in start if not start[key].gone})
        ends = self._fleet.ends()
        self._fleet.commit(start)
        latest = {
            key: self._found(key, position, ends.get(parse_key(key).log))
            for key, position in start.items()
        }
        joining = self._joining(latest, ends)
        self._fleet.commit(joining)
        self._reported = {
            key: LogPosition(found.end, found.end_ordinal).as_json()
            for key in (*latest, *joining)
            if (found := ends.get(parse_key(key).log))
        }
        backlogs = {key: self._backlog(key, latest[key], ends) for key in latest}
        for key, count in share(_rows_max(limit), backlogs).items():
            latest[key] = self._after(key, latest[key], count, backlogs[key], ends)
        return latest | joining

    def _found(self, key: str, position: LogPosition, ends: Ends | None) -> LogPosition:
        """A log's position by what there is of the log now."""
        if ends is None:
            return replace(position, gone=not self._awaited(key, position))
        self._missing_since.pop(key, None)
        if position.ordinal is None:
            place = self._fleet.place_after(ends.log, position.index, 0)
            if place is None:
                return position
            position = Planner(self._fleet, self._options, self._losses).known(key, position, place)
        return self._kept(key, replace(position, gone=False), ends)

    def _awaited(self, key: str, position: LogPosition) -> bool:
        """Whether a log that is nowhere may still be found; reports it as lost if not."""
        if position.gone:
            return False
        now = time.monotonic()
        log = parse_key(key).log
        if self._fleet.may_have(log):
            self._missing_since.pop(key, None)
            return True
        grace = MOVING_SECONDS if self._options.cluster.lookupd_http_addresses else 0.0
        if now - self._missing_since.setdefault(key, now) < grace:
            return True
        del self._missing_since[key]
        self._losses.gone(key, position)
        return False

    def _wait_for(self, logs: set[str] | None) -> None:
        """Waits for nsqds, so that a drained run does not end without what it is to read.

        Raises:
            UnreachableError: one stayed out of reach, and the query is to fail then.
        """
        try:
            self._fleet.wait_for(logs)
        except UnreachableError as error:
            hint = "if it has left for good, the option failOnDataLoss=false goes on without it"
            if self._options.fail_on_data_loss or not self._fleet.give_up():
                raise UnreachableError(f"{error}; {hint}") from error
            _LOG.warning("%s. The query goes on without it (failOnDataLoss is false)", error)

    def _joining(
        self, found: dict[str, LogPosition], ends: dict[str, Ends]
    ) -> dict[str, LogPosition]:
        """Logs that are new, each with its first place; not in place of one that is awaited."""
        logs = {parse_key(key).log for key in found}
        awaited = {
            parse_key(key).address
            for key, position in found.items()
            if not position.gone and parse_key(key).log not in ends
        }
        return {
            str(Key(member.address, log)): self._join(member)
            for log, member in self._fleet.attached.items()
            if log in ends
            and log not in logs
            and member.address not in awaited
            and (self._targets is None or log in self._targets)
        }

    def _join(self, member: Member) -> LogPosition:
        """Where a log is read first that was not there when the query began.

        Without a place that was asked for, that is the channel's own: what it had finished before
        does not come again, and its cursor does not go back.
        """
        attached = known(member.attached)
        if self._options.starting_timestamp_ms >= 0:
            return self._start_at_time(member, attached.ends)
        if self._options.starting.elsewhere == EARLIEST:
            return LogPosition(attached.ends.first, attached.ends.first_ordinal)
        return committed(attached)

    def _cut(self, begin: dict[str, LogPosition], latest: dict[str, LogPosition]) -> Cut:
        """How the batch from `begin` to `latest` is cut."""
        messages = 0
        for key, position in begin.items():
            end = latest[key].ordinal
            if position.ordinal is not None and end is not None:
                messages += end - position.ordinal
        return Planner(self._fleet, self._options, self._losses).cut(messages)

    def _stop(self, log: str, ends: dict[str, Ends]) -> Ends | None:
        """How far a log may be read now; None when it is out of reach."""
        found = ends.get(log)
        if found is None or self._targets is None:
            return found
        target = self._targets.setdefault(log, found)
        return min(found, target, key=lambda each: each.end)

    def _backlog(self, key: str, position: LogPosition, ends: dict[str, Ends]) -> int:
        """Messages of a log that may be read from a position on."""
        stop = self._stop(parse_key(key).log, ends)
        if stop is None or position.ordinal is None or stop.end <= position.index:
            return 0
        return stop.end_ordinal - position.ordinal

    def _after(
        self, key: str, position: LogPosition, count: int, backlog: int, ends: dict[str, Ends]
    ) -> LogPosition:
        """The place `count` messages behind a position."""
        log = parse_key(key).log
        stop = self._stop(log, ends)
        if stop is not None and count >= backlog:
            return LogPosition(stop.end, stop.end_ordinal)
        place = self._fleet.place_after(log, position.index, count)
        return position if place is None else LogPosition(place.at, place.at_ordinal)

    def _warn_of_silence(self) -> None:
        """Says when no nsqd has had a message of the topic: its name may be wrong."""
        if any(ends.end_ordinal for ends in (self._targets or {}).values()):
            return
        cluster = self._options.cluster
        where = ", ".join(member.address for member in self._fleet.attached.values())
        lookupds = ", ".join(cluster.lookupd_http_addresses)
        _LOG.warning(
            "topic %s has never had a message at %s: there is nothing to read. "
            "Check the option topic if you expected messages",
            self._options.topic,
            f"nsqd {where}" if where else f"any nsqd that nsqlookupd {lookupds} knows",
        )


def _rows_max(limit: ReadLimit) -> int:
    return limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_LIMIT


class RefusedStreamReader(DataSourceStreamReader):  # type: ignore[misc] # mypy skips pyspark
    """Says what is wrong with a stream's options when Spark first asks something.

    Where making the reader itself raises, Spark 4.3 shows an UnboundLocalError in its place.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, object]:
        """Raises the error: of a query without a checkpoint."""
        raise self._error

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Raises the error: of a query that goes on."""
        raise self._error

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Raises the error: of a batch that is run again."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raises the error."""
        raise self._error


class NsqBatchReader(_Reader, DataSourceReader):  # type: ignore[misc] # mypy skips pyspark
    """Reads what a topic's logs hold between two places."""

    def partitions(self) -> list[InputPartition]:
        """The ranges to read; where the logs end is looked up once, here."""
        try:
            return self._partitions()
        finally:
            self._fleet.close()

    def _partitions(self) -> list[InputPartition]:
        self._fleet.wait_for()
        attached = self._fleet.attached
        if not attached:
            raise SparkNsqError(f"no nsqd has a topic {self._options.topic}")
        starts = self._starts()
        self._check_names("endingOffsets", self._options.ending, set(starts))
        ends = {key: self._end(key, attached[parse_key(key).log], starts[key]) for key in starts}
        return self._plan(Offset(starts), Offset(ends))

    def _end(self, key: str, member: Member, start: LogPosition) -> LogPosition:
        """Where reading ends in one log."""
        ends = known(member.attached).ends
        position = self._options.ending.of(*parse_key(key))
        if not isinstance(position, LogPosition):
            return LogPosition(ends.end, ends.end_ordinal)
        self._check_within("endingOffsets", key, position, ends)
        if position.index < start.index:
            raise OptionError(
                f"option endingOffsets: index {position.index} is before index {start.index}, at "
                f"which reading {self._losses.place(key)} begins"
            )
        place = reached(member, self._fleet.place_after(ends.log, position.index, 0))
        return LogPosition(position.index, place.from_ordinal)
