"""What a batch reads: where each log begins and ends, how much of it, and in which partitions.

Where reading begins in a log that joins after the query began:

1. at the time of `startingTimestamp`, or at its first message with ``earliest``;
2. else also at its first message, if the query itself has just created the channel there and reads
   no other log of the topic: the topic is new to the query, and so are all its messages;
3. else at the channel's cursor: messages that the channel finished are not read again, its cursor
   does not go back, and an nsqd that was down at the start is not read from its beginning.

How much one batch reads:

4. It is held back while fewer than `messages_min` messages are available, but not once
   `delay_seconds` have passed since the last batch, nor when the byte limit is reached: it would
   not grow. The first batch after a start is not held back, as with Spark's Kafka source.
5. It takes at most `messages_max` messages and `bytes_max` bytes of stored batches, divided among
   the logs by their backlogs. But every log that has messages may give one extent of its sparse
   index; otherwise an extent larger than the log's share would never be read.

Its partitions:

6. A batch that runs again has the same partitions: their number and their ends follow from its two
   offsets alone. While an nsqd is unreachable, planning waits; it never goes on without it.
7. If messages are lost, their partition lacks them or is empty; other partitions stay the same.

Lost messages:

8. Messages were lost exactly when a log now begins at a higher ordinal than the offset has. A log
   that begins only at a higher *index* has lost nothing: a clean restart of nsqd leaves a gap.
9. If no nsqd has a log with this id any more, the log is lost from the offset on.
10. Each loss is reported once, although `latestOffset` and `partitions` check the same offsets.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from sparq.client.range_reader import Attached, Ends, Place, RangeReader
from sparq.options.units import MILLISECOND
from sparq.spark.connections import TopicConnection, TopicConnections
from sparq.spark.errors import RetryDeadline, report_loss
from sparq.spark.offsets import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Key,
    LogPosition,
    Offset,
    PartitionRule,
    Positions,
)
from sparq.spark.options import OptionError, ReadLimits, SourceOptions
from sparq.spark.ranges import Range

Found = Mapping[Key, LogPosition]
"""How far each log has been or may be read."""


class Backlog(NamedTuple):
    """The number of unread messages of one log, and how many of them fit the byte limit."""

    messages: int
    allowed: int


def admit(
    backlogs: Mapping[Key, Backlog], limits: ReadLimits, waited_seconds: float
) -> dict[Key, int]:
    """How many messages of each log a batch takes; empty while the batch is held back.

    `waited_seconds` since the last batch are infinite before the first.
    """
    messages = sum(backlog.messages for backlog in backlogs.values())
    allowed = {key: backlog.allowed for key, backlog in backlogs.items()}
    is_full = sum(allowed.values()) < messages
    if messages < limits.messages_min and waited_seconds < limits.delay_seconds and not is_full:
        return {}
    return share(limits.messages_max, allowed)


def share(limit: int, backlogs: Mapping[Key, int]) -> dict[Key, int]:
    """How many messages each log may give when `limit` are allowed in total.

    Shares are proportional to the backlogs. Each log that has messages gets at least one, as far as
    the limit allows, so that a busy nsqd does not starve a quiet one.
    """
    backlogs = {key: count for key, count in backlogs.items() if count > 0}
    if sum(backlogs.values()) <= limit:
        return backlogs
    # Fewer messages than logs: the longest backlogs give one each. Ties go by key, so that equal
    # backlogs give equal shares, whatever the order in which nsqds were found.
    if limit <= len(backlogs):
        longest = sorted(backlogs, key=lambda key: (-backlogs[key], key))[:limit]
        return dict.fromkeys(longest, 1)
    spare = limit - len(backlogs)
    rest = {key: count - 1 for key, count in backlogs.items()}
    # Not zero: the backlogs exceed the limit, which exceeds their number.
    total = sum(rest.values())
    shares = {key: 1 + spare * count // total for key, count in rest.items()}
    # Largest remainders: rounding down alone would leave up to one message per log of the limit
    # unused.
    remainders = sorted(rest, key=lambda key: (-(spare * rest[key] % total), key))
    for key in remainders[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares


def share_bytes(limit: int, sizes: Mapping[Key, int]) -> dict[Key, int]:
    """How many bytes each log may give when `limit` are allowed in total.

    Shares are proportional to the logs' sizes, rounded down: the sum never exceeds the limit. A log
    whose share is smaller than its first extent still gives that extent (rule 5).
    """
    total = sum(sizes.values())
    if total <= limit:
        return dict(sizes)
    return {key: limit * size // total for key, size in sizes.items()}


class Span(NamedTuple):
    """One log's part of a batch.

    Attributes:
        key, topic, address: of the log: its key in the offset, its topic, the nsqd to read it from.
        first_ordinal: messages in the log before the batch.
        begin: the first position that the log still has; `end` if all of the span is lost.
        end: where the span ends.
    """

    key: Key
    topic: str
    address: str
    first_ordinal: int
    begin: LogPosition
    end: LogPosition

    @property
    def messages(self) -> int:
        """Number of messages in the span, including lost ones."""
        return self.end.ordinal - self.first_ordinal


class BatchPlanner:
    """Asks the nsqds (`fleet`) what a query's batches read."""

    def __init__(self, fleet: TopicConnections, options: SourceOptions) -> None:
        self.fleet = fleet
        self._options = options
        self._reported: dict[Key, int] = {}

    # Where reading begins and ends

    def starts(self) -> dict[Key, LogPosition]:
        """Where reading begins in each log.

        Raises:
            OptionError: startingOffsets names a log or an index that does not exist.
            DataLossError: it names deleted messages, and failOnDataLoss is set.
        """
        self._check_names("startingOffsets", self._options.starting)
        return {self.key(member): self._start(member) for member in self.fleet.attached.values()}

    def ends(self, starts: Found) -> dict[Key, LogPosition]:
        """Where a batch read that begins at `starts` ends in each log.

        Raises:
            OptionError: endingOffsets names a log or an index that does not exist, or an index
                before the start.
        """
        self._check_names("endingOffsets", self._options.ending)
        attached = self.fleet.attached
        return {key: self._end(key, attached[key.log], start) for key, start in starts.items()}

    def key(self, member: TopicConnection) -> Key:
        """The key of a log in offsets."""
        return self._options.topics.key(member.address, member.topic, member.log)

    def joined(self, member: TopicConnection, *, is_topic_read: bool) -> LogPosition:
        """Where reading begins in a log that joined after the query began (rules 1 to 3)."""
        attached = known(member)
        if self._options.starting_timestamp_ms >= 0:
            return self.at_time(member, self._options.starting_timestamp_ms * MILLISECOND)
        is_new = attached.created and not is_topic_read
        if is_new or self._options.starting.elsewhere == EARLIEST:
            return LogPosition(attached.ends.first, attached.ends.first_ordinal)
        return committed(attached)

    def at_time(self, member: TopicConnection, wall_ns: int) -> LogPosition:
        """The first message of a log published at or after a time; the log's end if none was."""
        place = reached(member, self.fleet.place(member.log, RangeReader.place_at_time, wall_ns))
        return LogPosition(place.at, place.at_ordinal)

    def _start(self, member: TopicConnection) -> LogPosition:
        """Where reading begins in one log."""
        attached = known(member)
        ends = attached.ends
        if self._options.starting_timestamp_ms >= 0:
            return self.at_time(member, self._options.starting_timestamp_ms * MILLISECOND)
        position = self._options.starting.of(_named(member))
        if position == EARLIEST:
            return LogPosition(ends.first, ends.first_ordinal)
        if position == LATEST:
            return LogPosition(ends.end, ends.end_ordinal)
        if position == COMMITTED:
            return committed(attached)
        key = self.key(member)
        index = self._index("startingOffsets", key, position, ends)
        if isinstance(position, LogPosition):
            return self.kept(key, position, ends)
        if index < ends.first:
            self._report(
                f"messages of {self.describe(key)} are lost: those from index {index} to index "
                f"{ends.first}, where the log now starts, were deleted"
            )
        # An index comes without an ordinal: nsqd counts the messages before it.
        place = reached(member, self.fleet.place(ends.log, RangeReader.place_after, index, 0))
        return LogPosition(max(index, ends.first), place.from_ordinal)

    def _end(self, key: Key, member: TopicConnection, start: LogPosition) -> LogPosition:
        """Where reading ends in one log."""
        ends = known(member).ends
        if self._options.ending_timestamp_ms >= 0:
            end = self.at_time(member, self._options.ending_timestamp_ms * MILLISECOND)
            # One time is given for all logs: a log that has only later messages gives an empty
            # range. An index names one log, so there (below) the same is a mistake.
            return end if end.index > start.index else start
        position = self._options.ending.of(_named(member))
        if position == LATEST:
            return LogPosition(ends.end, ends.end_ordinal)
        index = self._index("endingOffsets", key, position, ends)
        if index < start.index:
            raise OptionError(
                f"option endingOffsets: index {index} is before index {start.index}, "
                f"where the read of {self.describe(key)} starts"
            )
        place = reached(member, self.fleet.place(ends.log, RangeReader.place_after, index, 0))
        return LogPosition(index, place.from_ordinal)

    def _index(self, option: str, key: Key, position: LogPosition | int | str, ends: Ends) -> int:
        """The index of an option's position. Raises OptionError: it is after the log's end."""
        index = position.index if isinstance(position, LogPosition) else int(position)
        if index > ends.end:
            raise OptionError(
                f"option {option}: index {index} is after index {ends.end}, the end of "
                f"{self.describe(key)}"
            )
        return index

    def _check_names(self, option: str, positions: Positions) -> None:
        members = self.fleet.attached.values()
        if unknown := positions.unknown(map(_named, members)):
            found = sorted(str(self.key(member)) for member in members)
            raise OptionError(
                f"option {option}: no log of {self._options.topics} was found for "
                f"{', '.join(sorted(unknown))} (found: {', '.join(found) or 'none'})"
            )

    # How much a batch reads

    def backlogs(
        self, found: Found, stops: Mapping[Key, Ends], bytes_max: int
    ) -> dict[Key, Backlog]:
        """The backlog of each log, from where it was found to where it may be read.

        A log without `stops` is unreachable. `bytes_max` are of all logs together; 0: no limit.
        """
        counts = {key: max(0, stop.end_ordinal - found[key].ordinal) for key, stop in stops.items()}
        if not bytes_max:
            return {key: Backlog(count, count) for key, count in counts.items()}
        # How far the whole limit reaches in each log comes first, since the shares are proportional
        # to that. nsqd is asked again only where the share is smaller.
        full = {
            key: place
            for key, count in counts.items()
            if count and (place := self._place_within(key, found[key], bytes_max))
        }
        shares = share_bytes(bytes_max, {key: place.size for key, place in full.items()})
        backlogs = {}
        for key, whole in full.items():
            fits = whole.size <= shares[key]
            place = whole if fits else self._place_within(key, found[key], shares[key])
            allowed = 0 if place is None else max(0, place.at_ordinal - found[key].ordinal)
            backlogs[key] = Backlog(counts[key], min(counts[key], allowed))
        return backlogs

    def _place_within(self, key: Key, position: LogPosition, size: int) -> Place | None:
        return self.fleet.place(key.log, RangeReader.place_within, position.index, size)

    def after(self, key: Key, position: LogPosition, count: int, stop: Ends) -> LogPosition:
        """The position `count` messages on, at most `stop`; `position` if nsqd is unreachable."""
        if position.ordinal + count >= stop.end_ordinal:
            return LogPosition(stop.end, stop.end_ordinal)
        place = self.fleet.place(key.log, RangeReader.place_after, position.index, count)
        if place is None:
            return position
        return LogPosition(place.at, place.at_ordinal, seen=stop.end_ordinal)

    # The partitions of a batch

    def cut(self, messages: int) -> PartitionRule:
        """How a batch with this number of messages is split."""
        options = self._options
        return PartitionRule.of(messages, options.partitions_min, options.records_per_partition_max)

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """The messages between two offsets, as ranges.

        Raises:
            UnreachableError: an nsqd that holds some of them stayed unreachable.
            DataLossError: some of them are lost, and failOnDataLoss is set.
        """
        starts = end.begins or start.positions
        spans = [
            self._span(key, starts[key], last)
            for key, last in end.positions.items()
            # Equal ordinals: at most a gap of indexes lies between the two.
            if key in starts and starts[key].ordinal < last.ordinal
        ]
        messages = {span.key: span.messages for span in spans}
        counts = (end.cut or self.cut(sum(messages.values()))).counts(messages)
        return [part for span in spans for part in self._parts(span, counts[span.key])]

    def _span(self, key: Key, first: LogPosition, last: LogPosition) -> Span:
        """One log's part of a batch."""
        # After a restart Spark first plans the unfinished batch, before any call of `latestOffset`:
        # the driver does not know the checkpoint's logs yet.
        self.fleet.remember([key])
        patience = RetryDeadline(f"nsqd {key.address}", self._options.cluster.timeout_ms)
        while True:
            self.fleet.wait_for([key])
            member = self.fleet.member(key.log)
            if member is None:
                # The span stays, without messages: its empty partitions keep the numbers of the
                # other partitions the same.
                self.report_gone(key, first, last.ordinal)
                topic = key.topic or ", ".join(self._options.topics.names)
                return Span(key, topic, key.address, first.ordinal, last, last)
            begin = self.fleet.place(key.log, RangeReader.place_after, first.index, 0)
            # Right after a restart nsqd holds the log's end back until it knows all channels.
            if begin is not None and begin.ends.end >= last.index:
                break
            patience.wait(f"its log has not yet recovered up to index {last.index}")
        self._report_overtaken(key, first, begin.ends, last.ordinal)
        kept = LogPosition(max(first.index, begin.ends.first), begin.from_ordinal)
        return Span(key, member.topic, member.address, first.ordinal, min(kept, last), last)

    def _parts(self, span: Span, counts: Sequence[int]) -> Iterator[Range]:
        """The ranges of one log."""
        ordinals = [span.first_ordinal + count for count in accumulate(counts[:-1])]
        places = [span.begin, *(self._place(span, ordinal) for ordinal in ordinals), span.end]
        for begin, end in pairwise(places):
            yield Range(
                topic=span.topic,
                # The column shows the address in the offset: rows of a batch that runs again are
                # equal, even if the nsqd has moved. Read from where it is now.
                nsqd=span.key.address,
                address=span.address,
                log=span.key.log,
                first=begin.index,
                end=end.index,
                ordinal=begin.ordinal,
                messages=end.ordinal - begin.ordinal,
            )

    def _place(self, span: Span, ordinal: int) -> LogPosition:
        """The position within a span before which the log has `ordinal` messages."""
        begin, key = span.begin, span.key
        patience = RetryDeadline(f"nsqd {span.address}", self._options.cluster.timeout_ms)
        while ordinal > begin.ordinal:
            place = self.fleet.place(
                key.log, RangeReader.place_after, begin.index, ordinal - begin.ordinal
            )
            if place is None:
                patience.wait("its connection was lost while a batch was being planned")
                self.fleet.wait_for([key])
            # Otherwise nsqd counted from a later message than planned: the place would be too far.
            elif place.from_ordinal == begin.ordinal:
                return min(LogPosition(place.at, place.at_ordinal), span.end)
            else:  # more messages were deleted in the meantime: the tasks will report them
                begin = LogPosition(max(begin.index, place.ends.first), place.from_ordinal)
        return min(begin, span.end)

    # Lost messages. All methods raise DataLossError if failOnDataLoss is set.

    def kept(self, key: Key, position: LogPosition, ends: Ends) -> LogPosition:
        """The position, or the log's beginning if messages between the two are lost."""
        if position.ordinal >= ends.first_ordinal:
            return position
        self._report_overtaken(key, position, ends, ends.first_ordinal)
        return LogPosition(ends.first, ends.first_ordinal)

    def report_gone(self, key: Key, position: LogPosition, end: int | None = None) -> None:
        """Report a log that no nsqd has any more, which should be read up to ordinal `end`."""
        what = f"all messages from index {position.index} on"
        if end is not None:
            what = f"{end - position.ordinal:,} messages"
        elif position.seen > position.ordinal:
            what += f", at least {position.seen - position.ordinal:,},"
        what += f" of {self.describe(key)} are lost: "
        if key.address in self._options.lost_nsqds:
            report_loss(f"{what}the option lostNsqds gives this nsqd up", fails=False)
            return
        self._report(
            f"{what}its log {key.log} no longer exists. "
            "The topic was deleted at that nsqd, or the nsqd's data path was emptied or replaced: "
            "restore the data path"
        )

    def _report_overtaken(self, key: Key, position: LogPosition, ends: Ends, end: int) -> None:
        """Report messages from a position to ordinal `end` that the log no longer has."""
        begin = max(position.ordinal, self._reported.get(key, 0))
        end = min(ends.first_ordinal, end)
        if begin >= end:
            return
        self._reported[key] = end
        self._report(
            f"{end - begin:,} messages of {self.describe(key)} are lost: they were deleted before "
            f"this query read them (it has read {position.ordinal:,} messages of the log, which "
            f"now starts at message {ends.first_ordinal:,}). If the query falls behind, raise "
            "--max-channel-lag-bytes or --max-channel-lag-time of that nsqd; do not empty the "
            "topic while the query runs"
        )

    def _report(self, what: str) -> None:
        report_loss(what, fails=self._options.fail_on_data_loss)

    def describe(self, key: Key) -> str:
        """Describe a log in words: its topic and nsqd."""
        topic = f"topic {key.topic}" if key.topic else self._options.topics
        return f"{topic} at nsqd {key.address}"


def _named(member: TopicConnection) -> Key:
    """A log's key with its topic: options may name a log by either."""
    return Key(member.address, member.log, member.topic)


def known(member: TopicConnection) -> Attached:
    """The attachment of a reachable nsqd."""
    assert member.attached is not None
    return member.attached


def reached(member: TopicConnection, place: Place | None) -> Place:
    """An nsqd's answer. Raises ConnectionError: the nsqd gave none."""
    if place is None:
        # `source` suppresses this for a log that joins: it joins at a later poll.
        raise ConnectionError(f"lost the connection to nsqd {member.address}")
    return place


def committed(attached: Attached) -> LogPosition:
    """The channel's cursor, or the log's beginning if the cursor is before it."""
    ends = attached.ends
    if attached.committed <= ends.first:
        return LogPosition(ends.first, ends.first_ordinal)
    return LogPosition(attached.committed, attached.committed_ordinal)
