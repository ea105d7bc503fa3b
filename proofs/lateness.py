"""Measures how late deliveries are, and how much of that the machine caused.

On a busy machine processes wait for a processor: the nsqd, and the proof that measures it. So the
proof records every few milliseconds how long nsqd's main thread has waited in all, which the kernel
counts, and how late its own event loop is. What both have waited between a message's due time and
its arrival is subtracted from the lateness of the message.
"""

import asyncio
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Final

NAP_SECONDS: Final = 0.005


def waited_seconds(pid: int) -> float:
    """Return how long a process's main thread was ready to run and had to wait.

    Return 0 if the kernel does not count that, or the process has ended.
    """
    try:
        _, delayed_ns, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return int(delayed_ns) / 1e9


@dataclass(slots=True)
class Lateness:
    """Deliveries as (due time, arrival), in seconds on the monotonic clock.

    Attributes:
        times: when the waits were recorded, ascending.
        waits: what nsqd and this loop have waited in all by then, in seconds.
    """

    deliveries: list[tuple[float, float]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def note(self, due: float, came: float) -> None:
        """Record the arrival of a message."""
        self.deliveries.append((due, came))

    async def watch(self, pid: int) -> None:
        """Record waits, of the process and of the running event loop; runs until cancelled."""
        loop, own = asyncio.get_running_loop(), 0.0
        while True:
            due = loop.time() + NAP_SECONDS
            await asyncio.sleep(NAP_SECONDS)
            own += loop.time() - due
            self.times.append(loop.time())
            self.waits.append(own + waited_seconds(pid))

    def latest_net(self) -> float:
        """Return the largest lateness in seconds, without waits for a processor."""
        # A process that has ended has waited no longer.
        waits = [0.0, *accumulate(self.waits, max)]

        def waited(due: float, came: float) -> float:
            last = min(bisect_left(self.times, came) + 1, len(self.times))
            return waits[last] - waits[bisect_right(self.times, due)]

        return max((came - due - waited(due, came) for due, came in self.deliveries), default=0.0)
