"""Runs a proof on a file system of its own: ext4, xfs, or btrfs, also with a quota. Needs root.

The file system is in an image file, mounted through a loop device in namespaces that end with the
proof: it leaves no mount and no loop device, however it ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

APART: Final = (
    *("setpriv", "--pdeathsig=KILL"),
    *("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"),
    "--mount-proc",
)
"""Starts a command in its own namespaces; the command ends with the process that started it."""
INSIDE: Final = "SPARQ_PROOF_MOUNT"
"""Environment variable of a proof in its namespaces: the folder of its disks."""
MIB: Final = 1 << 20


class Disks(Enum):
    """How a proof uses file systems of several kinds."""

    NONE = "it does not"
    GIVEN = "it runs in temporary folders on one"
    OWN = "it makes some itself"


class FileSystem(NamedTuple):
    """A kind of file system.

    Attributes:
        maker: the command that makes it, without the image.
        size_mib: size of the image.
        options: options of its mount.
        full_mib: what its quota allows, in total; 0: no quota.
    """

    maker: tuple[str, ...]
    size_mib: int
    options: str = "loop,noatime"
    full_mib: int = 0


FILE_SYSTEMS: Final = {
    "ext4": FileSystem(
        ("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
        1536,
        "loop,noatime,noinit_itable",
    ),
    "xfs": FileSystem(("mkfs.xfs", "-q", "-f"), 1536),
    "btrfs": FileSystem(("mkfs.btrfs", "-q", "-f"), 1536),
    "btrfs-quota": FileSystem(("mkfs.btrfs", "-q", "-f"), 1536, full_mib=1024),
}


def lacking(name: str) -> str:
    """Return what this machine lacks for a file system, as "needs ...", or an empty string."""
    if os.geteuid() != 0:
        return "needs root (to mount a disk image)"
    wanted = ("setpriv", "unshare", "mount", "umount", "cp", FILE_SYSTEMS[name].maker[0])
    missing = [program for program in wanted if shutil.which(program) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    return ""


def run(*words: str | Path) -> None:
    """Run a program, which must succeed."""
    done = subprocess.run(list(map(str, words)), check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{words[0]}: {done.stderr.strip()}")


def make(path: Path, name: str, size_mib: int = 0) -> None:
    """Create an image with an empty file system of this kind."""
    kind = FILE_SYSTEMS[name]
    with path.open("wb") as file:
        file.truncate((size_mib or kind.size_mib) * MIB)
    run(*kind.maker, path)


def mount(image: Path, at: Path, name: str) -> None:
    """Mount an image, with its quota."""
    kind = FILE_SYSTEMS[name]
    at.mkdir(exist_ok=True)
    run("mount", "-o", kind.options, image, at)
    if kind.full_mib:
        run("btrfs", "quota", "enable", at)
        run("btrfs", "qgroup", "limit", f"{kind.full_mib}M", "0/5", at)


def rerun_apart() -> int:
    """Run this program again in namespaces of its own, and return its exit status."""
    with tempfile.TemporaryDirectory(prefix="sparq-disks-") as folder:
        words = [*APART, *sys.orig_argv]
        return subprocess.run(words, env={**os.environ, INSIDE: folder}, check=False).returncode


def use(name: str) -> None:
    """Inside the namespaces: have all temporary folders made on such a file system."""
    folder = Path(os.environ[INSIDE])
    make(folder / "image", name)
    mount(folder / "image", folder / "mount", name)
    tempfile.tempdir = str(folder / "mount")
