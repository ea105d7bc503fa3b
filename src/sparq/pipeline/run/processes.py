"""The processes of a run: nsqlookupd, nsqds, the Spark application, and for `sparq up` nsqadmin.

They use the standard ports if these are free; a process that is started again keeps its ports and
data. nsqadmin listens on this machine only, and every user of the machine may administer.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import product
from pathlib import Path
from typing import Any

from sparq.client.range_reader import RangeReader
from sparq.options.mistakes import Mistake
from sparq.pipeline.folders import read_json
from sparq.program.supervised import HOST, SupervisedDaemon, SupervisedProcess

LOOKUPD_PORTS, NSQD_PORTS = (4161, 4160), (4151, 4150)  # for HTTP and for TCP clients
PORT_STEP = 100  # between the ports of two nsqds: these avoid NSQ's other ports
ADMIN_PORT = 4171
START_SECONDS = 30.0
APPLICATION = "sparq.pipeline.app"
# Prefix of the application's message about a wrong setting. A restart would not help then.
MISTAKE = "sparq pipeline: "


def free_port(standard: int = 0) -> int:
    """This port if no process of this machine listens on it, otherwise any other such port."""
    with socket.socket() as probe, suppress(OSError):
        # Connections that have ended a moment ago do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, bool(standard))
        probe.bind((HOST, standard))
        return int(probe.getsockname()[1])
    return free_port()


class Daemon(SupervisedDaemon):
    """One of NSQ's daemons; its name begins with the program's, its ports with that for HTTP."""

    def __init__(self, name: str, log: Path, ports: Sequence[int], flags: Sequence[str]) -> None:
        command = [sys.executable, "-m", f"sparq.{name.partition('-')[0]}", *flags]
        super().__init__(name, command, log, ports[0])
        self.tcp = f"{HOST}:{ports[-1]}"
        flags_of_ports = zip(("--http-address", "--tcp-address"), ports, strict=False)
        self.command += [f"{flag}={HOST}:{port}" for flag, port in flags_of_ports]


class LocalCluster:
    """One nsqlookupd, several nsqds, perhaps an nsqadmin: `members`, as they are started."""

    def __init__(
        self,
        logs: Path,
        data: Path,
        nsqds: int = 2,
        *,
        has_standard_ports: bool = False,
        has_admin: bool = False,
    ) -> None:
        def daemon(name: str, standard: Iterable[int], *flags: str) -> Daemon:
            ports = [free_port(port if has_standard_ports else 0) for port in standard]
            return Daemon(name, logs / f"{name}.log", ports, flags)

        self._folders = [logs, *(data / f"nsqd-{number + 1}" for number in range(nsqds))]
        self.lookupd = daemon("nsqlookupd", LOOKUPD_PORTS)
        self.nsqds = [
            daemon(
                folder.name,
                [port + number * PORT_STEP for port in NSQD_PORTS],
                *(f"--data-path={folder}", f"--broadcast-address={HOST}"),
                f"--lookupd-tcp-address={self.lookupd.tcp}",
                # By default two could get the same hash, and message ids must be unique.
                f"--node-id={number + 1}",
            )
            for number, folder in enumerate(self._folders[1:])
        ]
        self.members = [self.lookupd, *self.nsqds]
        if has_admin:
            lookupd = f"--lookupd-http-address={self.lookupd.http}"
            audit_log = f"--audit-log={logs / 'nsqadmin_audit.log'}"
            self.members.append(daemon("nsqadmin", [ADMIN_PORT], lookupd, audit_log))

    def start(self, topic: str = "", channels: Iterable[str] = ()) -> None:
        """Start all processes, or none; create a topic with channels on each nsqd."""
        paths = [f"/topic/create?topic={topic}"] if topic else []
        paths += [f"/channel/create?topic={topic}&channel={channel}" for channel in channels]
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            _start([self.lookupd])  # an nsqd that finds none tries again only later
            _start(self.members[1:])
            for member, path in product(self.nsqds, paths):
                status, body = member.request("POST", path)
                if status != http.client.OK:
                    raise Mistake(f"{member.name} refused {path}: {status} {body.decode()}")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes, nsqlookupd last, also if one of them cannot be ended."""
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.stop)

    def restart_dead(self) -> list[str]:
        """Start processes again that have ended; their names. Raises Mistake: one fails."""
        dead = [member for member in self.members if member.has_ended()]
        _start(dead)
        return [member.name for member in dead]

    def state(self) -> dict[str, dict[str, Any]]:
        """The process ids and addresses by name."""
        return {one.name: {"pid": one.pid or None, "http": one.http} for one in self.members}

    def depths(self, topic: str, channels: Iterable[str]) -> dict[str, int] | None:
        """The depth of each channel, summed over all nsqds; None while one does not answer."""
        path = f"/stats?format=json&include_clients=false&include_mem=false&topic={topic}"
        depths = dict.fromkeys(channels, 0)
        try:
            for member in self.nsqds:
                found = json.loads(member.request("GET", path)[1])["topics"]
                if not found:
                    return None
                for one in found[0]["channels"]:
                    depths[one["channel_name"]] = depths.get(one["channel_name"], 0) + one["depth"]
        except (OSError, ValueError, http.client.HTTPException):
            return None
        return {channel: depths[channel] for channel in channels}

    def message_count(self, topic: str) -> int:
        """Messages that the nsqds' logs of the topic have ever taken, incl. dropped segments."""
        count = 0
        for member in self.nsqds:
            with closing(RangeReader(member.tcp, user_agent="sparq pipeline")) as reader:
                count += reader.ends(topic).end_ordinal
        return count


def _start(members: Sequence[Daemon]) -> None:
    """Start processes side by side. Raises Mistake: one ends, or does not answer in time."""
    for member in members:
        member.start()
    for member in members:
        if not member.is_ready(START_SECONDS):
            why = "ended" if member.has_ended() else f"did not answer within {START_SECONDS:.0f} s"
            raise Mistake(f"{member.name} {why} at start-up; see its log: {member.log}")


class App(SupervisedProcess):
    """The Spark application: a process that reads the topic until it gets the signal to finish."""

    def __init__(self, data: Path, flags: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", APPLICATION, *flags]
        super().__init__("sparq pipeline", command, data / "logs" / "app.log")
        self._run = data / "run"
        self._logged = 0

    def start(self) -> None:
        """Start the application, or start it again from its checkpoint."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # `mistake` must not find the message of an earlier start.
        self._logged = self.log.stat().st_size if self.log.exists() else 0
        super().start()

    def mistake(self) -> str:
        """The application's message if it ended before it had started up; otherwise empty."""
        if read_json(self._run / "app.json").get("pid") == self.pid:
            return ""
        with self.log.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._logged)
            mistakes = [line for line in log if line.startswith(MISTAKE)]
        return mistakes[-1].removeprefix(MISTAKE).strip() if mistakes else ""

    def finish(self) -> None:
        """Signal that no more clicks will come."""
        (self._run / "finish").touch()
