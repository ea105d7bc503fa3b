"""The processes of a run: one nsqlookupd and some nsqds, and nsqadmin beside those of `sparq up`.

1. The standard ports are taken where they are free, free ones where they are not; a process that is
   started again comes back on its own ports and data.
2. Every process started here is ended here. Nothing else is touched.
3. What runs where stands in `cluster.json` of the run's folder, for people and for proofs.
4. The pipeline does not need nsqadmin: neither one that ends nor one that cannot start ends it.
   It listens on this machine only: whoever is on it may administer, as nsqadmin has it by itself.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparq.client.range_reader import RangeReader
from sparq.pipeline.folders import write_json

HOST = "127.0.0.1"
LOOKUPD_PORTS = (4160, 4161)
NSQD_PORTS = (4150, 4151)
PORT_STEP = 100
"""The second nsqd's standard ports lie so far above the first's, clear of all of NSQ's own."""

ADMIN_PORT = 4171
ADMIN_STARTS_MAX = 4
ADMIN_START_SECONDS = 15.0
START_SECONDS = 30.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05
REQUEST_SECONDS = 10.0


class ClusterError(Exception):
    """A process does not start, or does not answer; the text says which, and where its log is."""


def is_free(port: int) -> bool:
    """Whether one may listen on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def any_free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ports_near(standard: tuple[int, int]) -> tuple[int, int]:
    """The standard ports if both are free, else two that are."""
    if all(map(is_free, standard)):
        return standard
    return any_free_port(), any_free_port()


def free_port(standard: int) -> int:
    """The standard port if it is free, else one that is."""
    return standard if is_free(standard) else any_free_port()


def spawn(module: str, flags: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program of ours; what it prints is added to its log."""
    command = [sys.executable, "-m", module, *flags]
    with log.open("ab") as out:
        # A session of its own: Ctrl-C reaches the runner, which ends all in order.
        return subprocess.Popen(  # noqa: S603 - our own program, no shell
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )


@dataclass
class Daemon:
    """One process that answers HTTP."""

    module: str
    http_port: int
    log: Path
    flags: list[str]
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    starts: int = field(default=0, init=False)

    @property
    def http(self) -> str:
        """Where it answers HTTP."""
        return f"{HOST}:{self.http_port}"

    def start(self) -> None:
        """Start the process; `is_ready` says when it can be used."""
        self.process = spawn(self.module, [f"--http-address={self.http}", *self.flags], self.log)
        self.starts += 1

    def has_ended(self) -> bool:
        """Whether the process was started and is gone."""
        return self.process is not None and self.process.poll() is not None

    def is_ready(self, seconds: float) -> bool:
        """Whether it answers within this time, and has not ended."""
        deadline = time.monotonic() + seconds
        while not self.has_ended() and time.monotonic() < deadline:
            with suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/ping")[0] == http.client.OK:
                    return True
            time.sleep(POLL_SECONDS)
        return False

    def request(self, method: str, path: str) -> tuple[int, bytes]:
        """One HTTP request: status and body.

        Raises:
            OSError, http.client.HTTPException: it is not to be reached.
        """
        connection = http.client.HTTPConnection(HOST, self.http_port, timeout=REQUEST_SECONDS)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        """End the process, gently first; one that has ended is left as it is."""
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def state(self) -> dict[str, Any]:
        """Process id, address, number of starts and log."""
        pid = self.process.pid if self.process else None
        return {"pid": pid, "http": self.http, "starts": self.starts, "log": str(self.log)}


@dataclass
class Member(Daemon):
    """One process of the cluster."""

    name: str
    tcp_port: int

    def __post_init__(self) -> None:
        self.flags.append(f"--tcp-address={self.tcp}")

    @property
    def tcp(self) -> str:
        """Where its TCP clients connect."""
        return f"{HOST}:{self.tcp_port}"

    def wait_until_ready(self) -> None:
        """Return when the process answers.

        Raises:
            ClusterError: it ends, or does not answer in time.
        """
        if not self.is_ready(START_SECONDS):
            why = "ended" if self.has_ended() else f"did not answer in {START_SECONDS:.0f} s"
            raise ClusterError(f"{self.name} {why} at its start; its log: {self.log}")


class Console(Daemon):
    """nsqadmin of a run. One that ends is started again, ADMIN_STARTS_MAX times in all.

    Args:
        run_dir: where its audit log goes.
        log: where what it prints goes.
        lookupd: the nsqlookupd that it asks, `host:port`.
        module: the program.
    """

    def __init__(
        self, run_dir: Path, log: Path, lookupd: str, module: str = "sparq.nsqadmin"
    ) -> None:
        self.audit_log = run_dir / "nsqadmin_audit.log"
        self.is_given_up = False
        flags = [f"--lookupd-http-address={lookupd}", f"--audit-log={self.audit_log}"]
        super().__init__(module, free_port(ADMIN_PORT), log, flags)

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{self.http}/"

    def watch(self) -> str:
        """Start it again if it has ended; what is to be told of it, "" for nothing."""
        if self.is_given_up or not self.has_ended():
            return ""
        if self.starts >= ADMIN_STARTS_MAX:
            self.is_given_up = True
            return f"nsqadmin ended {self.starts} times and stays away; its log: {self.log}"
        self.start()
        return f"nsqadmin ended and is started again; its log: {self.log}"

    def state(self) -> dict[str, Any]:
        """The same, and where its audit log is."""
        return {**super().state(), "audit_log": str(self.audit_log)}


class Cluster:
    """One nsqlookupd and several nsqds.

    Args:
        run_dir: where logs and `cluster.json` go.
        data_dir: where the nsqds keep their logs, a folder each.
        nsqds: how many.
    """

    def __init__(self, run_dir: Path, data_dir: Path, nsqds: int = 2) -> None:
        self._run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        self.lookupd = self._member("nsqlookupd", LOOKUPD_PORTS, [])
        self.nsqds: list[Member] = []
        for number in range(nsqds):
            name = f"nsqd-{number + 1}"
            folder = data_dir / name
            folder.mkdir(parents=True, exist_ok=True)
            flags = [
                f"--data-path={folder}",
                f"--lookupd-tcp-address={self.lookupd.tcp}",
                f"--broadcast-address={HOST}",
                # Their own numbers: two hashes may collide, and message ids must not.
                f"--node-id={number + 1}",
            ]
            tcp, http = (port + number * PORT_STEP for port in NSQD_PORTS)
            self.nsqds.append(self._member(name, (tcp, http), flags))

    def _member(self, name: str, standard: tuple[int, int], flags: list[str]) -> Member:
        tcp_port, http_port = ports_near(standard)
        module = f"sparq.{name.partition('-')[0]}"
        return Member(module, http_port, self._run_dir / f"{name}.log", flags, name, tcp_port)

    @property
    def members(self) -> list[Member]:
        """All processes, in the order in which they start."""
        return [self.lookupd, *self.nsqds]

    def start(self) -> None:
        """Start everything.

        Raises:
            ClusterError: something does not start; then nothing is left running.
        """
        try:
            for member in self.members:
                member.start()
                if member is self.lookupd:
                    member.wait_until_ready()
            for member in self.nsqds:
                member.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        self.write_state()

    def stop(self) -> None:
        """End everything, the nsqds first."""
        for member in reversed(self.members):
            member.stop()

    def restart_dead(self) -> list[str]:
        """Start again what has ended by itself; returns the names.

        Raises:
            ClusterError: it does not come back.
        """
        dead = [member for member in self.members if member.has_ended()]
        for member in dead:
            member.start()
        for member in dead:
            member.wait_until_ready()
        if dead:
            self.write_state()
        return [member.name for member in dead]

    def state(self) -> dict[str, Any]:
        """Names, process ids, ports and numbers of starts."""
        return {one.name: {**one.state(), "tcp": one.tcp} for one in self.members}

    def write_state(self) -> None:
        """Write `cluster.json`."""
        write_json(self._run_dir / "cluster.json", self.state())

    # Figures

    def topics(self, topic: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(nsqd, its part of `/stats` for the topic) for each nsqd that has the topic.

        Raises:
            OSError, http.client.HTTPException: an nsqd is not to be reached just now.
        """
        for member in self.nsqds:
            path = f"/stats?format=json&include_clients=false&include_mem=false&topic={topic}"
            _, body = member.request("GET", path)
            for found in json.loads(body)["topics"] or []:
                yield member.name, found

    def depths(self, topic: str) -> dict[str, dict[str, int]]:
        """What each channel has before it, on each nsqd: {nsqd: {channel: depth}}."""
        return {
            name: {channel["channel_name"]: channel["depth"] for channel in found["channels"]}
            for name, found in self.topics(topic)
        }

    def message_counts(self, topic: str) -> dict[str, int]:
        """Messages that each nsqd's log of the topic has ever taken, dropped segments included.

        Raises:
            OSError: an nsqd is not to be reached just now.
            RemoteError: an nsqd does not have the topic.
        """
        counts = {}
        for member in self.nsqds:
            reader = RangeReader(member.tcp, user_agent="sparq pipeline")
            try:
                counts[member.name] = reader.ends(topic).end_ordinal
            finally:
                reader.close()
        return counts
