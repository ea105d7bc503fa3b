"""How late a delivery is, and how much of that is the machine's own doing.

A busy machine lets processes wait, also the one that measures. So two others are late beside nsqd:
an event loop of the proof itself, and a process that does nothing but sleep for a moment again and
again. What either overslept while a message was due and had not arrived is taken off its lateness:
no more than that, and nothing when both were awake.
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
"""An oversleeping that is worth a note."""

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
    """When somebody should have been awake, and was not: [from, until), ascending, in seconds."""

    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def note(self, begin: float, end: float) -> None:
        """Add one behind all others."""
        self.begins.append(begin)
        self.ends.append(end)

    def between(self, begin: float, end: float) -> float:
        """For how long of [begin, end) it was not awake."""
        total = 0.0
        for at in range(bisect_left(self.ends, begin), len(self.ends)):
            if self.begins[at] >= end:
                break
            total += min(end, self.ends[at]) - max(begin, self.begins[at])
        return total


async def watch_loop(stalls: Stalls) -> None:
    """Note whenever the running loop comes late to its own timers; until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + NAP_SECONDS
        await asyncio.sleep(NAP_SECONDS)
        if loop.time() - due > NOTICED_SECONDS:
            stalls.note(due, loop.time())


@contextmanager
def sleeping(folder: Path) -> Iterator[Path]:
    """A process that sleeps, and writes to the file when it overslept."""
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
    """What the process has noted so far."""
    stalls = Stalls()
    for line in notes.read_text().splitlines(keepends=True):
        begin, _, end = line.partition(" ")
        if end.endswith("\n"):
            stalls.note(float(begin), float(end))
    return stalls


@dataclass(slots=True)
class Lateness:
    """Deliveries by when each was due and when it came, on the monotonic clock in seconds."""

    deliveries: list[tuple[float, float]] = field(default_factory=list)
    own: Stalls = field(default_factory=Stalls)

    def note(self, due: float, came: float) -> None:
        """A message that was due has come."""
        self.deliveries.append((due, came))

    def latest(self) -> float:
        """How late the latest came, whoever's fault it was."""
        return max([came - due for due, came in self.deliveries], default=0.0)

    def latest_net(self, machine: Stalls) -> float:
        """How late the latest came, without what the machine or the proof's loop overslept."""
        return max(
            [
                came - due - max(self.own.between(due, came), machine.between(due, came))
                for due, came in self.deliveries
            ],
            default=0.0,
        )
