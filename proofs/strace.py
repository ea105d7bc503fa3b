"""strace as a tool of proofs: a system call of nsqd kills it, or fails, at its N-th time.

N counts each call of each thread by itself: the first thread that comes to its N-th such call is
meant. The tracer is a process beside the daemon and ends with it, so the daemon stays a child of
whoever started it, with its own process id and exit status.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.servers import spawn_nsqd

QUIET = ("strace", "-D", "-f", "-qq")
# Stops only at the calls that are meant, and so costs next to nothing; but then strace 6.1 does
# not come to sending signals.
SWIFT = (*QUIET, "--seccomp-bpf")
CHECK_SECONDS = 30


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


def opens_before_data(scratch: Path) -> int:
    """How many files a starting nsqd opens before the first one of its data: Python's own."""
    record = scratch / "opens"
    prefix = (*SWIFT, "-o", str(record), "-e", "trace=openat")
    with spawn_nsqd(scratch, name="counted", prefix=prefix) as server:
        data = str(server.folder)
        server.terminate()
    lines = record.read_text(errors="replace").splitlines()
    main_thread = lines[0].split()[0]
    opens = [line for line in lines if line.split()[0] == main_thread and "openat(" in line]
    return next(number for number, line in enumerate(opens) if f'"{data}' in line)
