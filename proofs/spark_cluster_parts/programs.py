"""A program in its own session, so that it can be ended together with everything it has started.

Spark's worker starts executors, an executor starts Python workers, and a driver is a Python process
with a JVM. Python workers create process groups of their own, but no sessions: the processes of a
session are exactly those that a program has started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

KILL_SECONDS = 20.0
POLL_SECONDS = 0.02
TAIL_LINES = 25
TAIL_BYTES = 20_000


@dataclass
class Program:
    """A program that is started, ended and started again.

    Attributes:
        name: its name in messages.
        command: the command with its arguments.
        log: its output is appended to this file.
        environment: all its environment variables.
        starts: number of times that it was started.
    """

    name: str
    command: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self) -> None:
        """Start it, or start it again after it has ended."""
        assert self.process is None, f"{self.name} is running"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.log.parent,  # Spark creates folders where it is started
                start_new_session=True,
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        """Return the first process of its session; 0 before its start and after its end."""
        return self.process.pid if self.process is not None else 0

    def status(self) -> int | None:
        """Return the exit status of its first process; None while it runs, or before the start."""
        return self.process.poll() if self.process is not None else None

    def started(self) -> list[int]:
        """Return the processes that it has started, without itself."""
        return [pid for pid in members_of(self.pid) if pid != self.pid]

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        send(members_of(self.pid), number)

    def kill(self) -> None:
        """kill -9 all its processes; return when none is left."""
        if self.process is None:
            return
        deadline = time.monotonic() + KILL_SECONDS
        # A process may start another while they are listed.
        while members := members_of(self.pid):
            assert time.monotonic() < deadline, f"{self.name}: {members} outlive kill -9"
            send(members, signal.SIGKILL)
            self.process.poll()
            time.sleep(POLL_SECONDS)
        self.process.wait()
        self.process = None

    def wait(self, seconds: float) -> None:
        """Return when all its processes have ended, or after this number of seconds."""
        deadline = time.monotonic() + seconds
        while members_of(self.pid) and time.monotonic() < deadline:
            self.status()
            time.sleep(POLL_SECONDS)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of these processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def members_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended; none for session 0."""
    if not session:
        return []
    return [pid for pid, state, of in processes() if of == session and state not in "ZX"]


def processes() -> Iterator[tuple[int, str, int]]:
    """Yield (pid, state as `ps` shows it, session) of every process of the machine."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):
            # The program's name is in parentheses and may contain any characters.
            words = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2]
            state, _parent, _group, session = words.split()[:4]
            yield int(name), state, int(session)


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
