"""The memory of processes that the pipeline's bench watches.

1. Memory is read from `/proc`: `VmHWM` is the peak of a process's resident memory.
2. A JVM counts its live objects itself, after a full garbage collection. It is queried as the JDK's
   `jcmd` does, through the attach socket, which a HotSpot JVM opens on SIGQUIT if a file with a
   certain name exists. So this works with a Java runtime that has no tools.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.05
ATTACH_SECONDS = 30.0
HISTOGRAM_SECONDS = 120.0
MIB = 1 << 20


class BenchError(Exception):
    """A line of the bench cannot be measured; the text gives the reason and what to look at."""


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the value of a condition once it is true.

    Raises:
        BenchError: the condition, described by `what`, was not true in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)
    return found


def java_of(pids: Iterable[int]) -> int:
    """Return the process that is a JVM.

    Raises:
        BenchError: there is none.
    """
    for pid in sorted(pids):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "java":
                return pid
    raise BenchError("the application has no JVM: its log says why")


def live_heap_mib(java: int) -> float:
    """Return the size in MiB of a JVM's live objects after a full garbage collection."""
    lines = ask_java(java, "GC.class_histogram").splitlines()
    total = [line.split() for line in lines if line.startswith("Total")]
    if not total:
        raise BenchError(f"the JVM {java} did not count its objects: {lines[:1]}")
    return int(total[-1][2]) / MIB


def ask_java(java: int, command: str) -> str:
    """Send a `jcmd` command to a JVM; return its answer.

    Raises:
        BenchError: it does not answer, or refuses the command.
    """
    place = Path(f"/tmp/.java_pid{java}")
    if not place.exists():
        _open_attach_socket(java, place)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HISTOGRAM_SECONDS)
        connection.connect(str(place))
        connection.sendall(b"1\0jcmd\0" + command.encode() + b"\0\0\0")
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode(errors="replace")
    status, _, text = answer.partition("\n")
    if status != "0":
        raise BenchError(f"the JVM {java} refuses {command}: {answer[:200]}")
    return text


def _open_attach_socket(java: int, place: Path) -> None:
    asks = Path(f"/tmp/.attach_pid{java}")
    asks.touch(mode=0o600)
    try:
        os.kill(java, signal.SIGQUIT)
        until(place.exists, ATTACH_SECONDS, f"an attach socket of the JVM {java}")
    finally:
        asks.unlink()
