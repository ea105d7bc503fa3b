"""Programs that start others, as Spark's start a JVM: all of them end with the first."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def run_program(
    command: Sequence[str | Path], *, seconds: float, given: str | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return its status and output.

    On a timeout `subprocess.run` kills only the program, and then waits for all others that have
    its output open: a remaining JVM continues, and takes CPU time from the next tests.

    Args:
        command: the program and its arguments.
        seconds: the time limit.
        given: its standard input; None: empty.
        more: further arguments for `subprocess.Popen`.

    Raises:
        TimeoutExpired: it took longer; it and all processes of its session are killed.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    ) as process:
        try:
            output, error = process.communicate(given, seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(list(command), process.returncode, output, error)
