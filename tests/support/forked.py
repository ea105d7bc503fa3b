"""Daemons for tests, forked from a process that has loaded their modules: a tenth of the cost.

Hundreds of tests start an nsqd or an nsqlookupd. On a machine with little memory, ``python -m``
cost 6 s of CPU and 11,000 page faults each time; a fork cost 0.1 to 0.8 s and 3,600.

The daemon runs as with ``python -m``: in its own process, with its flags, folder, environment and
log, and its exit status is reported. Tests of a program's start use ``python -m`` instead, and so
do benchmarks, which measure memory.

`ForkServer` is the tests' side; `serve` runs in the process that forks. Each test process has one.
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
    """The program that a forked process runs."""

    module: str
    flags: list[str]
    folder: str
    environment: dict[str, str]


class Forked:
    """A forked process, with those methods of `subprocess.Popen` that tests use."""

    def __init__(self, report: socket.socket) -> None:
        self._report = report
        self.pid = int(report.recv(STATUS_BYTES))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal's number; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: it did not end within `timeout` seconds.
        """
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], seconds)[0]:
            # No data: the forking process itself has ended.
            self.returncode = int(self._report.recv(STATUS_BYTES) or -signal.SIGKILL)
            self._report.close()
        return self.returncode


class ForkServer:
    """The tests' handle of the forking process, which starts with the first daemon."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def _begin(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())],
                cwd=Path(__file__).parents[2],
                # OpenBLAS's threads would not exist in forked processes.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return self._control

    def start(self, job: Job, log: BinaryIO) -> Forked:
        """Start a daemon that writes its output to the log; return when its process exists."""
        control = self._control or self._begin()
        ours, theirs = socket.socketpair()
        with theirs:
            request = json.dumps(job).encode()
            socket.send_fds(control, [request], [theirs.fileno(), log.fileno()])
        return Forked(ours)

    def close(self) -> None:
        """Stop the forking process."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.wait()


def serve(control: socket.socket) -> Job | None:
    """Fork for each request and report each exit status.

    Returns the job in a forked process, and None in the forking process when the tests close the
    socket. If they were killed, daemons are left, which end then: they have sessions of their own.
    """
    events = selectors.DefaultSelector()
    events.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj is not control:
                events.unregister(key.fileobj)
                _report_status(int(key.fd), key.data)
                continue
            request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
            if not request:
                _end_all(events)
                return None
            report, log = descriptors
            if not (pid := os.fork()):
                _close_descriptors(events)
                os.close(report)
                _begin_session(log)
                return Job(*json.loads(request))
            os.close(log)
            reports = socket.socket(fileno=report)
            reports.send(str(pid).encode())
            events.register(os.pidfd_open(pid), selectors.EVENT_READ, reports)


def _end_all(events: selectors.BaseSelector) -> None:
    """Kill the forked processes that still run."""
    for key in events.get_map().values():
        if not isinstance(key.fileobj, socket.socket):
            signal.pidfd_send_signal(int(key.fd), signal.SIGKILL)


def _close_descriptors(events: selectors.BaseSelector) -> None:
    """Close the descriptors that only the forking process needs."""
    for key in list(events.get_map().values()):
        if isinstance(key.fileobj, socket.socket):
            key.fileobj.close()
        else:
            os.close(key.fd)
            key.data.close()
    events.close()


def _report_status(ended: int, reports: socket.socket) -> None:
    """Report the exit status of a forked process."""
    status = os.waitid(os.P_PIDFD, ended, os.WEXITED)
    os.close(ended)
    if status is not None:
        number = status.si_status
        code = number if status.si_code == os.CLD_EXITED else -number
        with contextlib.suppress(OSError):  # the tests no longer wait for it
            reports.send(str(code).encode())
    reports.close()


def _begin_session(log: int) -> None:
    """Begin a session, and replace the standard streams, as `SupervisedProcess` does."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    os.close(nothing)
    os.close(log)


def run(job: Job) -> None:
    """Run the daemon as `python -m` does."""
    os.chdir(job.folder)
    os.environ.clear()
    os.environ.update(job.environment)
    if job.environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    sys.argv = [job.module, *job.flags]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    runpy.run_module(job.module, run_name="__main__", alter_sys=True)


def load() -> None:
    """Import all modules that the daemons may need."""
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
