"""The processes of a run: nsqlookupd, nsqds, the Spark application, and for `sparq up` nsqadmin.

1. The standard ports are used if they are free, otherwise any free ones. A process that is started
   again keeps its ports and data.
2. Every process started here is ended here. Nothing else is touched.
3. The pipeline does not need nsqadmin: if it ends or cannot start, the run continues. It listens on
   this machine only, and every user of the machine may administer, which is nsqadmin's default.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from sparq.client.range_reader import RangeReader
from sparq.pipeline.run.folders import Folders, RunError, read_json
from sparq.program.supervised import HOST, SupervisedDaemon, SupervisedProcess

LOOKUPD_PORTS = (4161, 4160)
NSQD_PORTS = (4151, 4150)
"""For HTTP and for TCP clients."""

PORT_STEP = 100
"""Distance between the standard ports of two nsqds, large enough to avoid NSQ's other ports."""

ADMIN_PORT = 4171
ADMIN_STARTS_MAX = 4
START_SECONDS = 30.0
APPLICATION = "sparq.pipeline.app"
MISTAKE = "sparq pipeline: "
"""Prefix of the application's message about a wrong setting. A restart would not help then."""


def is_free(port: int) -> bool:
    """Whether a port of this machine is free to listen on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def any_free_port() -> int:
    """A port on which no process listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def free_ports(*standard: int) -> tuple[int, ...]:
    """The standard ports if all are free, otherwise other free ones."""
    return standard if all(map(is_free, standard)) else tuple(any_free_port() for _ in standard)


class Daemon(SupervisedDaemon):
    """One of NSQ's daemons: nsqlookupd, an nsqd, or nsqadmin.

    Args:
        name: its name in messages; it begins with the program's.
        log: the file for its output.
        ports: its ports for HTTP and for TCP clients; nsqadmin has none for these.
        flags: its flags, without its addresses.
    """

    def __init__(self, name: str, log: Path, ports: Sequence[int], flags: Sequence[str]) -> None:
        command = [sys.executable, "-m", f"sparq.{name.partition('-')[0]}", *flags]
        super().__init__(name, command, log, ports[0])
        self.tcp_port = ports[-1]
        self.tcp = f"{HOST}:{self.tcp_port}"
        addresses = {"--http-address": self.http, "--tcp-address": self.tcp}
        pairs = [f"{flag}={address}" for flag, address in addresses.items()]
        self.command += pairs[: len(ports)]

    def wait_until_ready(self) -> None:
        """Wait until the process answers.

        Raises:
            RunError: it ends, or does not answer in time.
        """
        if not self.is_ready(START_SECONDS):
            why = "ended" if self.has_ended() else f"did not answer within {START_SECONDS:.0f} s"
            raise RunError(f"{self.name} {why} at start-up; see its log: {self.log}")

    def state(self) -> dict[str, Any]:
        """Process id, addresses, number of starts, and log."""
        at = {"http": self.http, "tcp": self.tcp}
        return {"pid": self.pid or None, **at, "starts": self.starts, "log": str(self.log)}


def nsqadmin(run_dir: Path, log: Path, lookupd: str) -> Daemon:
    """The nsqadmin of a run, for an nsqlookupd at an HTTP address; its audit log is in run_dir."""
    flags = [f"--lookupd-http-address={lookupd}", f"--audit-log={run_dir / 'nsqadmin_audit.log'}"]
    return Daemon("nsqadmin", log, free_ports(ADMIN_PORT), flags)


class LocalCluster:
    """One nsqlookupd and several nsqds.

    Args:
        run_dir: the folder for logs.
        data_dir: the folder of the nsqds' data paths.
        nsqds: number of nsqds.
    """

    def __init__(self, run_dir: Path, data_dir: Path, nsqds: int = 2) -> None:
        self._run_dir = run_dir
        log = run_dir / "nsqlookupd.log"
        self.lookupd = Daemon("nsqlookupd", log, free_ports(*LOOKUPD_PORTS), [])
        self._folders = [data_dir / f"nsqd-{number + 1}" for number in range(nsqds)]
        self.nsqds = [self._nsqd(number, folder) for number, folder in enumerate(self._folders)]

    def _nsqd(self, number: int, folder: Path) -> Daemon:
        flags = [
            f"--data-path={folder}",
            f"--lookupd-tcp-address={self.lookupd.tcp}",
            f"--broadcast-address={HOST}",
            # Distinct ids: by default two could get the same hash, and message ids must be unique.
            f"--node-id={number + 1}",
        ]
        ports = free_ports(*(port + number * PORT_STEP for port in NSQD_PORTS))
        return Daemon(folder.name, self._run_dir / f"{folder.name}.log", ports, flags)

    @property
    def members(self) -> list[Daemon]:
        """All processes, in the order in which they start."""
        return [self.lookupd, *self.nsqds]

    def start(self) -> None:
        """Start all processes.

        Raises:
            RunError: a process does not start; then none is left running.
        """
        self._run_dir.mkdir(parents=True, exist_ok=True)
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self.lookupd.start()
            self.lookupd.wait_until_ready()  # an nsqd that finds none tries again only later
            for member in self.nsqds:
                member.start()
            for member in self.nsqds:
                member.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes, the nsqds first, also if one of them cannot be ended."""
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.stop)

    def restart_dead(self) -> list[str]:
        """Start processes again that have ended by themselves; returns their names.

        Raises:
            RunError: a process does not come back.
        """
        dead = [member for member in self.members if member.has_ended()]
        for member in dead:
            member.start()
        for member in dead:
            member.wait_until_ready()
        return [member.name for member in dead]

    def state(self) -> dict[str, Any]:
        """Names, process ids, ports and numbers of starts."""
        return {member.name: member.state() for member in self.members}

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


class App(SupervisedProcess):
    """The Spark application: a process that reads the topic until it gets the signal to finish.

    Args:
        folders: the run's folders.
        flags: the flags of `sparq pipeline`.
        module: the program.
    """

    def __init__(
        self, folders: Folders, flags: Sequence[str] = (), module: str = APPLICATION
    ) -> None:
        self._run = folders.run
        self._logged = 0
        command = [sys.executable, "-m", module, *flags]
        super().__init__("sparq pipeline", command, folders.logs / "app.log")

    def start(self) -> None:
        """Start the application, or start it again from its checkpoint."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # `mistake` must not find the message of an earlier start.
        self._logged = self.log.stat().st_size if self.log.exists() else 0
        super().start()

    def status(self) -> dict[str, Any]:
        """The newest `app.json`; empty before the application has written it."""
        return read_json(self._run / "app.json")

    def mistake(self) -> str:
        """The application's message if it ended before it had started up; otherwise empty."""
        if self.status().get("pid") == self.pid:
            return ""
        with self.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._logged)
            mistakes = [line for line in log if line.startswith(MISTAKE)]
        return mistakes[-1].removeprefix(MISTAKE).strip() if mistakes else ""

    def finish(self) -> None:
        """Signal that no more clicks will come."""
        (self._run / "finish").touch()
