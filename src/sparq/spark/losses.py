"""Lost messages: what the driver reports, each loss once.

1. An offset holds its ordinal, the number of messages in the log before it. Messages were lost
   exactly when the log now begins at a higher ordinal; the difference is their number. A log that
   merely begins at a higher *index* has lost nothing: a clean restart of nsqd leaves a gap.
2. A log whose id is nowhere any more is lost from the offset on.
3. `latestOffset` and `partitions` look at the same offsets: what one has reported, the other does
   not report again.
"""

from sparq.client.range_reader import Ends
from sparq.spark.offsets import LogPosition, parse_key
from sparq.spark.ranges import Loss
from sparq.spark.topics import Topics


class Losses:
    """What was lost of the topics, as the driver sees it.

    Args:
        topics: the topics.
        loss: an error, or a line in the log.
    """

    def __init__(self, topics: Topics, loss: Loss) -> None:
        self._topics = topics
        self._loss = loss
        self._reported: dict[str, int] = {}

    def overtaken(self, key: str, position: LogPosition, ends: Ends, end: int) -> None:
        """Reports the messages from a position on that the log no longer has.

        Args:
            key: the log's key in the offset.
            position: up to where the log has been read; its ordinal is known.
            ends: the log's ends.
            end: the ordinal before which losses count.

        Raises:
            DataLossError: the query is to fail then.
        """
        assert position.ordinal is not None
        begin = max(position.ordinal, self._reported.get(key, 0))
        end = min(ends.first_ordinal, end)
        if begin >= end:
            return
        self._reported[key] = end
        self._loss.report(
            f"{end - begin:,} messages of {self.place(key)} are lost: deleted before this query "
            f"has read them (it has read {position.ordinal:,} messages of the log, and the log now "
            f"begins at its message {ends.first_ordinal:,}). Raise --max-channel-lag-bytes or "
            "--max-channel-lag-time of that nsqd if the query falls behind, and do not empty the "
            "topic while it runs"
        )

    def deleted(self, key: str, index: int, ends: Ends) -> None:
        """Reports messages before the log's first one whose number is not known.

        Raises:
            DataLossError: the query is to fail then.
        """
        self._loss.report(
            f"messages of {self.place(key)} are lost: those from index {index} on are deleted, "
            f"the log begins at index {ends.first}"
        )

    def gone(self, key: str, position: LogPosition, end: int | None = None) -> None:
        """Reports a log that is nowhere any more.

        Args:
            key: the log's key in the offset.
            position: up to where the log has been read.
            end: the ordinal up to which it was to be read; None where that is not known.

        Raises:
            DataLossError: the query is to fail then.
        """
        if end is not None and position.ordinal is not None:
            what = f"{end - position.ordinal:,} messages"
        else:
            what = f"all messages from index {position.index} on"
        self._loss.report(
            f"{what} of {self.place(key)} are lost: its log {parse_key(key).log} is gone. The "
            "topic was deleted there, or nsqd's data path was emptied or replaced: bring the data "
            "path back"
        )

    def place(self, key: str) -> str:
        """A log in words."""
        parts = parse_key(key)
        topic = f"topic {parts.topic}" if parts.topic else str(self._topics)
        return f"{topic} at nsqd {parts.address}"
