"""Where reading begins and ends in each log, by the options.

A log that exists when a query begins is read from where the options say. A log that joins later is
read from:

1. the time of `startingTimestamp`, or its first message with ``earliest``;
2. else also from its first message, if the query itself has just created the channel there and
   reads no other log of the topic: the topic is new to the query, and so are all its messages;
3. else from the channel's cursor: messages that the channel finished are not read again, its
   cursor does not go back, and an nsqd that was down at the start is not read from its beginning.
"""

from collections.abc import Mapping

from sparq.client.range_reader import Attached, Ends, Place
from sparq.spark.losses import Losses
from sparq.spark.offsets import COMMITTED, EARLIEST, LATEST, Key, LogPosition, Positions, parse_key
from sparq.spark.options import OptionError
from sparq.spark.source_options import SourceOptions
from sparq.spark.topic_connections import TopicConnection, TopicConnections

NS_PER_MS = 1_000_000


class Bounds:
    """Finds the first and last position of each log.

    Args:
        fleet: the nsqds.
        options: the query's options.
        losses: reports lost messages.
    """

    def __init__(self, fleet: TopicConnections, options: SourceOptions, losses: Losses) -> None:
        self._fleet = fleet
        self._options = options
        self._losses = losses

    def starts(self) -> dict[str, LogPosition]:
        """Where reading begins in each log, by its key.

        Raises:
            OptionError: startingOffsets names a log or an index that does not exist.
            DataLossError: it names deleted messages, and failOnDataLoss is set.
        """
        self._check_names("startingOffsets", self._options.starting)
        return {
            str(self.key(member)): self._start(member) for member in self._fleet.attached.values()
        }

    def ends(self, starts: Mapping[str, LogPosition]) -> dict[str, LogPosition]:
        """Where a batch read ends in each log, by its key.

        Args:
            starts: where it begins.

        Raises:
            OptionError: endingOffsets names a log or an index that does not exist, or an index
                before the start.
        """
        self._check_names("endingOffsets", self._options.ending)
        attached = self._fleet.attached
        return {
            key: self._end(key, attached[parse_key(key).log], start)
            for key, start in starts.items()
        }

    def key(self, member: TopicConnection) -> Key:
        """The key of a log in offsets."""
        return self._options.topics.key(member.address, member.topic, member.log)

    def joined(self, member: TopicConnection, *, is_topic_read: bool) -> LogPosition:
        """Where reading begins in a log that joined after the query began.

        Args:
            member: the log's nsqd and topic.
            is_topic_read: whether the query already reads another log of the topic.
        """
        attached = known(member.attached)
        if self._options.starting_timestamp_ms >= 0:
            return self.at_time(member, self._options.starting_timestamp_ms * NS_PER_MS)
        is_new = attached.created and not is_topic_read
        if is_new or self._options.starting.elsewhere == EARLIEST:
            return LogPosition(attached.ends.first, attached.ends.first_ordinal)
        return committed(attached)

    def at_time(self, member: TopicConnection, wall_ns: int) -> LogPosition:
        """The first message of a log published at or after a time; the log's end if none was."""
        place = reached(member, self._fleet.place_at_time(member.log, wall_ns))
        return LogPosition(place.at, place.at_ordinal)

    def kept(self, key: str, position: LogPosition, ends: Ends) -> LogPosition:
        """The position, or the log's beginning if messages between the two are lost.

        Raises:
            DataLossError: messages are lost, and failOnDataLoss is set.
        """
        if position.ordinal >= ends.first_ordinal:
            return position
        self._losses.overtaken(key, position, ends, ends.first_ordinal)
        return LogPosition(ends.first, ends.first_ordinal)

    def _start(self, member: TopicConnection) -> LogPosition:
        """Where reading begins in one log."""
        attached = known(member.attached)
        ends = attached.ends
        if self._options.starting_timestamp_ms >= 0:
            return self.at_time(member, self._options.starting_timestamp_ms * NS_PER_MS)
        position = self._options.starting.of(_named(member))
        if position == EARLIEST:
            return LogPosition(ends.first, ends.first_ordinal)
        if position == LATEST:
            return LogPosition(ends.end, ends.end_ordinal)
        if position == COMMITTED:
            return committed(attached)
        assert not isinstance(position, str)
        key = str(self.key(member))
        if isinstance(position, LogPosition):
            self._check_within("startingOffsets", key, position.index, ends)
            return self.kept(key, position, ends)
        self._check_within("startingOffsets", key, position, ends)
        if position < ends.first:
            self._losses.deleted(key, position, ends)
        # An index comes without an ordinal: nsqd counts the messages before it.
        place = reached(member, self._fleet.place_after(ends.log, position, 0))
        return LogPosition(max(position, ends.first), place.from_ordinal)

    def _end(self, key: str, member: TopicConnection, start: LogPosition) -> LogPosition:
        """Where reading ends in one log."""
        ends = known(member.attached).ends
        if self._options.ending_timestamp_ms >= 0:
            end = self.at_time(member, self._options.ending_timestamp_ms * NS_PER_MS)
            # One time is given for all logs: a log that has only later messages gives an empty
            # range. An index names one log, so there (below) the same is a mistake.
            return end if end.index > start.index else start
        position = self._options.ending.of(_named(member))
        if isinstance(position, str):
            return LogPosition(ends.end, ends.end_ordinal)
        index = position.index if isinstance(position, LogPosition) else position
        self._check_within("endingOffsets", key, index, ends)
        if index < start.index:
            raise OptionError(
                f"option endingOffsets: index {index} is before index {start.index}, "
                f"where the read of {self._losses.describe(key)} starts"
            )
        place = reached(member, self._fleet.place_after(ends.log, index, 0))
        return LogPosition(index, place.from_ordinal)

    def _check_within(self, option: str, key: str, index: int, ends: Ends) -> None:
        if index > ends.end:
            raise OptionError(
                f"option {option}: index {index} is after index {ends.end}, the end of "
                f"{self._losses.describe(key)}"
            )

    def _check_names(self, option: str, positions: Positions) -> None:
        members = self._fleet.attached.values()
        unknown = positions.unknown(map(_named, members))
        if unknown:
            found = sorted(str(self.key(member)) for member in members)
            raise OptionError(
                f"option {option}: no log of {self._options.topics} was found for "
                f"{', '.join(sorted(unknown))} (found: {', '.join(found) or 'none'})"
            )


def _named(member: TopicConnection) -> Key:
    """A log's key with its topic: options may name a log by either."""
    return Key(member.address, member.log, member.topic)


def known(attached: Attached | None) -> Attached:
    """The attachment of a reachable nsqd, which must not be None."""
    assert attached is not None
    return attached


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
