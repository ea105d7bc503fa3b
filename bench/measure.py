"""CPU time and memory of another process, and medians over rounds."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

CPUCLOCK_SCHED = 2
"""On Linux, the id of another process's CPU clock consists of its pid and this number."""


def cpu_seconds(pid: int) -> float:
    """CPU time of a process in seconds, from its CPU clock; includes threads that have ended."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def memory_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


@dataclass
class Meter:
    """Wall time and a server's CPU time between `start` and `stop`."""

    pid: int
    wall: float = 0.0
    cpu: float = 0.0

    def start(self) -> Meter:
        """Start to measure."""
        self.cpu = cpu_seconds(self.pid)
        self.wall = time.perf_counter()
        return self

    def stop(self) -> Meter:
        """Stop: `wall` and `cpu` then hold the seconds since `start`."""
        self.wall = time.perf_counter() - self.wall
        self.cpu = cpu_seconds(self.pid) - self.cpu
        return self


@dataclass
class Row:
    """One workload's rounds: messages per second and server CPU per message."""

    name: str
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def add(self, messages: int, meter: Meter) -> None:
        """Add a round."""
        self.rates.append(messages / meter.wall)
        self.cpu_us.append(meter.cpu / messages * 1e6)

    @property
    def rate(self) -> float:
        """Median messages per second."""
        return statistics.median(self.rates)

    @property
    def cpu(self) -> float:
        """Median microseconds of server CPU per message."""
        return statistics.median(self.cpu_us)

    def line(self, bound: Row | None) -> str:
        """The row as a line of the table, with the bound's figures if there are any."""
        text = f"{self.name:<34}{self.rate:>12,.0f}{self.cpu:>10.2f}"
        if bound is not None and bound.rates:
            text += f"{bound.rate:>14,.0f}{bound.cpu:>10.2f}{self.rate / bound.rate:>10.2f}"
        return text


HEADER = (
    f"{'workload':<34}{'msg/s':>12}{'CPU us':>10}{'bound msg/s':>14}{'CPU us':>10}{'ratio':>10}"
)
