"""How much memory this machine, or the container that it is, gives to its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
UNKNOWN_BYTES: Final = 4 << 30
"""What is assumed where nothing says how much there is."""

HEAP_SHARE: Final = 4
HEAP_MIN_MIB: Final = 1024
HEAP_MAX_MIB: Final = 8192
HEAP_STEP_MIB: Final = 256


def default_heap(total_bytes: int) -> str:
    """The driver's heap on a machine of so much memory, such as `3072m`.

    A quarter: beside the heap there are RocksDB's memory, a Python worker for each task, and on one
    machine the nsqds. Beyond 8 GiB collections take longer and nothing of ours uses it.
    """
    share = total_bytes // HEAP_SHARE // MIB // HEAP_STEP_MIB * HEAP_STEP_MIB
    return f"{min(max(share, HEAP_MIN_MIB), HEAP_MAX_MIB)}m"


def machine_bytes(root: Path = Path("/")) -> int:
    """The memory that there is: the least of the machine's and of what its control groups allow.

    Args:
        root: where `proc` and `sys` are.
    """
    return min([*_installed(root), *_allowed(root)], default=_by_sysconf())


def _by_sysconf() -> int:
    """Where there is no /proc, as on macOS."""
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
    """The limit of each control group that this process is in, of version 1 or 2.

    A container often sees its own group as the root, so that the path that it is told does not
    exist: then the groups above it are looked at.
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
