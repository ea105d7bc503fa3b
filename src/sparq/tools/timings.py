"""How long messages take: a log line for every so many of them, with percentiles."""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from sparq.tools.command_line import UsageError

logger = logging.getLogger(__name__)

EVERY_UNEASY: Final = 100
"""Percentiles of fewer say little, and the lines are many."""

KEPT_MAX: Final = 100_000
"""So many times are kept for one line at most, the first ones: what is kept must be bounded."""


class Timings:
    """Counts messages, and says at every so many how long those since the last line took.

    Args:
        every: a line for so many messages; 0: no lines.
        prefix: what a line begins with.
        say: where lines go.
    """

    def __init__(self, every: int, prefix: str, say: Callable[[str], None] = logger.info) -> None:
        self.count = 0
        self._every = every
        self._prefix = prefix
        self._say = say
        self._seconds = array("d")

    def note(self, seconds: float) -> None:
        """One message was finished, and took so long."""
        if not self._every:
            return
        self.count += 1
        if len(self._seconds) < KEPT_MAX:
            self._seconds.append(seconds)
        if self.count % self._every == 0:
            self._say(self._line(sorted(self._seconds)))
            del self._seconds[:]

    def _line(self, ascending: Sequence[float]) -> str:
        average = sum(ascending) / len(ascending)
        return (
            f"{self._prefix} finished {self.count}"
            f" - 99th: {_percentile(ascending, 99) * 1000:.2f}ms"
            f" - 95th: {_percentile(ascending, 95) * 1000:.2f}ms"
            f" - avg: {average * 1000:.2f}ms"
        )


def _percentile(ascending: Sequence[float], per_cent: int) -> float:
    """The smallest value that so many per cent do not exceed."""
    return ascending[math.ceil(len(ascending) * per_cent / 100) - 1]


def check_every(every: int) -> None:
    """Hold ``--status-every`` to what can be done; warn when the lines will mean little.

    Raises:
        UsageError: it is negative.
    """
    if every < 0:
        raise UsageError(f"--status-every is {every}, not 0 or more")
    if 0 < every < EVERY_UNEASY:
        logger.warning("--status-every=%d: percentiles of so few messages say little", every)
