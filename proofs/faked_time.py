"""A wall clock that can be moved under a running daemon, by libfaketime; its monotonic one runs on.

The library is found by its own program, `faketime`. Once a second the daemon looks at a file, and
finds there how far its clock is off.
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
"""What a jump may be off by the time that has passed meanwhile; far less than a day."""


@dataclass(slots=True)
class WallClock:
    """A daemon's wall clock, so many seconds off; set by the file at `path`."""

    path: Path
    preload: str
    offset_seconds: int = 0

    @classmethod
    def of(cls, folder: Path) -> "WallClock | None":
        """A clock that is right so far; None: there is no libfaketime."""
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
        """What makes a program look at this clock."""
        return (
            "env",
            self.preload,
            f"FAKETIME_TIMESTAMP_FILE={self.path}",
            "FAKETIME_CACHE_DURATION=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            # Else each wait of a thread with a deadline, such as for Python's lock, goes wrong.
            "FAKETIME_FORCE_MONOTONIC_FIX=0",
            "DONT_FAKE_MONOTONIC=1",
            "NO_FAKE_STAT=1",
        )

    def set(self, offset_seconds: int) -> None:
        """Jump, from one moment to the next."""
        self.offset_seconds = offset_seconds
        beside = self.path.with_suffix(".new")
        beside.write_text(f"{offset_seconds:+d}\n")
        beside.replace(self.path)

    def is_seen_by(self, server: Server) -> bool:
        """Whether the daemon's own clock shows it: it dates its answers."""
        return abs(date_of(server) - time.time() - self.offset_seconds) < CLOSE_SECONDS


def date_of(server: Server) -> float:
    """What the daemon takes for the time."""
    connection = HTTPConnection("127.0.0.1", server.http_port, timeout=10)
    try:
        connection.request("GET", "/ping")
        answer = connection.getresponse()
        answer.read()
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()
    finally:
        connection.close()
