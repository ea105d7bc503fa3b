"""The folder for temporary files of the driver's JVM, which does not outlive them for long.

Java unpacks native libraries there (RocksDB's has 15 MB), and Spark keeps the blocks of its
shuffles there, unless spark.local.dir names another place. A JVM that ends removes its files and
the folder. One that is killed cannot: the next start removes what it left.

A process holds a lock on its folder (flock) as long as it lives, so the lock is free if and only
if the process has gone.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "sparq-jvm-"
VARIABLE: Final = "SPARK_SUBMIT_OPTS"
"""Spark's launcher starts the driver's JVM with these options, before those of any flag."""

OPTION: Final = "-Djava.io.tmpdir="


def new_folder() -> Path:
    """Make a folder that this process holds, and remove those that no process holds any more."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*"):
        _remove_unless_held(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        if _lock(folder) is not None:  # never closed: the lock ends with the process
            return folder
        # Another process has just removed it, since nobody held it yet.


def options_with(folder: Path, options: str) -> str:
    """Options of Java with this folder as the place of temporary files, unless they name one."""
    return (
        options if OPTION in options else f"{options} {shlex.quote(OPTION + str(folder))}".strip()
    )


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock; None if another process does, or it is not ours to lock."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _remove_unless_held(folder: Path) -> None:
    held = _lock(folder)
    if held is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)
