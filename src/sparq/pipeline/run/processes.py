"""The processes of a run: one nsqlookupd and some nsqds, and for `sparq up` nsqadmin.

1. The standard ports are used if they are free, otherwise any free ones. A process that is started
   again keeps its ports and data.
2. Every process started here is ended here. Nothing else is touched.
3. `cluster.json` in the run's folder lists all processes, for people and for the proofs.
4. The pipeline does not need nsqadmin: if it ends or cannot start, the run continues. It listens on
   this machine only, and every user of the machine may administer, which is nsqadmin's default.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sparq.client.range_reader import RangeReader
from sparq.pipeline.run.folders import write_json
from sparq.program.supervised import HOST, SupervisedDaemon

LOOKUPD_PORTS = (4160, 4161)
NSQD_PORTS = (4150, 4151)
PORT_STEP = 100
"""Distance between the standard ports of two nsqds, large enough to avoid NSQ's other ports."""

ADMIN_PORT = 4171
ADMIN_STARTS_MAX = 4
ADMIN_START_SECONDS = 15.0
START_SECONDS = 30.0


class ClusterError(Exception):
    """A process does not start, or does not answer; the text names it and its log."""


def is_free(port: int) -> bool:
    """Whether a port of this machine is free to listen on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def any_free_port() -> int:
    """A port on which no process listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ports_near(standard: tuple[int, int]) -> tuple[int, int]:
    """The standard ports if both are free, otherwise two free ones."""
    if all(map(is_free, standard)):
        return standard
    return any_free_port(), any_free_port()


def free_port(standard: int) -> int:
    """The standard port if it is free, otherwise a free one."""
    return standard if is_free(standard) else any_free_port()


def command_of(module: str) -> list[str]:
    """Return the command that runs a program of sparq."""
    return [sys.executable, "-m", module]


class ClusterProcess(SupervisedDaemon):
    """One process of the cluster: nsqlookupd or an nsqd.

    Args:
        name: its name in messages and in `cluster.json`.
        flags: its flags, without its addresses.
        log: the file for its output.
        ports: its ports for TCP clients and for HTTP.
    """

    def __init__(self, name: str, flags: Sequence[str], log: Path, ports: tuple[int, int]) -> None:
        self.tcp_port, http_port = ports
        command = command_of(f"sparq.{name.partition('-')[0]}")
        super().__init__(name, command, log, http_port)
        self.command += [f"--http-address={self.http}", f"--tcp-address={self.tcp}", *flags]

    @property
    def tcp(self) -> str:
        """The address for its TCP clients."""
        return f"{HOST}:{self.tcp_port}"

    def wait_until_ready(self) -> None:
        """Wait until the process answers.

        Raises:
            ClusterError: it ends, or does not answer in time.
        """
        if not self.is_ready(START_SECONDS):
            why = "ended" if self.has_ended() else f"did not answer within {START_SECONDS:.0f} s"
            raise ClusterError(f"{self.name} {why} at start-up; see its log: {self.log}")

    def state(self) -> dict[str, Any]:
        """Process id, addresses, number of starts, and log."""
        return {**state_of(self), "tcp": self.tcp}


class Console(SupervisedDaemon):
    """nsqadmin of a run. If it ends it is started again, up to ADMIN_STARTS_MAX starts in total.

    Args:
        run_dir: the folder for its audit log.
        log: the file for its output.
        lookupd: the nsqlookupd that it uses, `host:port`.
        module: the program.
    """

    def __init__(
        self, run_dir: Path, log: Path, lookupd: str, module: str = "sparq.nsqadmin"
    ) -> None:
        self.audit_log = run_dir / "nsqadmin_audit.log"
        self.is_given_up = False
        super().__init__("nsqadmin", command_of(module), log, free_port(ADMIN_PORT))
        self.command += [f"--http-address={self.http}", f"--lookupd-http-address={lookupd}"]
        self.command += [f"--audit-log={self.audit_log}"]

    @property
    def url(self) -> str:
        """Its URL for a browser."""
        return f"http://{self.http}/"

    def watch(self) -> str:
        """Start the daemon again if it has ended; returns a message about that, or ""."""
        if self.is_given_up or not self.has_ended():
            return ""
        if self.starts >= ADMIN_STARTS_MAX:
            self.is_given_up = True
            return (
                f"nsqadmin ended {self.starts} times and will not be restarted;"
                f" see its log: {self.log}"
            )
        self.start()
        return f"nsqadmin ended and was restarted; see its log: {self.log}"

    def state(self) -> dict[str, Any]:
        """The state of the process, and the path of its audit log."""
        return {**state_of(self), "audit_log": str(self.audit_log)}


def state_of(daemon: SupervisedDaemon) -> dict[str, Any]:
    """Process id, HTTP address, number of starts, and log of a daemon."""
    pid = daemon.pid or None
    return {"pid": pid, "http": daemon.http, "starts": daemon.starts, "log": str(daemon.log)}


class LocalCluster:
    """One nsqlookupd and several nsqds.

    Args:
        run_dir: the folder for logs and `cluster.json`.
        data_dir: the folder of the nsqds' data paths.
        nsqds: number of nsqds.
    """

    def __init__(self, run_dir: Path, data_dir: Path, nsqds: int = 2) -> None:
        self._run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        self.lookupd = self._member("nsqlookupd", LOOKUPD_PORTS, [])
        self.nsqds: list[ClusterProcess] = []
        for number in range(nsqds):
            name = f"nsqd-{number + 1}"
            folder = data_dir / name
            folder.mkdir(parents=True, exist_ok=True)
            flags = [
                f"--data-path={folder}",
                f"--lookupd-tcp-address={self.lookupd.tcp}",
                f"--broadcast-address={HOST}",
                # Distinct ids: by default two could get the same hash, and message ids must be
                # unique.
                f"--node-id={number + 1}",
            ]
            tcp, http = (port + number * PORT_STEP for port in NSQD_PORTS)
            self.nsqds.append(self._member(name, (tcp, http), flags))

    def _member(self, name: str, standard: tuple[int, int], flags: list[str]) -> ClusterProcess:
        return ClusterProcess(name, flags, self._run_dir / f"{name}.log", ports_near(standard))

    @property
    def members(self) -> list[ClusterProcess]:
        """All processes, in the order in which they start."""
        return [self.lookupd, *self.nsqds]

    def start(self) -> None:
        """Start all processes.

        Raises:
            ClusterError: a process does not start; then none is left running.
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
        """End all processes, the nsqds first, also if one of them cannot be ended."""
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.stop)

    def restart_dead(self) -> list[str]:
        """Start processes again that have ended by themselves; returns their names.

        Raises:
            ClusterError: a process does not come back.
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
        return {member.name: member.state() for member in self.members}

    def write_state(self) -> None:
        """Write `cluster.json`."""
        write_json(self._run_dir / "cluster.json", self.state())

    # Figures

    def topics(self, topic: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """(nsqd, its part of `/stats` for the topic) for each nsqd that has the topic.

        Raises:
            OSError, http.client.HTTPException: an nsqd cannot be reached at the moment.
        """
        for member in self.nsqds:
            path = f"/stats?format=json&include_clients=false&include_mem=false&topic={topic}"
            _, body = member.request("GET", path)
            for found in json.loads(body)["topics"] or []:
                yield member.name, found

    def depths(self, topic: str) -> dict[str, dict[str, int]]:
        """The depth of each channel on each nsqd: {nsqd: {channel: depth}}."""
        return {
            name: {channel["channel_name"]: channel["depth"] for channel in found["channels"]}
            for name, found in self.topics(topic)
        }

    def message_counts(self, topic: str) -> dict[str, int]:
        """Messages that each nsqd's log of the topic has ever taken, incl. dropped segments.

        Raises:
            OSError: an nsqd cannot be reached at the moment.
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
