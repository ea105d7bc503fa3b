"""Splits a batch into ranges of logs, one for each task.

1. A batch that runs again has the same partitions: their number and their ends follow from its
   two offsets alone. While an nsqd is unreachable the planner waits; it never plans without it.
2. If messages are lost, their partition lacks them or is empty; other partitions stay the same.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from sparq.spark.errors import RetryDeadline
from sparq.spark.losses import Losses
from sparq.spark.offsets import LogPosition, Offset, PartitionRule, parse_key
from sparq.spark.ranges import Range
from sparq.spark.source_options import SourceOptions
from sparq.spark.topic_connections import TopicConnections


class Span(NamedTuple):
    """One log's part of a batch.

    Attributes:
        key: the log's key in the offset.
        topic: its topic.
        address: the nsqd to read it from.
        first_ordinal: messages in the log before the batch.
        begin: the first position that the log still has; `end` if all of the span is lost.
        end: where the span ends.
    """

    key: str
    topic: str
    address: str
    first_ordinal: int
    begin: LogPosition
    end: LogPosition

    @property
    def messages(self) -> int:
        """Number of messages in the span, including lost ones."""
        return self.end.ordinal - self.first_ordinal


class Planner:
    """Plans batches.

    Args:
        fleet: the nsqds.
        options: the query's options.
        losses: reports lost messages.
    """

    def __init__(self, fleet: TopicConnections, options: SourceOptions, losses: Losses) -> None:
        self._fleet = fleet
        self._options = options
        self._losses = losses

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """The messages between two offsets, as ranges.

        Raises:
            UnreachableError: an nsqd that holds some of them stayed unreachable.
            DataLossError: some of them are lost, and failOnDataLoss is set.
        """
        spans = [
            span
            for key, last in end.positions.items()
            if key in start.positions and (span := self._span(key, start.positions[key], last))
        ]
        messages = {span.key: span.messages for span in spans}
        cut = end.cut or self.cut(sum(messages.values()))
        counts = cut.counts(messages)
        return [part for span in spans for part in self._parts(span, counts[span.key])]

    def cut(self, messages: int) -> PartitionRule:
        """How a batch with this number of messages is split."""
        options = self._options
        return PartitionRule.of(messages, options.partitions_min, options.records_per_partition_max)

    def _span(self, key: str, first: LogPosition, last: LogPosition) -> Span | None:
        """One log's part of a batch; None if it is empty."""
        # Equal ordinals: at most a gap of indexes lies between the two.
        if first.ordinal >= last.ordinal:
            return None
        parts = parse_key(key)
        address, log = parts.address, parts.log
        # After a restart Spark first plans the unfinished batch, before any call of `latestOffset`:
        # the driver does not know the checkpoint's logs yet.
        self._fleet.remember([parts])
        patience = RetryDeadline(f"nsqd {address}", self._options.cluster.timeout_ms)
        while True:
            self._fleet.wait_for([parts])
            member = self._fleet.member(log)
            if member is None:
                # The span stays, without messages: its empty partitions keep the numbers of the
                # other partitions the same.
                self._losses.report_gone(key, first, last.ordinal)
                topic = parts.topic or self._options.topics.listed
                return Span(key, topic, address, first.ordinal, last, last)
            begin = self._fleet.place_after(log, first.index, 0)
            # Right after a restart nsqd holds the log's end back until it knows all channels.
            if begin is not None and begin.ends.end >= last.index:
                break
            patience.wait(f"its log has not yet recovered up to index {last.index}")
        self._losses.overtaken(key, first, begin.ends, last.ordinal)
        kept = LogPosition(max(first.index, begin.ends.first), begin.from_ordinal)
        return Span(key, member.topic, member.address, first.ordinal, min(kept, last), last)

    def _parts(self, span: Span, counts: Sequence[int]) -> Iterator[Range]:
        """The ranges of one log."""
        ordinals = [span.first_ordinal + count for count in accumulate(counts[:-1])]
        places = [span.begin, *(self._place(span, ordinal) for ordinal in ordinals), span.end]
        key = parse_key(span.key)
        for begin, end in pairwise(places):
            yield Range(
                topic=span.topic,
                # The column shows the address in the offset: rows of a batch that runs again are
                # equal, even if the nsqd has moved. Read from where it is now.
                nsqd=key.address,
                address=span.address,
                log=key.log,
                first=begin.index,
                end=end.index,
                ordinal=begin.ordinal,
                messages=end.ordinal - begin.ordinal,
            )

    def _place(self, span: Span, ordinal: int) -> LogPosition:
        """The position within a span before which the log has `ordinal` messages."""
        begin, log = span.begin, parse_key(span.key).log
        patience = RetryDeadline(f"nsqd {span.address}", self._options.cluster.timeout_ms)
        before = begin.ordinal
        while ordinal > before:
            place = self._fleet.place_after(log, begin.index, ordinal - before)
            if place is None:
                patience.wait("its connection was lost while a batch was being planned")
                self._fleet.wait_for([parse_key(span.key)])
            # Otherwise nsqd counted from a later message than planned: the place would be too far.
            elif place.from_ordinal == before:
                return min(LogPosition(place.at, place.at_ordinal), span.end)
            else:  # more messages were deleted in the meantime: the tasks will report them
                before = place.from_ordinal
                begin = LogPosition(max(begin.index, place.ends.first), before)
        return min(begin, span.end)
