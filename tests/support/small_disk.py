"""A small file system for an nsqd: a tmpfs in a mount namespace that ends with the test.

A process that reads from a pipe holds the namespace: it ends when the test closes the pipe, and
also when the test is killed. So nothing stays mounted, and root is not needed if the kernel lets
users create namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest

OVERLAY = (
    'mount -t tmpfs tmpfs "$1" && mkdir "$1/upper" "$1/work"'
    ' && mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$2"'
    " && echo mounted && exec cat"
)
IMAGE = 'mount -o loop "$1" "$2" && echo mounted && exec cat'
QUOTA = (
    'mount -o loop "$1" "$2" && btrfs quota enable "$2" && btrfs qgroup limit 41943040 0/5 "$2"'
    " && echo mounted && exec cat"
)
QUOTA_BYTES = 41_943_040
MOUNT = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && echo mounted && exec cat'


class SmallDisk:
    """A mounted tmpfs.

    Attributes:
        folder: its mount point, for the nsqd.
        seen: the same folder, for the test.
        prefix: the command prefix that runs a program in the namespace.
    """

    def __init__(self, folder: Path, size: str, script: str = MOUNT) -> None:
        """`size`: of the tmpfs; for another script its first argument, the second is `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._size = size
        self._script = script
        self._holder, enter = self._mounted()
        self.seen = Path(f"/proc/{self._holder.pid}/root{folder}")
        self.prefix = ("nsenter", "-t", str(self._holder.pid), *enter, "--")

    def _mounted(self) -> tuple[subprocess.Popen[bytes], tuple[str, ...]]:
        ways: list[tuple[str, tuple[str, ...]]] = []
        if os.geteuid() == 0:
            ways.append(("-m", ("-m",)))
        ways.append(("-Urm", ("-U", "-m", "--preserve-credentials")))
        if not (shutil.which("unshare") and shutil.which("nsenter")):
            ways = []
        for leave, enter in ways:
            holder = subprocess.Popen(
                ["unshare", leave, "sh", "-c", self._script, "sh", self._size, str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert holder.stdout is not None
            if holder.stdout.readline() == b"mounted\n":
                return holder, enter
            self._end(holder)
        pytest.skip("needs root or user namespaces")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self._holder)

    @staticmethod
    def _end(holder: subprocess.Popen[bytes]) -> None:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(10)

    def ballast(self, size_bytes: int) -> None:
        """Fill `size_bytes` with another file."""
        with (self.seen / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)

    def leave(self, size_bytes: int, quota_bytes: int | None = None) -> None:
        """Fill all but `size_bytes` with another file; the disk or the quota has that left."""
        facts = os.statvfs(self.seen)
        free = facts.f_bavail * facts.f_frsize if quota_bytes is None else quota_bytes
        self.ballast(free - size_bytes)

    def drop_ballast(self) -> None:
        """Delete that file."""
        (self.seen / "ballast").unlink()
