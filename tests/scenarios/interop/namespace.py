"""Linux namespaces for tests: mounts and listeners in them are not visible outside.

They are held by a process that reads from a pipe: it ends when the test closes the pipe, or is
killed. So they never outlive the test.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import Self

import pytest

SECONDS_MAX = 30
FORBIDDEN = ("Operation not permitted", "ermission denied", "must be superuser")


class Namespace:
    """New namespaces, prepared by a shell script.

    Attributes:
        prefix: the start of a command that runs in them.
        pid: the process that holds them.
    """

    def __init__(self, kinds: str, script: str, *words: str) -> None:
        """`kinds` are letters of `unshare` and `nsenter`; the words are the script's arguments."""
        if not (shutil.which("unshare") and shutil.which("nsenter")):
            pytest.skip("needs unshare and nsenter")
        flags = [f"-{kind}" for kind in kinds]
        whole = f"set -e\n{script}\necho ready\nexec cat"
        self._holder = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", whole, "sh", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._holder.pid
        self.prefix = ("nsenter", "-t", str(self.pid), *flags, "--")
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != b"ready\n":
            said = self._holder.stderr.read().decode().strip()
            self.close()
            assert any(why in said for why in FORBIDDEN), said
            pytest.skip("needs root, with the right to make namespaces and to mount")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the namespaces."""
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            assert pipe is not None
            pipe.close()
        self._holder.wait(SECONDS_MAX)
