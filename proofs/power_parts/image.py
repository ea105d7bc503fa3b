"""A disk in a file: created, mounted, and copied at one moment, as a power cut leaves it.

1. The file is on a tmpfs and holds a file system, mounted through a loop device. Data that
   was not written to the device is not in the file: dirty pages, an uncommitted journal.
2. A copy counts only if the device wrote nothing while it was made: it is the disk at one moment.
3. Cleanup does not depend on this code: unmounting frees the loop device, and all mounts go with
   the namespace of the process that made them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proofs.file_systems import mount, run

SIZES_MIB = {"ext4": 128, "xfs": 320, "btrfs": 160, "btrfs-quota": 160}
COPIES_MAX = 50
WRITES_DONE, IN_FLIGHT = 4, 8
"""Fields of a block device's `stat` file."""


class Unstable(Exception):
    """The device never stopped writing for as long as a copy takes."""


def copy(source: Path, target: Path) -> None:
    """Copy a file, without its holes."""
    run("cp", "--sparse=auto", source, target)


@contextmanager
def mounted(image: Path, at: Path, kind: str) -> Iterator[str]:
    """Mount the image of this kind of file system, and yield the name of its loop device."""
    mount(image, at, kind)
    try:
        yield device_of(at)
    finally:
        run("umount", at)


def device_of(at: Path) -> str:
    """Return the name of the device that is mounted there, such as "loop3"."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        source, folder, *_ = line.split(" ")
        if folder == str(at):
            return source.rpartition("/")[2]
    raise OSError(f"nothing is mounted at {at}")


def writes(device: str) -> tuple[int, int]:
    """Return the number of writes that the device has completed, and of requests in progress."""
    fields = Path(f"/sys/block/{device}/stat").read_text().split()
    return int(fields[WRITES_DONE]), int(fields[IN_FLIGHT])


def copy_at_one_moment(image: Path, device: str, target: Path) -> None:
    """Copy the mounted image while the device writes nothing.

    Raises:
        Unstable: the device wrote during every attempt.
    """
    for _ in range(COPIES_MAX):
        before = writes(device)
        copy(image, target)
        if before == writes(device) and not before[1]:
            return
        time.sleep(0.002)
    raise Unstable(f"{device} never stood still")
