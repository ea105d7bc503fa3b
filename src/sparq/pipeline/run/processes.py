"""The processes of a run: nsqlookupd, nsqds, the Spark application, and for `sparq up` nsqadmin.

1. The standard ports are used if they are free, otherwise any free ones. A process that is started
   again keeps its ports and data.
2. Every process started here is ended here. Nothing else is touched.
3. nsqadmin listens on this machine only, and every user of the machine may administer, which is its
   default.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from sparq.client.range_reader import RangeReader
from sparq.pipeline.folders import RunError, read_json
from sparq.program.supervised import HOST, SupervisedDaemon, SupervisedProcess

LOOKUPD_PORTS = (4161, 4160)
NSQD_PORTS = (4151, 4150)
"""For HTTP and for TCP clients."""

PORT_STEP = 100
"""Distance between the standard ports of two nsqds, large enough to avoid NSQ's other ports."""

ADMIN_PORT = 4171
START_SECONDS = 30.0
APPLICATION = "sparq.pipeline.app"
MISTAKE = "sparq pipeline: "
"""Prefix of the application's message about a wrong setting. A restart would not help then."""


def free_port(standard: int = 0) -> int:
    """This port if no process of this machine listens on it, otherwise any other such port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, standard))
        except OSError:
            probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Daemon(SupervisedDaemon):
    """One of NSQ's daemons: nsqlookupd, an nsqd, or nsqadmin.

    Args:
        name: its name in messages; it begins with the program's.
        log: the file for its output.
        ports: its standard ports for HTTP and for TCP clients; nsqadmin has none for these.
        flags: its flags, without its addresses.
    """

    def __init__(self, name: str, log: Path, ports: Sequence[int], flags: Sequence[str]) -> None:
        command = [sys.executable, "-m", f"sparq.{name.partition('-')[0]}", *flags]
        used = [free_port(port) for port in ports]
        super().__init__(name, command, log, used[0])
        self.tcp = f"{HOST}:{used[-1]}"
        flags_of_ports = zip(("--http-address", "--tcp-address"), used, strict=False)
        self.command += [f"{flag}={HOST}:{port}" for flag, port in flags_of_ports]

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


class LocalCluster:
    """One nsqlookupd, several nsqds, and an nsqadmin if there is to be one.

    Attributes:
        members: all processes, in the order in which they start.
    """

    def __init__(self, logs: Path, data: Path, nsqds: int = 2, *, has_admin: bool = False) -> None:
        self._folders = [logs, *(data / f"nsqd-{number + 1}" for number in range(nsqds))]
        self.lookupd = Daemon("nsqlookupd", logs / "nsqlookupd.log", LOOKUPD_PORTS, [])
        self.nsqds = [
            Daemon(
                folder.name,
                logs / f"{folder.name}.log",
                [port + number * PORT_STEP for port in NSQD_PORTS],
                [
                    f"--data-path={folder}",
                    f"--lookupd-tcp-address={self.lookupd.tcp}",
                    f"--broadcast-address={HOST}",
                    # Distinct ids: by default two could get the same hash, and message ids must be
                    # unique.
                    f"--node-id={number + 1}",
                ],
            )
            for number, folder in enumerate(self._folders[1:])
        ]
        self.members = [self.lookupd, *self.nsqds]
        if has_admin:
            flags = [f"--lookupd-http-address={self.lookupd.http}"]
            flags += [f"--audit-log={logs / 'nsqadmin_audit.log'}"]
            self.members.append(Daemon("nsqadmin", logs / "nsqadmin.log", [ADMIN_PORT], flags))

    def start(self) -> None:
        """Start all processes.

        Raises:
            RunError: a process does not start; then none is left running.
        """
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self.lookupd.start()
            self.lookupd.wait_until_ready()  # an nsqd that finds none tries again only later
            _start(self.members[1:])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes, nsqlookupd last, also if one of them cannot be ended."""
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.stop)

    def restart_dead(self) -> list[str]:
        """Start processes again that have ended by themselves; returns their names.

        Raises:
            RunError: a process does not come back.
        """
        dead = [member for member in self.members if member.has_ended()]
        _start(dead)
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
            with closing(RangeReader(member.tcp, user_agent="sparq pipeline")) as reader:
                counts[member.name] = reader.ends(topic).end_ordinal
        return counts


def _start(members: Sequence[Daemon]) -> None:
    """Start processes side by side, and wait until each answers."""
    for member in members:
        member.start()
    for member in members:
        member.wait_until_ready()


class App(SupervisedProcess):
    """The Spark application: a process that reads the topic until it gets the signal to finish.

    Args:
        data: the run's data folder.
        flags: the flags of `sparq pipeline`.
    """

    def __init__(self, data: Path, flags: Sequence[str] = ()) -> None:
        self._run = data / "run"
        self._logged = 0
        command = [sys.executable, "-m", APPLICATION, *flags]
        super().__init__("sparq pipeline", command, data / "logs" / "app.log")

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
