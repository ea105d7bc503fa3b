"""The memory of this machine or container, and the size of the driver's heap."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
UNKNOWN_BYTES: Final = 4 << 30
"""Assumed where the system does not tell."""

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
    """The limits of this process's control groups (version 1 or 2) and of the groups above them.

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
