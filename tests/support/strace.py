"""strace for tests and proofs: kills nsqd at the Nth call of a kind, or makes that call fail.

Each thread counts its own calls: the effect hits the first thread that makes its Nth call of the
kind. The tracer runs as a separate process and ends with the daemon, so the daemon remains a child
of the test, with its own process id and exit status.
"""

import contextlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

QUIET = ("strace", "-D", "-f", "-qq")
# Stops only at the selected calls, and so costs next to nothing; but with it strace 6.1 does not
# send signals.
FAST = (*QUIET, "--seccomp-bpf")
CHECK_SECONDS = 30
INJECTED = re.compile(r"(\w+)(?:\(| resumed>).*\(INJECTED\)$", re.M)
SYNC = re.compile(r"fdatasync\(\d+<([^>]*)>")
PLACE = r'(?:AT_FDCWD|\d+)<([^>]*)>, "([^"]*)"'
CREATED = re.compile(rf'(?:openat\(|renameat\([^"]*"[^"]*", ){PLACE}')


def missing() -> str:
    """Why strace cannot be used here, as "needs ..."; empty if it can."""
    if shutil.which("strace") is None:
        return "needs strace"
    check = [*FAST, "-o", "/dev/null", "-e", "trace=getpid", "-e", "inject=getpid:retval=1"]
    program = [sys.executable, "-c", "import os, sys; sys.exit(os.getpid() != 1)"]
    try:
        subprocess.run([*check, *program], capture_output=True, timeout=CHECK_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return "needs the right to trace its own processes (ptrace)"
    return ""


def inject(calls: str, effect: str, when: str) -> tuple[str, ...]:
    """Return the command prefix with which some calls have an effect.

    Args:
        calls: names of system calls, with commas between them.
        effect: such as "signal=KILL" or "error=EIO".
        when: the numbers of the affected calls, as in strace: "7", "7+" (and all later), "7+3".
    """
    rule = f"inject={calls}:{effect}:when={when}"
    tracer = QUIET if "signal=" in effect else FAST
    return (*tracer, "-o", "/dev/null", "-e", f"trace={calls}", "-e", rule)


@contextlib.contextmanager
def attached(pid: int, calls: str, error: str) -> Iterator[None]:
    """Make calls of a running process fail, in all its threads.

    Args:
        pid: the process.
        calls: names of system calls, with commas between them.
        error: an errno's name.
    """
    rule = f"inject={calls}:error={error}"
    words = ["strace", "-f", "-p", str(pid), "-o", "/dev/null", "-e", f"trace={calls}"]
    with subprocess.Popen([*words, "-e", rule], stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        line = tracer.stderr.readline()
        if "attached" not in line:
            pytest.skip(f"needs the right to trace other processes: {line.strip()}")
        try:
            yield
        finally:
            tracer.terminate()
            tracer.stderr.read()


class Record:
    """A tracer's output: calls, the paths of their files, and injected errors."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self) -> str:
        """The output so far; empty if there is none yet."""
        return self.path.read_text(errors="replace") if self.path.exists() else ""

    def injected(self) -> Counter[str]:
        """Return how often each call was made to fail."""
        return Counter(INJECTED.findall(self.text()))

    def synced_again(self) -> list[str]:
        """Return segments that were synced again after one of their syncs had failed.

        A file that is created or renamed is not the file that had its path before.
        """
        failed: set[str] = set()
        again: list[str] = []
        pending: dict[str, str] = {}
        for line in self.text().splitlines():
            thread = line.split(" ", 1)[0]
            is_new = "O_CREAT" in line or "renameat(" in line
            if is_new and (made := CREATED.search(line)):
                failed.discard(str(Path(made[1], made[2])))
            if begun := SYNC.search(line):
                pending[thread] = begun[1]
                if begun[1] in failed and begun[1].endswith(".log"):
                    again.append(begun[1])
            if "fdatasync" in line and "(INJECTED)" in line and thread in pending:
                failed.add(pending[thread])
        return again


def fail(
    faults: Iterable[tuple[str, str, str]], record: Path, also: str = "", paths: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the command prefix with which calls fail.

    Args:
        faults: (calls, name of the errno, when) as in `inject`.
        record: the file for the tracer's output.
        also: further calls to record, with commas between them.
        paths: limits faults and records to calls on these files or folders; none: no limit.
    """
    rules = list(faults)
    traced = ",".join([*(calls for calls, _, _ in rules), *filter(None, [also])])
    words = [*FAST, "-y", "-o", str(record), "-e", f"trace={traced}"]
    for calls, error, when in rules:
        words += ["-e", f"inject={calls}:error={error}:when={when}"]
    for path in paths:
        words += ["-P", path]
    return tuple(words)
