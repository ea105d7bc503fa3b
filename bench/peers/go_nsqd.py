"""Go's nsqd, if installed: the path in NSQD_GO, or an `nsqd` on the PATH that is not sparq's.

Its best case is in memory, so the targets are ratios to that. `--mem-queue-size=0` and
`--sync-every=1` make it as durable as it can be: it sends OK before it syncs, but processes the
next message only after the sync.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from bench.peers.nsq import NsqPeer
from bench.peers.peer import Program

MEMORY_MESSAGES = 600_000
"""More than any line queues, but not so many that Go's garbage collector scans empty queues."""


@functools.cache
def path() -> str:
    """Path of Go's nsqd; "" if there is none."""
    for candidate in (os.environ.get("NSQD_GO", ""), shutil.which("nsqd") or ""):
        if candidate and Path(candidate).is_file():
            said = subprocess.run([candidate, "--version"], capture_output=True, check=False)
            if b"built w/go" in said.stdout:
                return str(Path(candidate).resolve())
    return ""


def missing() -> str:
    """Why it cannot run; "" if it can."""
    return "" if path() else "needs Go's nsqd (NSQD_GO=path)"


class GoNsqd(NsqPeer):
    """Go's nsqd with its defaults: 10,000 messages in memory, the others in files."""

    def make_program(self) -> Program:
        """Go's nsqd; its path is determined only now."""
        self.command = (path(), "--log-level=error")
        return super().make_program()


class GoInMemory(GoNsqd):
    """Go's nsqd, which writes nothing to disk."""

    flags = (f"--mem-queue-size={MEMORY_MESSAGES}",)


class GoOnDisk(GoNsqd):
    """Go's nsqd, which writes everything and syncs every 2,500 messages and every 2 seconds."""

    flags = ("--mem-queue-size=0",)


class GoSynced(GoNsqd):
    """Go's nsqd, which writes everything and syncs after each message."""

    flags = ("--mem-queue-size=0", "--sync-every=1")
