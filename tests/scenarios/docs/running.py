"""Runs a program of a page as a separate process; returns its output and exit status.

1. It runs in a separate folder. A program that waits for a signal gets SIGINT, as from Ctrl-C,
   after it has printed the expected output.
2. Programs that use sparq are forked from a process that has already imported it: starting an
   interpreter for each would take longer than running it.
3. Warnings are errors in them.
4. Their output is written to the file immediately, whatever the environment sets for buffers and
   encodings: otherwise the output of a waiting program would not be seen.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import cache
from io import FileIO, TextIOWrapper
from multiprocessing import connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple, TextIO

RUN_SECONDS = 30.0
POLL_SECONDS = 0.01
SLOW = re.compile(r"^nsqd \S+: TimeoutError\n", re.M)
"""A log line: nsqd did not answer within `dial_timeout`, and is tried again."""
POLLING = threading.Lock()
"""Serialises starts and polls of processes.

Starting a process also polls all others, and only one thread can read a process's status: a second
one that polls at the same time gets 255.
"""

PRELOADED = [
    "sparq",
    "sparq.client.consumer",
    "sparq.client.blocking.session",
    "tests.scenarios.docs.running",
]


class Result(NamedTuple):
    """The result of a program.

    Attributes:
        status: its exit status; None: it did not end.
        output: what it printed.
        errors: what it wrote to stderr.
    """

    status: int | None
    output: str
    errors: str

    @property
    def unexpected_errors(self) -> str:
        """What it wrote to stderr, without lines that a slow machine causes."""
        return SLOW.sub("", self.errors)


def run_sparq(text: str, expected: str, folder: Path, *, waits: bool) -> Result:
    """Run a Python program that uses sparq; `waits`: it waits for a signal."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    process = _forkserver().Process(target=_program, args=(str(folder),))
    with POLLING:
        process.start()

    def wait(seconds: float) -> int | None:
        connection.wait([process.sentinel], seconds)
        with POLLING:
            return process.exitcode

    assert process.pid is not None
    try:
        return _wait_for_exit(process.pid, wait, waits, expected, folder)
    finally:
        process.kill()
        wait(RUN_SECONDS)


def run_command(words: list[str], expected: str, folder: Path, *, waits: bool) -> Result:
    """Run any other program in the same way."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (folder / "output").open("wb") as to, (folder / "errors").open("wb") as wrong:
        process = subprocess.Popen(words, cwd=folder, stdout=to, stderr=wrong, env=environment)

    def wait(seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    try:
        return _wait_for_exit(process.pid, wait, waits, expected, folder)
    finally:
        process.kill()
        process.wait()


def _wait_for_exit(
    pid: int, wait: Callable[[float], int | None], waits: bool, expected: str, folder: Path
) -> Result:
    output, errors = folder / "output", folder / "errors"
    deadline = time.monotonic() + RUN_SECONDS
    status = None
    while waits and status is None and time.monotonic() < deadline:
        if output.exists() and output.read_bytes() == expected.encode():
            os.kill(pid, signal.SIGINT)
            break
        status = wait(POLL_SECONDS)
    status = wait(max(1.0, deadline - time.monotonic())) if status is None else status
    return Result(status, output.read_text(encoding="utf-8"), errors.read_text(encoding="utf-8"))


@cache
def _forkserver() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _unbuffered(number: int) -> TextIO:
    """A text file that writes immediately, as under `python -u`."""
    raw = FileIO(number, "wb", closefd=False)
    return TextIOWrapper(raw, encoding="utf-8", write_through=True)


def _program(folder: str) -> None:
    """In the new process: run the program."""
    os.chdir(folder)
    for name, number in (("output", 1), ("errors", 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    # The existing ones have the buffers and encodings of the process that this one was forked from.
    sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
    warnings.simplefilter("error")
    runpy.run_path("program.py", run_name="__main__")
