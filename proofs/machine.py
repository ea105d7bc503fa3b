"""Describes the machine that a proof ran on, for GUARANTEES.md."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
import time

SYNCS = 400
PAGE_BYTES = 4096


def facts() -> dict[str, str]:
    """Properties of the machine that figures depend on, by name."""
    median, late = sync_latencies_ms()
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{memory_bytes / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "file system of the data": file_system(tempfile.gettempdir()),
        "fdatasync of 4 KiB appended": f"{median:.2f} ms at p50, {late:.2f} ms at p99",
    }


def file_system(folder: str) -> str:
    """Type of a folder's file system."""
    return subprocess.check_output(["stat", "-f", "-c", "%T", folder], text=True).strip()


def sync_latencies_ms() -> tuple[float, float]:
    """(p50, p99) of the time to append and sync a page, in the folder that proofs use."""
    took = []
    with tempfile.NamedTemporaryFile(prefix="sparq-sync-") as file:
        for _ in range(SYNCS):
            os.write(file.fileno(), bytes(PAGE_BYTES))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    took.sort()
    return took[SYNCS // 2], took[SYNCS * 99 // 100]
