"""Real nsqd and nsqlookupd processes for tests.

``spawn_nsqd(tmp_path, *flags)`` and ``spawn_nsqlookupd(tmp_path, *flags)`` start a daemon as
its own process on free loopback ports and return once its ``/ping`` answers. Use the result in
a ``with`` block, or call ``close()``: what is still running then is killed.

1. Ports are chosen before the start and kept, so that a restarted daemon is found where it was.
2. They lie below the kernel's range for outgoing connections, so that only another test run may
   take one in between; at the first start others are chosen then.
3. Waiting is always for a condition, with a deadline, never for a fixed time.
4. In tests a daemon is forked from a process that has loaded it (see `tests.support.forked`),
   unless it is started in another way than by its module's name.

The calls block. In a test whose event loop must go on meanwhile, use
``await asyncio.to_thread(server.restart)``.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, Self

from sparq.program.supervised import HOST, STOP_SECONDS, SupervisedDaemon
from tests.support.forked import ForkServer, Job

START_SECONDS = 30.0
ABORT_SECONDS = 5.0
# Each process of a spread run (pytest-xdist) has ports of its own: another one once took that of an
# nsqd that was about to start again.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
PORTS = range(20_000 + _WORKER, 32_000, _WORKERS)

_handed_out: set[int] = set()
_choice = random.SystemRandom()


def free_port() -> int:
    """A loopback TCP port that nothing listens on and that was not handed out before."""
    while True:
        port = _choice.choice(PORTS)
        if port in _handed_out:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            _handed_out.add(port)
            return port


fork_server: ForkServer | None = None
"""Forks daemons, where pytest runs; see `tests/conftest.py`."""


class Server(SupervisedDaemon):
    """One daemon process: ``tcp`` and ``http`` are its addresses as ``host:port``.

    ``prefix`` is a program that becomes the daemon, such as ``nsenter``, with its arguments.
    """

    folder: Path

    def __init__(
        self, module: str, folder: Path, flags: tuple[str, ...], prefix: tuple[str, ...] = ()
    ) -> None:
        log = folder / f"{module.rpartition('.')[2]}.log"
        super().__init__(module, [], log, 0, folder=folder)
        self.module = module
        self.flags = flags
        self.prefix = prefix
        self.choose_ports()

    def choose_ports(self) -> None:
        """Take free ports; only before the first start."""
        self.tcp_port, self.http_port = free_port(), free_port()
        self.tcp = f"{HOST}:{self.tcp_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log_text(self) -> str:
        """Everything that the daemon has logged, over all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def address_flags(self) -> tuple[str, ...]:
        """The flags that set the addresses where it listens."""
        return f"--tcp-address={self.tcp}", f"--http-address={self.http}"

    def program(self) -> tuple[str, ...]:
        """The command without the daemon's flags."""
        return (*self.prefix, sys.executable, "-m", self.module)

    def spawn(self, log: BinaryIO) -> Any:
        """Start the process; fork it if it is started by its module's name alone."""
        program, flags = self.program(), [*self.address_flags(), *self.flags]
        self.environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        if fork_server is not None and program == Server.program(self) and not self.prefix:
            job = Job(self.module, flags, str(self.folder.absolute()), self.environment)
            return fork_server.start(job, log)
        self.command = [*program, *flags]
        return super().spawn(log)

    def launch(self) -> None:
        """Start the process without waiting for anything."""
        assert self.process is None, f"{self.module} is running already"
        super().start()

    def start(self) -> None:
        """Start the process and wait until it answers ``/ping``."""
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill9()
            raise

    def wait_ready(self) -> None:
        """Wait until the daemon answers, or fail with what it has logged."""
        if not self.is_ready(START_SECONDS):
            why = "ended" if self.has_ended() else f"did not answer in {START_SECONDS:.0f} s"
            self._abort()
            raise AssertionError(f"{self.module} {why}:\n{self.log_text[-4000:]}")

    def answers(self) -> bool:
        """Whether it accepts connections on both ports, and answers ``/ping``."""
        try:
            with socket.create_connection((HOST, self.tcp_port), timeout=1):
                return super().answers()
        except OSError:
            return False

    def kill9(self) -> None:
        """Kill without warning and wait for the end; no-op if it is not running."""
        self.kill()

    def terminate(self) -> int:
        """Ask it to shut down, wait for the end, and return the exit status."""
        process = self.process
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._abort()
            raise AssertionError(
                f"{self.module} did not end on SIGTERM:\n{self.log_text[-4000:]}"
            ) from None
        self.kill()
        return status

    def _abort(self) -> None:
        """End a process that does not do what it should; its log then shows its threads."""
        if self.process is not None:
            self.process.send_signal(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(ABORT_SECONDS)
            self.kill()

    def restart(self, *, gracefully: bool = False) -> None:
        """Stop (kill -9 unless ``gracefully``) and start again on the same ports and data."""
        if gracefully:
            self.terminate()
        else:
            self.kill9()
        self.start()

    def close(self) -> None:
        """End the process for good; for the end of a test."""
        self.kill9()

    def get_json(self, path: str) -> Any:
        """The JSON document at ``path``; any other status than 200 fails the test."""
        status, body = self.request("GET", path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def post(self, path: str, body: bytes = b"") -> bytes:
        """POST and return the body; any other status than 200 fails the test."""
        status, answer = self.request("POST", path, body)
        assert status == 200, (path, status, answer)
        return answer


def start_first(server: Server) -> None:
    """Start for the first time; on other ports if the chosen ones have just been taken."""
    for _ in range(5):
        try:
            return server.start()
        except AssertionError:
            if "address already in use" not in server.log_text:
                raise
            server.log.unlink()
            server.choose_ports()
    server.start()


class NsqdServer(Server):
    """An nsqd with its data under ``folder``."""

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        """The channel's part of ``/stats``; ``{}`` while there is no such channel."""
        stats = self.get_json(f"/stats?format=json&topic={topic}&channel={channel}")
        for found in stats["topics"] or ():
            for candidate in found["channels"]:
                if (found["topic_name"], candidate["channel_name"]) == (topic, channel):
                    return dict(candidate)
        return {}


class GoServer(NsqdServer):
    """A daemon of Go's NSQ: the program at this path."""

    def __init__(self, path: str, folder: Path, flags: tuple[str, ...]) -> None:
        self._path = path
        super().__init__(f"go.{Path(path).name}", folder, flags)

    def program(self) -> tuple[str, ...]:
        """What is started, without its flags."""
        return (self._path,)


class AdminServer(Server):
    """An nsqadmin: it has no TCP port. `base` is what its flags say of its base path."""

    base = ""

    def address_flags(self) -> tuple[str, ...]:
        """Where it is told to listen."""
        return (f"--http-address={self.http}",)

    def answers(self) -> bool:
        """Whether it answers ``/ping`` below its base path."""
        try:
            return self.request("GET", f"{self.base}/ping")[0] == 200
        except OSError:
            return False

    @property
    def url(self) -> str:
        """Its first page, without the slash."""
        return f"http://{self.http}"


def spawn_nsqd(
    tmp_path: Path,
    *flags: str,
    lookupds: tuple[Server, ...] = (),
    name: str = "nsqd",
    prefix: tuple[str, ...] = (),
) -> NsqdServer:
    """Start an nsqd with its data in ``tmp_path/name``; ``lookupds`` are where it registers."""
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    places = tuple(f"--lookupd-tcp-address={lookupd.tcp}" for lookupd in lookupds)
    own = (f"--data-path={folder}", "--broadcast-address=127.0.0.1")
    server = NsqdServer("sparq.nsqd", folder, (*own, *places, *flags), prefix)
    start_first(server)
    return server


def spawn_nsqlookupd(tmp_path: Path, *flags: str, name: str = "nsqlookupd") -> Server:
    """Start an nsqlookupd; its log is in ``tmp_path/name``."""
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    server = Server("sparq.nsqlookupd", folder, flags)
    start_first(server)
    return server
