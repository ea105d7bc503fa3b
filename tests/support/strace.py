"""strace for tests and proofs: kills nsqd at the Nth call of a kind, or makes that call fail.

Each thread counts its own calls: the effect hits the first thread that makes its Nth call of the
kind. The tracer runs as a separate process and ends with the daemon, so the daemon remains a child
of the test, with its own process id and exit status.
"""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

QUIET = ("strace", "-D", "-f", "-qq")
# Stops only at the selected calls, and so costs next to nothing; but with it strace 6.1 does not
# send signals.
FAST = (*QUIET, "--seccomp-bpf")
CHECK_SECONDS = 30


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
