"""Tasks: disk work that is handed out in the event loop and run in a thread.

1. `run` may be called in any thread, once, and touches no state that the event loop uses meanwhile:
   its input was put into the task when it was created, its results stay in the task.
2. When the task has run, its results are processed in the event loop (`Log.finish`, `Log.store`,
   `Ledger.finish`): they are taken over. For tasks of one log or ledger that change files this is
   done in the order in which they were created.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from sparq.log.disk import DiskError


class TaskKind(Enum):
    """The thread that a task belongs to: it must not wait for tasks of another kind.

    A WRITE is a commit that does not wait for the disk: it belongs to the thread of the COMMITs. An
    INSPECT reads for the inspection of a topic: no channel waits for it, and none must be delayed
    by it.
    """

    WRITE = "write"
    COMMIT = "commit"
    READ = "read"
    INSPECT = "inspect"
    HOUSEKEEPING = "housekeeping"


class Task:
    """Disk work for a thread.

    Attributes:
        kind: the thread that runs it.
        error: the reason why it failed, once it has run; None: it did not fail.
    """

    kind: TaskKind = TaskKind.HOUSEKEEPING
    error: DiskError | None = None

    def run(self) -> None:
        """Do the task's work; a failure is stored in `error`."""
        try:
            self.execute()
        except DiskError as error:
            self.error = error

    def execute(self) -> None:
        """Do the task's work; raises DiskError. A task whose `run` cannot fail has none."""


@dataclass(eq=False)
class FunctionTask(Task):
    """A task that calls a function, which may raise DiskError."""

    function: Callable[[], None]
    kind: TaskKind = TaskKind.HOUSEKEEPING

    def execute(self) -> None:
        """Call the function."""
        self.function()
