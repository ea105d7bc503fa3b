"""Work on the disk, handed out by whoever decides and run by whoever has threads.

1. `run` may be called in any thread, once, and touches no state that the loop uses meanwhile: what
   it needs was put into the work when it was made, what it finds stays in the work.
2. `run` never raises: what failed is `error`.
3. The loop takes the results over when the work has run (`Log.finish`, `Log.store`,
   `Ledger.finish`); works of one log or ledger that change files are taken over in the order made.
"""

from enum import Enum
from typing import Protocol

from sparq.log.disk import DiskError


class TaskKind(Enum):
    """Which thread a task belongs to: it must not wait behind those of another kind.

    A WRITE is a commit that waits for no disk: it belongs to the thread of the COMMITs. An INSPECT
    reads for somebody who looks: no channel waits for it, and none must wait behind it.
    """

    WRITE = "write"
    COMMIT = "commit"
    READ = "read"
    INSPECT = "inspect"
    HOUSEKEEPING = "housekeeping"


class Work(Protocol):
    """What the log hands out: a kind, something to run, and what went wrong with it."""

    @property
    def kind(self) -> TaskKind:
        """Where it is to be run."""

    @property
    def error(self) -> DiskError | None:
        """Why it failed, once it has run."""

    def run(self) -> None:
        """Do it."""
