"""Moves the wall clock of a running daemon with libfaketime; its monotonic clock is not changed.

The program `faketime` locates the library. Once a second the library reads the clock's offset from
a file.
"""

import shutil
import subprocess
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection
from pathlib import Path

from tests.support.servers import Server

DAY_SECONDS = 86_400
CLOSE_SECONDS = 600
"""Tolerance for the time that passes between two readings of a clock; far less than a day."""


@dataclass(slots=True)
class WallClock:
    """A daemon's wall clock, `offset_seconds` away from the right time; the file `path` sets it."""

    path: Path
    preload: str
    offset_seconds: int = 0

    @classmethod
    def of(cls, folder: Path) -> "WallClock | None":
        """Return a clock with offset 0; None if libfaketime is not installed."""
        if shutil.which("faketime") is None:
            return None
        told = subprocess.run(
            ["faketime", "-m", "-f", "+0", "env"], capture_output=True, text=True, check=True
        )
        preloads = [line for line in told.stdout.splitlines() if line.startswith("LD_PRELOAD=")]
        clock = cls(folder / "clock", preloads[0])
        clock.set(0)
        return clock

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command prefix that makes a program use this clock."""
        return (
            "env",
            self.preload,
            f"FAKETIME_TIMESTAMP_FILE={self.path}",
            "FAKETIME_CACHE_DURATION=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            # Without it, timed waits of threads fail, such as those for Python's locks.
            "FAKETIME_FORCE_MONOTONIC_FIX=0",
            "DONT_FAKE_MONOTONIC=1",
            "NO_FAKE_STAT=1",
        )

    def set(self, offset_seconds: int) -> None:
        """Set the offset at once, with an atomic replacement of the file."""
        self.offset_seconds = offset_seconds
        beside = self.path.with_suffix(".new")
        beside.write_text(f"{offset_seconds:+d}\n")
        beside.replace(self.path)

    def is_seen_by(self, server: Server) -> bool:
        """Return whether the daemon uses the offset: its responses contain its time."""
        return abs(date_of(server) - time.time() - self.offset_seconds) < CLOSE_SECONDS


def date_of(server: Server) -> float:
    """Return the daemon's time, as its `Date` header has it."""
    connection = HTTPConnection("127.0.0.1", server.http_port, timeout=10)
    try:
        connection.request("GET", "/ping")
        answer = connection.getresponse()
        answer.read()
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()
    finally:
        connection.close()
