"""Go's nsqd, where there is one: NSQD_GO names it, or `nsqd` on the PATH that is not sparq's.

In memory is its best case, and so what the aims are measured against. With `--mem-queue-size=0` and
`--sync-every=1` it comes as near to durable as it can: it answers before it syncs, but takes the
next message only then.
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
"""More than any line queues, and not so much that its collector has empty queues to go through."""


@functools.cache
def path() -> str:
    """Where the program is; "" if there is none."""
    for candidate in (os.environ.get("NSQD_GO", ""), shutil.which("nsqd") or ""):
        if candidate and Path(candidate).is_file():
            said = subprocess.run([candidate, "--version"], capture_output=True, check=False)
            if b"built w/go" in said.stdout:
                return str(Path(candidate).resolve())
    return ""


def missing() -> str:
    """Why it cannot run."""
    return "" if path() else "needs Go's nsqd (NSQD_GO=path)"


class GoNsqd(NsqPeer):
    """Go's nsqd with its defaults: 10,000 messages in memory, the others in files."""

    def make_program(self) -> Program:
        """Found when it is made."""
        self.command = (path(), "--log-level=error")
        return super().make_program()


class GoInMemory(GoNsqd):
    """Nothing written."""

    flags = (f"--mem-queue-size={MEMORY_MESSAGES}",)


class GoOnDisk(GoNsqd):
    """Everything written, synced by NSQ's policy: every 2,500 messages and every 2 seconds."""

    flags = ("--mem-queue-size=0",)


class GoSynced(GoNsqd):
    """Everything written, and synced."""

    flags = ("--mem-queue-size=0", "--sync-every=1")
