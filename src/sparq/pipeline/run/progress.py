"""Progress of a run: bars on a terminal; elsewhere a line every few seconds.

Both show the published clicks, the progress of each query with its rate over the last seconds, the
clicks that it has not read yet, and how long they will take at that rate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn

REPEAT_SECONDS = 5.0
WINDOW_SECONDS = 60.0
PUBLISHED = "published"


class RunProgress:
    """Shows the progress of a run, until `clear`."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, soft_wrap=True)
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}")
        self._bars = Progress(
            *columns,
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
            speed_estimate_period=WINDOW_SECONDS,
            get_time=time.monotonic,
        )
        self._began = self._said = time.monotonic()
        self._stage = ""
        self._tasks: dict[str, Task] = {}

    def show(
        self,
        stage: str,
        published: int,
        total: int,
        rows: Mapping[str, int],
        depths: Mapping[str, int] | None,
    ) -> None:
        """Show the progress.

        Args:
            stage: the current stage.
            published: acknowledged clicks.
            total: number of clicks to publish; 0: not known.
            rows: clicks that each query has processed since it was started.
            depths: depth of each query's channel, as nsqd reports it; None: not known at the
                moment.
        """
        self._bars.start()
        of = f" of {total:,}" if total else ""
        self._update(PUBLISHED, published, total, f"{published:,}{of}")
        behind = depths or {name: max(published - count, 0) for name, count in rows.items()}
        to_come = max(total - published, 0)
        for name, count in rows.items():
            task = self._update(name, count, total, "")
            parts = [f"{count:,}", *pace(task.speed, behind[name], to_come)]
            self._bars.update(task.id, text=" | ".join(parts))
        now = time.monotonic()
        if self._bars.disable and (now - self._said >= REPEAT_SECONDS or stage != self._stage):
            self._said, self._stage = now, stage
            queries = ", ".join(f"{name} {count:,}" for name, count in rows.items())
            slowest = max(behind, key=lambda name: behind[name])
            left = pace(self._tasks[slowest].speed, behind[slowest], to_come)
            parts = [f"{stage}: published {published:,}{of}", queries, *left]
            self.say(" | ".join(parts))

    def _update(self, name: str, count: int, total: int, text: str) -> Task:
        if name not in self._tasks:
            added = self._bars.add_task(name, total=total or None, text=text)
            (self._tasks[name],) = (task for task in self._bars.tasks if task.id == added)
        self._bars.update(self._tasks[name].id, completed=count, text=text)
        return self._tasks[name]

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(f"[{time.monotonic() - self._began:5.1f} s] {text}")

    def clear(self) -> None:
        """Erase the bars."""
        self._bars.stop()


def pace(per_second: float | None, behind: int, to_come: int) -> list[str]:
    """The rate of a query, its unread clicks, and the time for these; empty without a rate."""
    if not per_second:
        return []
    left = timedelta(seconds=round((behind + to_come) / per_second))
    return [f"{per_second:,.0f}/s", f"{behind:,} behind", *([f"{left} left"] if behind else [])]
