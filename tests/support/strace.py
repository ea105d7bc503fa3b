"""strace as a tool of tests and proofs: a system call of nsqd kills it, or fails, at its N-th time.

N counts each call of each thread by itself: the first thread that comes to its N-th such call is
meant. The tracer is a process beside the daemon and ends with it, so the daemon stays a child of
whoever started it, with its own process id and exit status.
"""

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

QUIET = ("strace", "-D", "-f", "-qq")
# Stops only at the calls that are meant, and so costs next to nothing; but then strace 6.1 does
# not come to sending signals.
SWIFT = (*QUIET, "--seccomp-bpf")
CHECK_SECONDS = 30
INJECTED = re.compile(r"(\w+)(?:\(| resumed>).*\(INJECTED\)$", re.M)
SYNC = re.compile(r"fdatasync\(\d+<([^>]*)>")
CREATED = re.compile(r'(?:openat\([^"]*|rename\("[^"]*", )"([^"]*)"')


def lack() -> str:
    """What keeps strace from being used here, as "needs ..."; empty if nothing does."""
    if shutil.which("strace") is None:
        return "needs strace"
    check = [*SWIFT, "-o", "/dev/null", "-e", "trace=getpid", "-e", "inject=getpid:retval=1"]
    program = [sys.executable, "-c", "import os, sys; sys.exit(os.getpid() != 1)"]
    try:
        subprocess.run([*check, *program], capture_output=True, timeout=CHECK_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return "needs the right to trace its own processes (ptrace)"
    return ""


def inject(calls: str, effect: str, when: str) -> tuple[str, ...]:
    """The prefix of a command in which some calls have an effect.

    Args:
        calls: names of system calls, with commas between them.
        effect: such as "signal=KILL" or "error=EIO".
        when: which of them, as strace has it: "7", "7+" (and every later), "7+3".
    """
    rule = f"inject={calls}:{effect}:when={when}"
    tracer = QUIET if "signal=" in effect else SWIFT
    return (*tracer, "-o", "/dev/null", "-e", f"trace={calls}", "-e", rule)


class Record:
    """What a tracer has written down: calls, the paths of their files, and what was injected."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self) -> str:
        """So far; empty while there is nothing."""
        return self.path.read_text(errors="replace") if self.path.exists() else ""

    def injected(self) -> Counter[str]:
        """How often each call was made to fail."""
        return Counter(INJECTED.findall(self.text()))

    def synced_again(self) -> list[str]:
        """Segments that were synced once more after a sync of them had failed.

        A file that is created, or renamed, is another one than that which had its path before.
        """
        failed: set[str] = set()
        again: list[str] = []
        pending: dict[str, str] = {}
        for line in self.text().splitlines():
            thread = line.split(" ", 1)[0]
            is_new = "O_CREAT" in line or "rename(" in line
            if is_new and (made := CREATED.search(line)):
                failed.discard(made[1])
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
    """The prefix of a command in which calls fail.

    Args:
        faults: (calls, errno's name, when) as `inject` has them.
        record: where the tracer writes what it sees.
        also: further calls to be written down, with commas between them.
        paths: only calls on one of these files or folders; none: on any.
    """
    rules = list(faults)
    traced = ",".join([*(calls for calls, _, _ in rules), *filter(None, [also])])
    words = [*SWIFT, "-y", "-o", str(record), "-e", f"trace={traced}"]
    for calls, error, when in rules:
        words += ["-e", f"inject={calls}:error={error}:when={when}"]
    for path in paths:
        words += ["-P", path]
    return tuple(words)
