"""How a batch is cut into partitions.

1. The cut depends on the batch's two offsets and on options only: never on the machine's cores, nor
   on which nsqds answer right now. A batch that is run again has the same partitions.
2. The numbers that decide it stand in the offset at which the batch ends. So options or a version
   that changed before a restart do not change a batch that was planned before.
3. Spark does not tell a source written in Python how many cores its executors have. The option
   `minPartitions` says it; without the option the number of messages decides alone.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

CUT: Final = "cut"
"""The cut's name in an offset; keys of logs have a slash."""

MESSAGES_PER_PARTITION: Final = 50_000
"""With fewer messages for each, more tasks cost more time than they save."""

PARTITIONS_MAX: Final = 64
"""The most partitions without options: each costs a question to nsqd and some 15 ms of a task."""


class Cut(NamedTuple):
    """What decides into which partitions a batch is cut.

    Attributes:
        parts: how many partitions there should be in all, about; each log's range is one at least.
        records_max: how many messages a partition has at most.
    """

    parts: int
    records_max: int

    @classmethod
    def parse(cls, given: object) -> "Cut":
        """Reads the cut of an offset.

        Raises:
            ValueError, KeyError: it is not one.
        """
        if not isinstance(given, Mapping):
            raise ValueError(given)
        cut = cls(int(str(given["parts"])), int(str(given["records_max"])))
        if min(cut) < 1:
            raise ValueError(given)
        return cut

    @classmethod
    def of(cls, messages: int, parts: int, records_max: int) -> "Cut":
        """The cut of a batch of so many messages.

        Args:
            messages: how many the batch has.
            parts: the option minPartitions; 0: by the number of messages.
            records_max: the option maxRecordsPerPartition.
        """
        by_count = min(max(messages // MESSAGES_PER_PARTITION, 1), PARTITIONS_MAX)
        return cls(parts or by_count, records_max)

    def counts(self, messages: Mapping[str, int]) -> dict[str, list[int]]:
        """Into how many messages each log's range is cut, for tasks of about equal size.

        Args:
            messages: the messages in each range, by key.
        """
        total = sum(messages.values())
        cut: dict[str, list[int]] = {}
        for key, count in messages.items():
            wanted = round(count * self.parts / total) if total else 0
            number = max(1, min(count, max(wanted, -(-count // self.records_max))))
            cut[key] = [count * (at + 1) // number - count * at // number for at in range(number)]
        return cut
