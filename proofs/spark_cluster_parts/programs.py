"""A program and all that it has started, for a proof that ends and stops single processes of it.

Spark's worker starts executors, an executor starts Python workers, and a driver is a Python process
with a JVM. All processes that a program has started are in its session (`SupervisedProcess`).
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

from sparq.program.supervised import POLL_SECONDS, SupervisedProcess, members_of, send

TAIL_LINES = 25
TAIL_BYTES = 20_000


class Program(SupervisedProcess):
    """A supervised program of which single processes can be ended or stopped."""

    def started(self) -> list[int]:
        """Return the processes that it has started, without itself."""
        return [pid for pid in members_of(self.pid) if pid != self.pid]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        send(members_of(self.pid), number)

    def wait(self, seconds: float) -> None:
        """Return when all its processes have ended, or after this number of seconds."""
        deadline = time.monotonic() + seconds
        while members_of(self.pid) and time.monotonic() < deadline:
            self.exit_status()
            time.sleep(POLL_SECONDS)


def is_java(pid: int) -> bool:
    """Return whether a process is a JVM."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    return False


def last_lines(path: Path) -> str:
    """Return the last lines of a log, after its name."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join((f"--- the end of {path.name}", *lines[-TAIL_LINES:])) if lines else ""
