"""What is written but not yet synced, kept in memory: a failed sync means to write it again.

What a journal has is there for good, and yet kept too: its own file is still to be synced.
"""

from dataclasses import dataclass, field

from sparq.log.block import Block
from sparq.log.commit import Batch
from sparq.log.options import LogOptions


@dataclass(slots=True, eq=False)
class Unsynced:
    """Batches in the order in which they were written.

    Attributes:
        batches: replaced, never changed, when they are synced: a commit in flight may look at them.
        journal: the number of the oldest journal with one of them; 0: none is in one.
        wants_own_sync: the next sync is to be their own file's.
        count: messages in the others.
        size_bytes: what those take in the file.
        since_mono_ns: when the oldest of those was published.
    """

    batches: list[Batch] = field(default_factory=list)
    journal: int = 0
    wants_own_sync: bool = False
    count: int = 0
    size_bytes: int = 0
    since_mono_ns: int = 0

    def add(self, written: Batch, journal: int = 0) -> None:
        """A batch was written; where a journal has it, journals have all those before it, too."""
        self.batches.append(written)
        if journal:
            self.journal = self.journal or journal
        else:
            self.count += written.count
            self.size_bytes += written.size

    def clear(self) -> None:
        """All of them are on the disk, in their file."""
        self.batches = []
        self.journal = 0
        self.wants_own_sync = False
        self.count = self.size_bytes = 0

    @property
    def shares_sync(self) -> bool:
        """Whether a commit need not sync the file that they are in."""
        return not self.count and not self.wants_own_sync

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
