"""The source `nsq`: reads topics' logs as a stream, or once as a batch.

What Spark calls, in its order: `initialOffset` (of a query without a checkpoint), `latestOffset`
and `partitions` in one process of the driver that lives as long as the query; `read` in the
executors, on a copy of the reader that has never been connected.

1. What `latestOffset` is given as the start, Spark has committed: the channels' cursors follow it
   there already, since `commit` comes only with the next batch that has data.
2. An nsqd out of reach keeps its last offset, and the others go on. Only a drained run
   (availableNow) waits for it: it must not end without what it was to read.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sparq.client.range_reader import Ends
from sparq.spark.errors import SparkNsqError
from sparq.spark.fleet import Fleet, Member
from sparq.spark.offsets import (
    COMMITTED,
    EARLIEST,
    Key,
    Offset,
    Positions,
    checked,
    parse_key,
    part_counts,
    share,
)
from sparq.spark.options import OptionError, SourceOptions
from sparq.spark.patience import Patience
from sparq.spark.ranges import Loss, Range, read_range

NEWS_WAIT_SECONDS: Final = 0.3
"""How long an idle query waits in `latestOffset` for news; Spark would ask again at once."""

NEWS_POLL_SECONDS: Final = 0.02

MESSAGES_PER_PARTITION: Final = 50_000
"""With fewer than so many for each, more tasks cost more time than they save."""

MOVING_SECONDS: Final = 5.0
"""How long a log may be nowhere while its nsqd moves to another address, as nsqlookupd tells."""

_NO_LIMIT: Final = 1 << 62


class _Reader:
    """What the stream and the batch reader have in common."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._loss = Loss(options.fail_on_data_loss)
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

    def _position(self, positions: Positions, key: Key, member: Member) -> int:
        """The index that a position means in one log."""
        assert member.attached is not None
        ends = member.attached.ends
        position = positions.of(key.address, key.log)
        if isinstance(position, int):
            where = f"topic {self._options.topic} at nsqd {key.address}"
            if position > ends.end:
                raise OptionError(f"the offset {position} is beyond the end {ends.end} of {where}")
            if position < ends.first:
                self._loss.report(f"{where} begins at {ends.first}, behind the offset {position}")
            return max(position, ends.first)
        if position == COMMITTED:
            return member.attached.committed
        return ends.first if position == EARLIEST else ends.end

    def _starts(self) -> Offset:
        """Where reading begins in each log."""
        wall_ns = self._options.starting_timestamp_ms * 1_000_000
        starts: Offset = {}
        for log, member in self._fleet.attached.items():
            key = Key(member.address, log)
            if wall_ns < 0:
                starts[str(key)] = self._position(self._options.starting, key, member)
                continue
            place = self._fleet.place_at_time(log, wall_ns)
            if place is None:
                raise ConnectionError(f"nsqd {member.address} went away")
            starts[str(key)] = place.at
        self._check_names(self._options.starting, starts)
        return starts

    def _check_names(self, positions: Positions, keys: Mapping[str, int]) -> None:
        unknown = positions.unknown(set(keys))
        if unknown:
            raise OptionError(
                f"offsets are given for {', '.join(sorted(unknown))}, where no log of topic "
                f"{self._options.topic} was found (found: {', '.join(sorted(keys)) or 'none'})"
            )

    def _ranges(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The messages between two offsets, cut into partitions.

        Raises:
            UnreachableError: an nsqd that holds some of them stayed out of reach.
        """
        whole = {
            key: found
            for key, last in end.items()
            if start.get(key, last) < last and (found := self._measured(key, start[key], last))
        }
        messages = {key: found.messages for key, found in whole.items()}
        usual = min(os.cpu_count() or 1, sum(messages.values()) // MESSAGES_PER_PARTITION)
        counts = part_counts(
            messages,
            self._options.partitions_min or usual,
            self._options.records_per_partition_max,
        )
        return [
            InputPartition(part)
            for key, found in whole.items()
            for part in self._cut(found, counts[key])
        ]

    def _measured(self, key: str, first: int, end: int) -> Range | None:
        """A range and the messages in it; None when its log is gone or holds none there."""
        address, log = parse_key(key)
        patience = Patience(f"nsqd {address}", self._options.cluster.timeout_ms)
        self._fleet.remember([address])
        while True:
            self._fleet.wait_for([log])
            member = self._fleet.attached.get(log)
            if member is None:
                self._loss.report(f"the log {log} of nsqd {address} is gone")
                return None
            begin = self._fleet.place_after(log, first, 0)
            stop = self._fleet.place_after(log, end, 0)
            # Just restarted, nsqd holds the log's end back until it knows all channels.
            if begin is not None and stop is not None and stop.ends.end >= end:
                break
            patience.wait(f"its log does not yet reach to {end} again")
        self._check_kept(key, member, first, begin.ends)
        count = stop.from_ordinal - begin.from_ordinal
        if count <= 0:
            return None
        first, topic = max(first, begin.ends.first), self._options.topic
        return Range(topic, address, member.address, log, first, end, begin.from_ordinal, count)

    def _check_kept(self, key: str, member: Member, position: int, ends: Ends) -> None:
        """Whether what lies before the log's first message was ever to be read.

        Between two segments there are indexes that no message ever had, so a position before the
        first is no loss as such. It is one when the channel stood behind it: what a channel has
        not passed, nsqd keeps.
        """
        assert member.attached is not None
        if position < ends.first and position < member.attached.committed:
            self._loss.report(
                f"messages of {key} from {position} on are deleted, the log begins at {ends.first}"
            )

    def _cut(self, whole: Range, counts: list[int]) -> Iterator[Range]:
        """The range in parts of about so many messages each."""
        first, ordinal = whole.first, whole.ordinal
        for count in counts[:-1]:
            place = self._fleet.place_after(whole.log, first, count)
            if place is None or not first < place.at < whole.end:
                break  # the nsqd went away just now: the rest stays in one part
            messages = place.at_ordinal - ordinal
            yield whole._replace(first=first, end=place.at, ordinal=ordinal, messages=messages)
            first, ordinal = place.at, place.at_ordinal
        left = whole.ordinal + whole.messages - ordinal
        yield whole._replace(first=first, ordinal=ordinal, messages=left)


class NsqStreamReader(
    _Reader,
    DataSourceStreamReader,  # type: ignore[misc] # mypy does not follow pyspark
    SupportsTriggerAvailableNow,  # type: ignore[misc] # likewise
):
    """Reads a topic's logs as they grow; holds one channel meanwhile."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self._initial: Offset | None = None
        self._reported: Offset | None = None
        self._targets: dict[str, Ends] | None = None
        self._missing_since: dict[str, float] = {}
        self._lost: set[str] = set()

    # What Spark calls

    def prepareForTriggerAvailableNow(self) -> None:
        """Remembers where the logs end: the query is to read up to there."""
        self._fleet.wait_for()
        self._targets = self._fleet.ends()

    def getDefaultReadLimit(self) -> ReadLimit:
        """At most maxOffsetsPerTrigger messages in one batch."""
        limit = self._options.offsets_per_trigger_max
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint begins; Spark asks twice."""
        if self._initial is None:
            self._fleet.wait_for()
            self._initial = self._starts()
            self._fleet.commit(self._initial)
        return self._initial

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """How far the next batch goes; the start itself when there is nothing new."""
        begin = checked(start)
        self._fleet.remember(parse_key(key).address for key in begin)
        give_up_at = time.monotonic() + NEWS_WAIT_SECONDS
        while True:
            latest = self._step(begin, limit)
            idle = latest == begin and self._targets is None
            if not idle or time.monotonic() >= give_up_at:
                return latest
            time.sleep(NEWS_POLL_SECONDS)

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Where the logs end, for the query's progress."""
        return self._reported

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The ranges of one batch, for the executors."""
        return self._ranges(checked(start), checked(end))

    def commit(self, end: dict[str, int]) -> None:
        """Everything before `end` is done with."""
        self._fleet.commit(checked(end))

    def stop(self) -> None:
        """The query has ended: lets go of the channels."""
        if self._connected is not None:
            self._connected.close()

    # One look at the logs

    def _step(self, start: Offset, limit: ReadLimit) -> Offset:
        if self._targets is None:
            self._fleet.refresh()
        else:
            self._fleet.wait_for([parse_key(key).log for key in start])
        ends = self._fleet.ends()
        self._fleet.commit(start)
        missing = {key for key in start if parse_key(key).log not in ends and self._missing(key)}
        joining = self._joining(start, ends, missing)
        self._fleet.commit(joining)
        latest = start | joining
        self._reported = {
            key: found.end for key in latest if (found := ends.get(parse_key(key).log))
        }
        backlogs = {key: self._backlog(key, index, ends) for key, index in start.items()}
        for key, count in share(_rows_max(limit), backlogs).items():
            latest[key] = self._after(key, start[key], count, backlogs[key], ends)
        return latest

    def _missing(self, key: str) -> bool:
        """Whether a log that is not in reach may still be found; reports it as lost if not."""
        if key in self._lost:
            return False
        now = time.monotonic()
        if self._fleet.out_of_reach:
            self._missing_since.pop(key, None)
            return True
        grace = MOVING_SECONDS if self._options.cluster.lookupd_http_addresses else 0.0
        if now - self._missing_since.setdefault(key, now) < grace:
            return True
        address, log = parse_key(key)
        self._lost.add(key)
        self._loss.report(f"the log {log} of nsqd {address} is gone: it has another one now")
        return False

    def _joining(self, start: Offset, ends: dict[str, Ends], missing: set[str]) -> Offset:
        """Logs that are new, each with its first index; not in place of one that is missing."""
        known = {parse_key(key).log for key in start}
        awaited = {parse_key(key).address for key in missing}
        attached = self._fleet.attached
        return {
            str(Key(attached[log].address, log)): found.first
            for log, found in ends.items()
            if log not in known
            and log in attached
            and attached[log].address not in awaited
            and (self._targets is None or log in self._targets)
        }

    def _stop(self, log: str, ends: dict[str, Ends]) -> Ends | None:
        """How far a log may be read now; None when it is out of reach."""
        found = ends.get(log)
        if found is None or self._targets is None:
            return found
        target = self._targets.setdefault(log, found)
        return min(found, target, key=lambda each: each.end)

    def _backlog(self, key: str, position: int, ends: dict[str, Ends]) -> int:
        """Messages of a log that may be read from a position on."""
        log = parse_key(key).log
        stop, member = self._stop(log, ends), self._fleet.attached.get(log)
        if stop is None or member is None or stop.end <= position:
            return 0
        self._check_kept(key, member, position, ends[log])
        place = self._fleet.place_after(log, position, 0)
        return 0 if place is None else stop.end_ordinal - place.from_ordinal

    def _after(
        self, key: str, position: int, count: int, backlog: int, ends: dict[str, Ends]
    ) -> int:
        """The index `count` messages behind a position."""
        log = parse_key(key).log
        stop = self._stop(log, ends)
        if stop is not None and count >= backlog:
            return stop.end
        place = self._fleet.place_after(log, position, count)
        return position if place is None else place.at


def _rows_max(limit: ReadLimit) -> int:
    return limit.max_rows if isinstance(limit, ReadMaxRows) else _NO_LIMIT


class NsqBatchReader(_Reader, DataSourceReader):  # type: ignore[misc] # mypy skips pyspark
    """Reads what a topic's logs hold between two places."""

    def partitions(self) -> list[InputPartition]:
        """The ranges to read; where the logs end is looked up once, here."""
        self._fleet.wait_for()
        attached = self._fleet.attached
        if not attached:
            raise SparkNsqError(f"no nsqd has a topic {self._options.topic}")
        ends = {}
        for log, member in attached.items():
            key = Key(member.address, log)
            ends[str(key)] = self._position(self._options.ending, key, member)
        self._check_names(self._options.ending, ends)
        ranges = self._ranges(self._starts(), ends)
        self._fleet.close()
        return ranges
