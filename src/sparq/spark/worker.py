"""Helpers for tasks: cheap garbage collection in the worker, and retries with a time limit."""

import gc
import time
from functools import cache
from typing import Final

from pyspark import TaskContext

from sparq.spark.errors import UnreachableError

PAUSE_FIRST_SECONDS: Final = 0.05
PAUSE_MAX_SECONDS: Final = 1.0


@cache
def settle() -> None:
    """Exclude all objects loaded so far from garbage collection (`gc.freeze`), in a task only.

    Spark's worker collects garbage after each task. With the modules of Spark, Arrow and numpy
    loaded, this took some 60 ms: a third of the time of a task of 500,000 rows, and most of the
    time of a small one.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


class RetryDeadline:
    """Retries with growing pauses, up to the time limit of the option nsqdTimeoutMs."""

    def __init__(self, what: str, timeout_ms: int) -> None:
        self._what = what
        self._timeout_seconds = timeout_ms / 1000
        self._failing_since: float | None = None
        self._pause = PAUSE_FIRST_SECONDS

    def reset(self) -> None:
        """Start again after a success: the next failure begins a new time limit."""
        self._failing_since, self._pause = None, PAUSE_FIRST_SECONDS

    def wait(self, error: BaseException | str) -> None:
        """Pause after a failure, before the next attempt.

        Raises:
            UnreachableError: attempts have failed for longer than the time limit.
        """
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        left = self._failing_since + self._timeout_seconds - now
        if left <= 0:
            given_up = UnreachableError(
                f"{self._what} has been unreachable for {self._timeout_seconds:g} s "
                f"(option nsqdTimeoutMs): {error}"
            )
            raise given_up from (error if isinstance(error, BaseException) else None)
        time.sleep(min(self._pause, left))
        self._pause = min(self._pause * 2, PAUSE_MAX_SECONDS)
