"""What tasks need: a Python worker that is settled, and patience with nsqds out of reach."""

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
    """Takes what is loaded by now out of the reach of garbage collections.

    Spark's worker collects garbage after each task. With the modules of Spark, Arrow and numpy
    loaded this took some 60 ms: a third of the time of a task of 500,000 rows, and most of that of
    a small one.
    """
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()


class Patience:
    """How long one goes on trying: growing pauses, and an end that is the user's option."""

    def __init__(self, what: str, timeout_ms: int) -> None:
        self._what = what
        self._timeout_seconds = timeout_ms / 1000
        self._failing_since: float | None = None
        self._pause = PAUSE_FIRST_SECONDS

    def reset(self) -> None:
        """It went well."""
        self._failing_since, self._pause = None, PAUSE_FIRST_SECONDS

    def wait(self, error: BaseException | str) -> None:
        """It failed: pauses before the next attempt.

        Raises:
            UnreachableError: it has failed for so long that it is given up.
        """
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        left = self._failing_since + self._timeout_seconds - now
        if left <= 0:
            given_up = UnreachableError(
                f"{self._what} is out of reach for {self._timeout_seconds:g} s "
                f"(option nsqdTimeoutMs): {error}"
            )
            raise given_up from (error if isinstance(error, BaseException) else None)
        time.sleep(min(self._pause, left))
        self._pause = min(self._pause * 2, PAUSE_MAX_SECONDS)
