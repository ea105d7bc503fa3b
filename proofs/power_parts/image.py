"""A disk in a file: made, mounted, and copied as it is at one moment, as a power cut leaves it.

1. The file lies on a tmpfs; the file system in it is ext4, mounted through a loop device. What the
   device has not been told to write is not in the file: dirty pages, an uncommitted journal.
2. A copy counts only if the device wrote nothing while it was made: it is the disk at one moment.
3. Nothing here is undone by hand alone: a mount's loop device goes with it, and all mounts go with
   the namespace of the process that made them.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE_MIB = 128
JOURNAL_MIB = 4
COPIES_MAX = 50
WRITES_DONE, IN_FLIGHT = 4, 8
"""Fields of a block device's `stat`."""


class Unstable(Exception):
    """The device never stood still for as long as a copy takes."""


def run(*words: str | Path) -> None:
    """Run a program, which must succeed."""
    done = subprocess.run(list(map(str, words)), check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{words[0]}: {done.stderr.strip()}")


def make(path: Path) -> None:
    """An empty ext4, on which the kernel has nothing to do in the background."""
    with path.open("wb") as file:
        file.truncate(SIZE_MIB << 20)
    ready = "lazy_itable_init=0,lazy_journal_init=0"
    run("mkfs.ext4", "-q", "-F", "-m", "0", "-J", f"size={JOURNAL_MIB}", "-E", ready, path)


def copy(source: Path, target: Path) -> None:
    """A copy, holes left out."""
    run("cp", "--sparse=auto", source, target)


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[str]:
    """The image mounted; gives the name of its loop device."""
    at.mkdir(exist_ok=True)
    run("mount", "-o", "loop,noatime,noinit_itable", image, at)
    try:
        yield device_of(at)
    finally:
        run("umount", at)


def device_of(at: Path) -> str:
    """The name of the device that is mounted there, as "loop3"."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, folder, *_ = line.split(" ")
        if folder == str(at):
            return source.rpartition("/")[2]
    raise OSError(f"nothing is mounted at {at}")


def writes(device: str) -> tuple[int, int]:
    """Writes that the device has done, and requests that are under way."""
    fields = Path(f"/sys/block/{device}/stat").read_text().split()
    return int(fields[WRITES_DONE]), int(fields[IN_FLIGHT])


def copy_at_one_moment(image: Path, device: str, target: Path) -> None:
    """Copy the mounted image while nothing is written to it.

    Raises:
        Unstable: something was always being written.
    """
    for _ in range(COPIES_MAX):
        before = writes(device)
        copy(image, target)
        if before == writes(device) and not before[1]:
            return
        time.sleep(0.002)
    raise Unstable(f"{device} never stood still")
