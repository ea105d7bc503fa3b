"""CPU time and memory of another process."""

from __future__ import annotations

import time
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
