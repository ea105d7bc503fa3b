"""Processes that the pipeline's bench watches: their descendants, their memory, how they end.

1. Memory is read from `/proc`: `VmHWM` is the most that a process has had resident since it began.
2. What a JVM holds is counted by the JVM itself after a full garbage collection. It is asked as the
   JDK's `jcmd` asks: by the attach socket that every HotSpot JVM opens on SIGQUIT where a file of
   its name asks for it. So this works with a Java runtime that has no tools.
3. `end` leaves no descendant running, and knows each by its number and the time when it began.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.05
END_SECONDS = 30.0
WORKERS_SECONDS = 3.0
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


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent and so on.

    Raises:
        OSError: there is no such process any more.
    """
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(") ")[2].split()


def descendants(root: int) -> dict[int, int]:
    """A process, its session and all that descend from them: {pid: when it began, in ticks}."""
    parents: dict[int, int] = {}
    begun: dict[int, int] = {}
    found: set[int] = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, IndexError):
                pid, fields = int(folder.name), _fields(int(folder.name))
                parents[pid], begun[pid] = int(fields[1]), int(fields[19])
                if root in (pid, int(fields[3])):
                    found.add(pid)
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return {pid: begun[pid] for pid in found}


def is_running(pid: int, begun: int) -> bool:
    """Whether the process that began then still runs."""
    with suppress(OSError, IndexError):
        fields = _fields(pid)
        return int(fields[19]) == begun and fields[0] != "Z"
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and all of its descendants, gently first.

    Spark's Python workers have a group of their own and end when their JVM does. One that does not
    is killed by its number.

    Raises:
        BenchError: something cannot be killed.
    """
    known = descendants(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    known |= descendants(process.pid)
    if process.poll() is None:
        process.kill()
        process.wait()
    kill_from = time.monotonic() + WORKERS_SECONDS
    while left := [pid for pid, begun in known.items() if is_running(pid, begun)]:
        if time.monotonic() > kill_from:
            _kill(left)
        if time.monotonic() > kill_from + END_SECONDS:
            raise BenchError(f"processes {left} do not end")
        time.sleep(POLL_SECONDS)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
