"""Processes that the pipeline's bench watches: their memory.

1. Memory is read from `/proc`: `VmHWM` is the most that a process has had resident since it began.
2. What a JVM holds is counted by the JVM itself after a full garbage collection. It is asked as the
   JDK's `jcmd` asks: by the attach socket that every HotSpot JVM opens on SIGQUIT where a file of
   its name asks for it. So this works with a Java runtime that has no tools.
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
    """A line of the bench cannot be measured; the text says why and what to look at."""


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """What a condition returns, once it is true.

    Raises:
        BenchError: `what` did not come about in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)
    return found


def memory_mib(pid: int, field: str = "VmHWM") -> float:
    """Memory of a process by a field of its status: `VmHWM` (the most so far) or `VmRSS` (now)."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0


def java_of(pids: Iterable[int]) -> int:
    """The one of some processes that is a JVM.

    Raises:
        BenchError: none of them is.
    """
    for pid in sorted(pids):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "java":
                return pid
    raise BenchError("the application has no JVM: its log says why")


def live_heap_mib(java: int) -> float:
    """What the objects of a JVM take that are alive after a full garbage collection."""
    lines = ask_java(java, "GC.class_histogram").splitlines()
    total = [line.split() for line in lines if line.startswith("Total")]
    if not total:
        raise BenchError(f"the JVM {java} did not count its objects: {lines[:1]}")
    return int(total[-1][2]) / MIB


def ask_java(java: int, command: str) -> str:
    """The answer of a JVM to a command of `jcmd`.

    Raises:
        BenchError: it does not answer, or refuses.
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
