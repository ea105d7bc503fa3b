"""A process that another program starts, watches, ends and starts again.

1. The process begins a session. Ctrl-C in a terminal reaches only the program that started it,
   which ends its processes in its own order.
2. Ending a process ends its whole session: Spark's driver is a Python process with a JVM, and a JVM
   that outlives its Python would write to the checkpoint of its successor. Process groups are not
   enough: Spark's Python workers have groups of their own, but no sessions.
3. `sparq run` and `sparq up` supervise their processes with it, and so do tests, proofs and bench.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

HOST: Final = "127.0.0.1"
PROC: Final = Path("/proc")
POLL_SECONDS: Final = 0.01
STOP_SECONDS: Final = 15.0
KILL_SECONDS: Final = 20.0
REQUEST_SECONDS: Final = 10.0


@dataclass(eq=False)
class SupervisedProcess:
    """A program that is started, watched, ended and started again.

    Attributes:
        name: its name in messages.
        command: the program and its arguments; may be changed until the next start.
        log: the file to which its output is appended.
        environment: its environment variables; None: those of this process.
        folder: its working directory; None: that of this process.
        process: the process; None before the first start and after `stop` and `kill`.
        starts: the number of starts.
    """

    name: str
    command: list[str]
    log: Path
    _: KW_ONLY
    environment: Mapping[str, str] | None = None
    folder: Path | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    starts: int = field(default=0, init=False)

    @property
    def pid(self) -> int:
        """The process id, which is also the session's; 0 if there is no process."""
        return self.process.pid if self.process is not None else 0

    def start(self) -> None:
        """Start the process, or start it again after it has ended; returns before it is ready."""
        if self.process is not None and self.process.poll() is None:
            raise RuntimeError(f"{self.name} is running already")
        with self.log.open("ab") as log:
            self.process = self.spawn(log)
        self.starts += 1

    def spawn(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start the process; its output goes to `log`."""
        return subprocess.Popen(  # noqa: S603 - the caller's own program, no shell
            self.command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def exit_status(self) -> int | None:
        """Return the exit status, negative after a signal; None while it runs or if unstarted."""
        return self.process.poll() if self.process is not None else None

    def has_ended(self) -> bool:
        """Whether the process was started and has ended by itself."""
        return self.exit_status() is not None

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait while it runs; returns whether the condition became true within this time."""
        deadline = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def stop(self, seconds: float = STOP_SECONDS) -> int | None:
        """End the process: SIGTERM, then SIGKILL for what still runs after this time.

        Returns:
            The exit status; None if there was no process.

        Raises:
            TimeoutError: processes survive SIGKILL.
        """
        process = self.process
        if process is None:
            return None
        # Not to the whole session: the process ends its own children in its own order.
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return self.kill()

    def kill(self) -> int | None:
        """End all processes of its session with SIGKILL; returns when none is left.

        Returns:
            The exit status of the first process; None if there was none.

        Raises:
            TimeoutError: processes survive SIGKILL.
        """
        process = self.process
        if process is None:
            return None
        deadline = time.monotonic() + KILL_SECONDS
        # Where there is no /proc (macOS), only this group can be found.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # In a loop, because a process may start another one while the processes are listed.
        while members := members_of(process.pid):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: processes {members} still run after SIGKILL")
            send(members, signal.SIGKILL)
            process.poll()  # it stays in the list until its status has been read
            time.sleep(POLL_SECONDS)
        self.process = None
        return process.wait(KILL_SECONDS)


@dataclass(eq=False)
class SupervisedDaemon(SupervisedProcess):
    """A supervised process that answers HTTP on this machine.

    Attributes:
        http_port: the port on which it listens.
    """

    http_port: int

    @property
    def http(self) -> str:
        """The address where it answers HTTP, `host:port`."""
        return f"{HOST}:{self.http_port}"

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send one HTTP request; returns status and body.

        Raises:
            OSError, http.client.HTTPException: the process cannot be reached.
        """
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=REQUEST_SECONDS)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def answers(self) -> bool:
        """Whether the daemon answers `GET /ping`."""
        with suppress(OSError, http.client.HTTPException):
            return self.request("GET", "/ping")[0] == http.client.OK
        return False

    def is_ready(self, seconds: float) -> bool:
        """Whether the daemon answers within this time, and has not ended."""
        return self.wait_until(self.answers, seconds)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to those of these processes that still exist."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def members_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended.

    None for session 0, and none on a system without /proc, such as macOS.
    """
    if not session or not PROC.is_dir():
        return []
    found = []
    for name in filter(str.isdigit, os.listdir(PROC)):
        with suppress(OSError):
            # The program's name is in parentheses and may contain any characters.
            words = (PROC / name / "stat").read_text(errors="replace").rpartition(")")[2]
            state, _parent, _group, its_session = words.split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(name))
    return found
