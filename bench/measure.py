"""CPU time and memory of another process."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

CPUCLOCK_SCHED = 2
"""On Linux, the id of another process's CPU clock consists of its pid and this number."""


def cpu_seconds(pid: int) -> float:
    """CPU time of a process in seconds, from its CPU clock; includes threads that have ended."""
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def memory_mib(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process in MiB; `VmHWM`: its peak; 0 if it does not exist."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0
