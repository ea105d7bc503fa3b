"""Reports lost messages from the driver, each loss once.

1. An offset holds its ordinal, the number of messages in the log before it. Messages were lost
   exactly when the log now begins at a higher ordinal; the difference is their number. A log that
   begins only at a higher *index* has lost nothing: a clean restart of nsqd leaves a gap.
2. If no nsqd has a log with this id any more, the log is lost from the offset on.
3. `latestOffset` and `partitions` check the same offsets: a loss that one has reported is not
   reported again by the other.
"""

from sparq.client.range_reader import Ends
from sparq.spark.offsets import LogPosition, parse_key
from sparq.spark.ranges import Loss
from sparq.spark.topics import TopicSelection


class Losses:
    """Lost messages of the topics, as the driver detects them.

    Args:
        topics: the topics.
        loss: raises an error or logs a warning, depending on failOnDataLoss.
    """

    def __init__(self, topics: TopicSelection, loss: Loss) -> None:
        self._topics = topics
        self._loss = loss
        self._reported: dict[str, int] = {}

    def overtaken(self, key: str, position: LogPosition, ends: Ends, end: int) -> None:
        """Report messages after a position that the log no longer has.

        Args:
            key: the log's key in the offset.
            position: up to where the log has been read.
            ends: the log's ends.
            end: only losses before this ordinal are reported.

        Raises:
            DataLossError: messages are lost, and failOnDataLoss is set.
        """
        begin = max(position.ordinal, self._reported.get(key, 0))
        end = min(ends.first_ordinal, end)
        if begin >= end:
            return
        self._reported[key] = end
        self._loss.report(
            f"{end - begin:,} messages of {self.describe(key)} are lost: they were deleted before "
            f"this query read them (it has read {position.ordinal:,} messages of the log, which "
            f"now starts at message {ends.first_ordinal:,}). If the query falls behind, raise "
            "--max-channel-lag-bytes or --max-channel-lag-time of that nsqd; do not empty the "
            "topic while the query runs"
        )

    def deleted(self, key: str, index: int, ends: Ends) -> None:
        """Report lost messages before the log's first one when their number is unknown.

        Raises:
            DataLossError: failOnDataLoss is set.
        """
        self._loss.report(
            f"messages of {self.describe(key)} are lost: those from index {index} to index "
            f"{ends.first}, where the log now starts, were deleted"
        )

    def report_gone(self, key: str, position: LogPosition, end: int | None = None) -> None:
        """Report a log that no nsqd has any more.

        Args:
            key: the log's key in the offset.
            position: up to where the log has been read.
            end: the ordinal up to which it should have been read; None if unknown.

        Raises:
            DataLossError: failOnDataLoss is set.
        """
        if end is not None:
            what = f"{end - position.ordinal:,} messages"
        else:
            what = f"all messages from index {position.index} on"
        self._loss.report(
            f"{what} of {self.describe(key)} are lost: "
            f"its log {parse_key(key).log} no longer exists. "
            "The topic was deleted at that nsqd, or the nsqd's data path was emptied or replaced: "
            "restore the data path"
        )

    def describe(self, key: str) -> str:
        """Describe a log in words: its topic and nsqd."""
        parts = parse_key(key)
        topic = f"topic {parts.topic}" if parts.topic else str(self._topics)
        return f"{topic} at nsqd {parts.address}"
