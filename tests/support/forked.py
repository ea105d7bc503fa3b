"""Daemons of tests, forked from a process that has loaded them: a start costs a tenth.

Hundreds of tests start an nsqd or an nsqlookupd. On a machine where memory was dear, ``python -m``
cost 6 s of CPU and 11,000 page faults each time, a fork 0.1 to 0.8 s and 3,600.

What runs is the daemon itself, as ``python -m`` runs it: a process of its own, with its own flags,
folder, environment and log, whose exit status is told. Tests of how a program starts from nothing
start it so, and benchmarks too, which measure memory.

`ForkServer` is the side of the tests; `serve` is the process that forks, one for each process of
tests.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NamedTuple

MODULES = ("sparq.nsqd", "sparq.nsqlookupd")
REQUEST_BYTES = 1 << 18
STATUS_BYTES = 64


class Job(NamedTuple):
    """What a forked process is to run."""

    module: str
    flags: list[str]
    folder: str
    environment: dict[str, str]


class Forked:
    """A process that was forked; of `subprocess.Popen` it has what tests use."""

    def __init__(self, report: socket.socket) -> None:
        self._report = report
        self.pid = int(report.recv(STATUS_BYTES))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative where a signal was the end; None: it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it did not end within so many seconds.
        """
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without warning."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], seconds)[0]:
            # Nothing: the process that forks has ended itself.
            self.returncode = int(self._report.recv(STATUS_BYTES) or -signal.SIGKILL)
            self._report.close()
        return self.returncode


class ForkServer:
    """The process that forks, as the tests see it; it is started with the first daemon."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def _begin(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())],
                cwd=Path(__file__).parents[2],
                # A thread of its own would not be there in what is forked.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return self._control

    def start(self, job: Job, log: BinaryIO) -> Forked:
        """Start a daemon whose output goes to the log; returns once its process is there."""
        control = self._control or self._begin()
        ours, theirs = socket.socketpair()
        with theirs:
            request = json.dumps(job).encode()
            socket.send_fds(control, [request], [theirs.fileno(), log.fileno()])
        return Forked(ours)

    def close(self) -> None:
        """Fork no more."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait()


def serve(control: socket.socket) -> Job | None:
    """Fork for each request, and tell how that ended; returns in what is forked, or at the end."""
    events = selectors.DefaultSelector()
    events.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj is not control:
                events.unregister(key.fileobj)
                _tell(int(key.fd), key.data)
                continue
            request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
            if not request:
                return None
            report, log = descriptors
            if not (pid := os.fork()):
                _let_go(events)
                os.close(report)
                _become_own(log)
                return Job(*json.loads(request))
            os.close(log)
            told = socket.socket(fileno=report)
            told.send(str(pid).encode())
            events.register(os.pidfd_open(pid), selectors.EVENT_READ, told)


def _let_go(events: selectors.BaseSelector) -> None:
    """Close what is for the process that forks alone."""
    for key in list(events.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
            key.data.close()
    events.close()


def _tell(ended: int, told: socket.socket) -> None:
    """Tell how a forked process has ended."""
    status = os.waitid(os.P_PIDFD, ended, os.WEXITED)
    os.close(ended)
    if status is not None:
        number = status.si_status
        code = number if status.si_code == os.CLD_EXITED else -number
        with contextlib.suppress(OSError):  # nobody waits for it
            told.send(str(code).encode())
    told.close()


def _become_own(log: int) -> None:
    """Have standard streams of its own."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    os.close(nothing)
    os.close(log)


def run(job: Job) -> None:
    """Be the daemon: as `python -m` would have it."""
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(job.environment)
    if job.environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.argv = [job.module, *job.flags]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    runpy.run_module(job.module, run_name="__main__", alter_sys=True)


def load() -> None:
    """Import all that the daemons may."""
    for name in MODULES:
        package = import_module(name)
        for found in pkgutil.iter_modules(package.__path__, f"{name}."):
            if not found.name.endswith(".__main__"):
                import_module(found.name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    load()
    if job := serve(socket.socket(fileno=int(sys.argv[1]))):
        run(job)
