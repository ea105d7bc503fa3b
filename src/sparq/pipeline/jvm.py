"""The driver's JVM before it starts: the size of its heap, its options, its temporary folder.

Spark starts every JVM with -XX:+IgnoreUnrecognizedVMOptions, so Java does not report an unknown
option. With some other options, such as -version, Java ends at once with status 0, and PySpark
waits for it forever. So this module first starts Java with these options alone and the name of a
class that does not exist: Java looks for the class only if it accepts all options. That takes
0.1 s, and only if options are given.

1. Options of executors are not checked: their machines may have another Java.
2. To have unknown options ignored, add -XX:+IgnoreUnrecognizedVMOptions to them.

Java unpacks native libraries into its temporary folder (RocksDB's has 15 MB), and Spark keeps the
blocks of its shuffles there, unless spark.local.dir names another place. A JVM that ends deletes
its files and the folder. A JVM that is killed cannot: the next start deletes what it left. A
process holds a lock on its folder (flock) for as long as it lives, so the lock is free if and only
if the process has ended.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sparq.pipeline.session_options import DRIVER_MEMORY, FLAG_OF
from sparq.pipeline.settings import SettingsError
from sparq.program.mistakes import shown

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


JAVA_OPTIONS: Final = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
LIMIT_SECONDS: Final = 5.0
NO_CLASS: Final = "sparq.looks.at.options"
"""A class that does not exist; Java's error message contains its name in every language."""

AGENTS: Final = ("-agentlib:", "-agentpath:", "-javaagent:", "-Xrunjdwp:")
"""Prefixes of options that run a program, which may wait or listen on a port."""

NOISE: Final = ("Picked up ", " warning: ", "Error occurred during initialization")


def check_java_options(java: str, launch: Mapping[str, str]) -> None:
    """Check that Java starts with the options of the driver's JVM.

    Args:
        java: path of Java's program.
        launch: the options of Spark that the JVM is started with.
    Raises:
        SettingsError: Java does not start, or a quotation mark is not closed.
    """
    memory = launch.get(DRIVER_MEMORY)
    if memory:
        _check(java, [f"-Xmx{memory}"], f"--{FLAG_OF[DRIVER_MEMORY]}={memory}")
    for key in JAVA_OPTIONS:
        text = launch.get(key, "")
        if not text.strip():
            continue
        named = f"--spark {key}={shown(text)}"
        try:
            words = shlex.split(text)
        except ValueError:
            raise SettingsError(f"{named}: a quotation mark is not closed") from None
        if any(word.startswith("-Xmx") for word in words):
            raise SettingsError(f"{named}: the maximum heap has its own flag: --driver-memory")
        _check(java, [word for word in words if not word.startswith(AGENTS)], named)


def _check(java: str, words: list[str], named: str) -> None:
    try:
        ran = subprocess.run(  # noqa: S603 - the Java that Spark runs with the same words, no shell
            [java, *words, NO_CLASS],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # Spark's own start reports the reason
    if NO_CLASS in ran.stderr:
        return
    lines = [line.strip() for line in f"{ran.stderr}\n{ran.stdout}".splitlines()]
    messages = [line for line in lines if line and not any(noise in line for noise in NOISE)]
    reason = messages[0] if messages else f"exit status {ran.returncode}"
    raise SettingsError(f"{named}: Java does not start with it ({reason})")


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
