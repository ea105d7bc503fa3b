"""Measures how late deliveries are, and how much of that the machine caused.

On a busy machine processes have to wait for a processor, the measuring one included. So the proof
also measures how late its own event loop is, and how late a process is that only sleeps for
`NAP_SECONDS` at a time. The longer of these two stalls, within the time between a message's due
time and its arrival, is subtracted from the lateness of the message. If neither stalled, nothing
is subtracted.
"""

import asyncio
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

NAP_SECONDS: Final = 0.005
NOTICED_SECONDS: Final = 0.002
"""A stall is recorded if it is longer than this."""

SLEEPER: Final = f"""
import sys, time
due = time.monotonic() + {NAP_SECONDS}
while True:
    time.sleep(max(0, due - time.monotonic()))
    now = time.monotonic()
    if now - due > {NOTICED_SECONDS}:
        print(due, now, flush=True)
    due = now + {NAP_SECONDS}
"""


@dataclass(slots=True)
class Stalls:
    """Times in which a loop or process should have run but did not: [begin, end) in seconds.

    They ascend and do not overlap.
    """

    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def note(self, begin: float, end: float) -> None:
        """Add a stall; it must begin after all others."""
        self.begins.append(begin)
        self.ends.append(end)

    def between(self, begin: float, end: float) -> float:
        """Total seconds of stalls within [begin, end)."""
        total = 0.0
        for at in range(bisect_left(self.ends, begin), len(self.ends)):
            if self.begins[at] >= end:
                break
            total += min(end, self.ends[at]) - max(begin, self.begins[at])
        return total


async def watch_loop(stalls: Stalls) -> None:
    """Record each time the running event loop handles its timer late; runs until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + NAP_SECONDS
        await asyncio.sleep(NAP_SECONDS)
        if loop.time() - due > NOTICED_SECONDS:
            stalls.note(due, loop.time())


@contextmanager
def sleeping(folder: Path) -> Iterator[Path]:
    """Run the sleeping process; yields the file to which it writes its stalls."""
    notes = folder / "stalls"
    with (
        notes.open("wb") as file,
        subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=file) as process,
    ):
        try:
            yield notes
        finally:
            process.kill()


def stalls_of(notes: Path) -> Stalls:
    """The stalls that the process has written so far."""
    stalls = Stalls()
    for line in notes.read_text().splitlines(keepends=True):
        begin, _, end = line.partition(" ")
        if end.endswith("\n"):
            stalls.note(float(begin), float(end))
    return stalls


@dataclass(slots=True)
class Lateness:
    """Deliveries as (due time, arrival), in seconds on the monotonic clock."""

    deliveries: list[tuple[float, float]] = field(default_factory=list)
    own: Stalls = field(default_factory=Stalls)

    def note(self, due: float, came: float) -> None:
        """Record the arrival of a message."""
        self.deliveries.append((due, came))

    def latest_net(self, machine: Stalls) -> float:
        """Largest lateness in seconds without stalls of the machine or of the proof's loop."""
        return max(
            [
                came - due - max(self.own.between(due, came), machine.between(due, came))
                for due, came in self.deliveries
            ],
            default=0.0,
        )
