"""What is written but not yet synced, kept in memory: a failed sync means to write it again."""

from dataclasses import dataclass, field

from sparq.log.block import Block
from sparq.log.commit import Batch
from sparq.log.options import LogOptions


@dataclass(slots=True, eq=False)
class Unsynced:
    """Batches in the order in which they were written.

    Attributes:
        batches: replaced, never changed, when they are synced: a commit in flight may look at them.
        count: messages in them.
        size_bytes: what they take in the file.
        since_mono_ns: when the oldest was published.
    """

    batches: list[Batch] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0
    since_mono_ns: int = 0

    def add(self, written: Batch) -> None:
        """A batch was written."""
        self.batches.append(written)
        self.count += written.count
        self.size_bytes += written.size

    def clear(self) -> None:
        """All of them are on the disk."""
        self.batches = []
        self.count = self.size_bytes = 0

    def must_sync(self, appended: Batch, options: LogOptions) -> bool:
        """Whether the policy wants a sync with this batch."""
        return (
            self.count + appended.count >= options.sync_every
            or self.size_bytes + appended.size > options.unsynced_bytes_max
        )

    def block(self, index: int) -> Block | None:
        """The batch that holds the index."""
        for written in self.batches:
            if written.first_index <= index < written.end_index:
                return written.block()
        return None
