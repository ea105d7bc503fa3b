"""Progress of a run: on a terminal one line that is rewritten; elsewhere a line every few seconds.

It shows the published clicks, the progress of each query, and for the slowest query its rate, the
clicks that it has not read yet, and how long they will take at that rate.

1. A rate covers the last WINDOW_SECONDS: the delay of Spark's first batch soon stops counting.
2. If a query's count falls, the query was started again: its rate begins anew.
3. A line that does not fit first loses its counts per query, then its end.
"""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Mapping
from typing import TextIO

REWRITE_SECONDS = 0.25
REPEAT_SECONDS = 5.0
WINDOW_SECONDS = 15.0
LEFT_MAX_SECONDS = 1_000 * 3_600.0
"""A longer remaining time is not shown: it means only that the count hardly grows."""

WIDTH = 100
"""Number of columns if a terminal does not report it."""


class Speed:
    """The rate at which a count grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, count: int) -> None:
        """Record the count at a time in seconds."""
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, count))
        while self._seen[0][0] < now - WINDOW_SECONDS and len(self._seen) > 2:
            self._seen.popleft()

    def per_second(self) -> float:
        """The rate over the window; 0 before there are two measurements."""
        if not self._seen:
            return 0.0
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else 0.0


def time_left(behind: int, per_second: float) -> str:
    """The time for `behind` more items, in words; empty if it is unknown or too long."""
    if not behind or per_second <= 0:
        return ""
    seconds = behind / per_second
    if seconds > LEFT_MAX_SECONDS:
        return ""
    minutes, rest = divmod(max(round(seconds), 1), 60)
    if not minutes:
        return f"{rest} s left"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min left" if hours else f"{minutes}:{rest:02d} min left"


def line(
    stage: str,
    published: int,
    total: int,
    rows: Mapping[str, int],
    *,
    behind: int,
    per_second: float,
    width: int,
) -> str:
    """The progress of a run, in `width` columns at most.

    Args:
        published: acknowledged clicks.
        total: number of clicks to publish; 0: not known.
        rows: clicks that each query has processed.
        behind: published clicks that the slowest query has not read.
        per_second: the rate of the slowest query.
    """
    of = f" of {total:,}" if total else ""
    first = f"{stage}: published {published:,}{of}"
    queries = ", ".join(f"{name} {count:,}" for name, count in rows.items())
    ahead = max(total - published, 0)
    last = [f"{per_second:,.0f}/s", f"{behind:,} behind", time_left(behind + ahead, per_second)]
    if not any(rows.values()):
        last = []
    whole = " | ".join(part for part in (first, queries, *last) if part)
    if len(whole) > width:
        whole = " | ".join(part for part in (first, *last) if part)
    return whole[:width]


class RunProgress:
    """Shows the progress of a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._began = self._said = time.monotonic()
        self._stage = ""
        self._shown = 0
        self._speeds: dict[str, Speed] = {}

    def show(
        self,
        stage: str,
        published: int,
        total: int,
        rows: Mapping[str, int],
        depths: Mapping[str, int] | None,
    ) -> None:
        """Show the progress, but not too often.

        Args:
            stage: the current stage.
            published: acknowledged clicks.
            total: number of clicks to publish; 0: not known.
            rows: clicks that each query has processed since it was started.
            depths: depth of each query's channel, as nsqd reports it; None: not known at the
                moment.
        """
        now = time.monotonic()
        for name, count in rows.items():
            self._speeds.setdefault(name, Speed()).note(now, count)
        pause = REWRITE_SECONDS if self._rewrites else REPEAT_SECONDS
        if now - self._said < pause and stage == self._stage:
            return
        self._said, self._stage = now, stage
        before = depths or {name: published - count for name, count in rows.items()}
        slowest = max(before, key=lambda name: before[name], default="")
        speed = self._speeds.get(slowest, Speed()).per_second()
        behind = max(before.get(slowest, 0), 0)
        head = f"[{now - self._began:5.1f} s] "
        width = self._width() - len(head)
        text = line(stage, published, total, rows, behind=behind, per_second=speed, width=width)
        self._write(head + text)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._stream.write(f"[{time.monotonic() - self._began:5.1f} s] {text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Erase the rewritten line."""
        if self._rewrites:
            self._stream.write("\r" + " " * self._shown + "\r")
            self._stream.flush()
            self._shown = 0

    def _width(self) -> int:
        """The usable columns: one less than the terminal has, since a full line would wrap."""
        return shutil.get_terminal_size((WIDTH, 24)).columns - 1 if self._rewrites else 10 * WIDTH

    def _write(self, text: str) -> None:
        if self._rewrites:
            # If the window has become narrower, less of the old line is visible.
            self._stream.write("\r" + text.ljust(min(self._shown, self._width())))
            self._shown = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()
