"""Compares sparq's client with pynsq, gnsq and ansq on one nsqd: `python -m bench.clients`.

1. Each client is a process with its own environment (`tests/scenarios/interop`). It does the same
   work in the way its documentation shows (`bench/programs`), with its own defaults: sparq and
   ansq on asyncio's loop, pynsq on tornado's, gnsq on gevent's; sparq also on uvloop. `bound` is
   not a client: it measures the minimum cost of awaiting an OK.
2. The clients take turns on each line (A B C, A B C, ...), each run with a new topic. Figures are
   medians. A first run of each client, which is not counted, determines the number of messages.
3. The middle of a run is measured: from the message that ends the warm-up to the last one. Then
   nsqd must report that every message was finished or stored: a client that drops messages fails.
4. If nsqd is busy all the time, the rate is nsqd's, and is marked. nsqd syncs by NSQ's policy,
   since the disk is not measured. `--nsqd go` uses Go's nsqd in memory (`NSQD_GO`: its path): a
   single task mostly waits for nsqd's answer, and Go's nsqd answers faster.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.scenarios.interop.environments import ENVIRONMENTS, made
from tests.support.servers import GoServer, NsqdServer, spawn_nsqd

from bench import client_targets
from bench.generator import BUSY_SHARE
from bench.load import body
from bench.measure import cpu_seconds
from bench.peers import go_nsqd
from bench.peers.nsq import batch

PROGRAMS = Path(__file__).parent / "programs"
CHANNEL = "bench"
SIZE, IN_FLIGHT, BATCH, FILL_BATCH = 200, 2500, 500, 5000
FIRST_TOTAL = 4_000
TOTAL_MAX = {True: 250_000, False: 2_000_000}
"""The maximum, by whether messages are consumed: then they must fit into nsqd's cache."""

WARM_UP_PART = 0.1
SECONDS, ROUNDS = 1.0, 5
DEADLINE_SECONDS, POLL_SECONDS, REST_SECONDS = 60.0, 0.005, 0.05
FLAGS = ("--sync-every=2500", f"--max-rdy-count={IN_FLIGHT}")
GO_FLAGS = (f"--mem-queue-size={go_nsqd.MEMORY_MESSAGES}", f"--max-rdy-count={IN_FLIGHT}")


class ClientError(Exception):
    """A client's program failed; the text describes how."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client that is compared.

    Attributes:
        key: its name on the command line.
        program: the name of its file in `bench/programs` and of its environment.
        ways: the ways it supports, named as in `bench/programs/job.py`.
        uvloop: whether it runs on uvloop.
    """

    key: str
    program: str
    ways: frozenset[str]
    uvloop: bool = False

    def python(self) -> str:
        """The path of its environment's interpreter."""
        if self.program in OURS:
            return sys.executable
        return str(ENVIRONMENTS / self.program / "bin" / "python")

    def missing(self) -> str:
        """The reason why it cannot run here; "" if it can."""
        return "" if self.program in OURS else made(self.program, ENVIRONMENTS / self.program)


OURS = frozenset({"sparq", "bound"})
"""Programs that run in this environment."""

OUR_WAYS = frozenset({"iterate", "handler", "batches", "publish"})
CLIENTS = (
    Client("sparq", "sparq", OUR_WAYS | {"blocking"}),
    Client("sparq-uvloop", "sparq", OUR_WAYS, uvloop=True),
    Client("pynsq", "pynsq", frozenset({"handler", "publish"})),
    Client("gnsq", "gnsq", frozenset({"handler", "publish"})),
    Client("ansq", "ansq", frozenset({"iterate", "publish"})),
    Client("bound", "bound", frozenset({"publish"})),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A workload."""

    name: str
    way: str
    tasks: int = 0

    @property
    def consumes(self) -> bool:
        """Whether the topic needs messages before the run."""
        return self.way != "publish"


LINES = (
    Line("consume + FIN, by iteration", "iterate"),
    Line("consume + FIN, with a handler", "handler"),
    Line(f"consume + FIN, in batches of {BATCH}", "batches"),
    Line("consume + FIN, blocking face", "blocking"),
    Line("publish, awaited, 1 task", "publish", 1),
    Line("publish, awaited, 100 tasks", "publish", 100),
    Line("publish, awaited, 1,000 tasks", "publish", 1000),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The measured part of one run; times in seconds."""

    messages: int
    seconds: float
    client_cpu: float
    server_cpu: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


@dataclass
class Cell:
    """All rounds of one client on one line."""

    rounds: list[Figures] = field(default_factory=list)

    def median(self, figure: Callable[[Figures], float]) -> float:
        """The median of a figure."""
        return statistics.median(map(figure, self.rounds))

    @property
    def speed(self) -> client_targets.Speed:
        """Its medians."""
        cpu_us = self.median(lambda each: each.client_cpu / each.messages * 1e6)
        return client_targets.Speed(self.median(lambda each: each.rate), cpu_us)

    def columns(self) -> tuple[str, ...]:
        """The cells of its row in the table."""
        busy = self.median(lambda each: each.server_cpu / each.seconds)
        mark = "*" if busy > BUSY_SHARE else ""
        return (
            f"{self.speed.rate:,.0f}{mark}",
            f"{self.speed.cpu_us:.2f}",
            f"{self.median(lambda each: each.server_cpu / each.messages * 1e6):.2f}",
            f"{busy:.0%}",
        )


HEADINGS, WIDTHS = ("msg/s", "client CPU us", "nsqd CPU us", "nsqd busy"), (12, 15, 13, 11)
NOTE = "* nsqd had no time left: the client may be faster than this"


def row(name: str, columns: Sequence[str]) -> str:
    """A line of the table."""
    cells = (f"{text:>{width}}" for text, width in zip(columns, WIDTHS, strict=True))
    return f"{name:<36}" + "".join(cells)


class Running:
    """A running program of a client, and its output."""

    def __init__(self, client: Client, job: Mapping[str, Any]) -> None:
        self._name = client.key
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            [client.python(), str(PROGRAMS / f"{client.program}_program.py"), json.dumps(job)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
        )
        self._timer = threading.Timer(DEADLINE_SECONDS, self._process.kill)
        self._timer.start()

    def next(self, event: str) -> dict[str, Any]:
        """Read its next event, which must be of this kind.

        Raises:
            ClientError: it ended, or was killed after its time limit; with the end of its output.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._output.seek(0)
            said = self._output.read()[-2000:].decode(errors="replace")
            raise ClientError(f"{self._name} ended before it said {event!r}:\n{said}")
        facts: dict[str, Any] = json.loads(line)
        assert facts["event"] == event, (self._name, facts)
        return facts

    def close(self) -> None:
        """Kill it."""
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()
        self._output.close()


@contextmanager
def nsqd(kind: str, folder: Path) -> Iterator[NsqdServer]:
    """A running nsqd, sparq's or Go's, with its data in the folder."""
    if kind == "sparq":
        with spawn_nsqd(folder, *FLAGS) as server:
            yield server
        return
    with GoServer(go_nsqd.path(), folder, (f"--data-path={folder}", *GO_FLAGS)) as server:
        server.start()
        yield server


@contextmanager
def running(client: Client, job: Mapping[str, Any]) -> Iterator[Running]:
    """Run a client's program for the duration of the block."""
    program = Running(client, job)
    try:
        yield program
    finally:
        program.close()


class Bench:
    """One nsqd, and runs against it.

    Attributes:
        versions: the versions that each client reported.
    """

    def __init__(self, server: NsqdServer) -> None:
        self.versions: dict[str, str] = {}
        self._server = server
        self._runs = 0
        self._rates: dict[tuple[str, str], float] = {}

    def measure(self, client: Client, line: Line, seconds: float) -> Figures:
        """Do a first run that determines the number of messages, then one of about `seconds`.

        Raises:
            ClientError: not all messages were finished or stored.
        """
        key = (client.key, line.name)
        if key not in self._rates:
            self._rates[key] = self.run(client, line, FIRST_TOTAL).rate
        wanted = int(self._rates[key] * seconds / (1 - WARM_UP_PART))
        total = min(max(wanted, FIRST_TOTAL), TOTAL_MAX[line.consumes])
        return self.run(client, line, total)

    def run(self, client: Client, line: Line, total: int) -> Figures:
        """Do one run with `total` messages, including the warm-up.

        Raises:
            ClientError: not all messages were finished or stored.
        """
        self._runs += 1
        topic = f"clients_{self._runs}"
        self._server.post(f"/topic/create?topic={topic}")
        if line.consumes:
            self._fill(topic, total)
        self._rest()
        job = {
            **{"nsqd": self._server.tcp, "topic": topic, "channel": CHANNEL, "way": line.way},
            **{"total": total, "warm_up": int(total * WARM_UP_PART), "in_flight": IN_FLIGHT},
            **{"tasks": line.tasks, "body_size": SIZE, "batch_size": BATCH},
            "uvloop": client.uvloop,
        }
        with running(client, job) as program:
            figures = self._figures(client, program)
            self._check(client, topic, total, line)
        self._server.post(f"/topic/delete?topic={topic}")
        return figures

    def _figures(self, client: Client, program: Running) -> Figures:
        said = program.next("ready")
        packages = (f"{name} {version}" for name, version in said["packages"].items())
        self.versions[client.key] = ", ".join((*packages, f"Python {said['python']}"))
        program.next("begin")
        before = cpu_seconds(self._server.pid)
        said = program.next("end")
        server_cpu = cpu_seconds(self._server.pid) - before
        return Figures(said["messages"], said["seconds"], said["cpu_seconds"], server_cpu)

    def _fill(self, topic: str, total: int) -> None:
        """Fill a channel with messages."""
        self._server.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
        path = f"/mpub?topic={topic}&binary=true"
        for left in range(total, 0, -FILL_BATCH):
            self._server.post(path, batch(body(SIZE), min(left, FILL_BATCH)))

    def _rest(self) -> None:
        """Wait until nsqd is idle, so that a run does not include work of the last one."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            before = cpu_seconds(self._server.pid)
            time.sleep(REST_SECONDS)
            if cpu_seconds(self._server.pid) - before < REST_SECONDS * 0.1:
                return

    def _check(self, client: Client, topic: str, total: int, line: Line) -> None:
        """Wait until nsqd has stored all published messages, or until all are finished.

        Raises:
            ClientError: that took too long, or a message was not finished or stored exactly once.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (found := self._state(topic, line)) != (wanted := _done(total, line)):
            if time.monotonic() > deadline:
                raise ClientError(f"{client.key}, {line.name}: {found} instead of {wanted}")
            time.sleep(POLL_SECONDS)

    def _state(self, topic: str, line: Line) -> dict[str, int]:
        stats = self._server.get_json(f"/stats?format=json&topic={topic}&include_clients=false")
        found = stats["topics"][0]
        if line.consumes:
            (found,) = found["channels"]
        return {key: found[key] for key in _done(0, line)}


def _done(total: int, line: Line) -> dict[str, int]:
    """Return nsqd's count of finished or stored messages."""
    if not line.consumes:
        return {"message_count": total}
    return {
        **{"message_count": total, "depth": 0, "in_flight_count": 0, "deferred_count": 0},
        **{"requeue_count": 0, "timeout_count": 0},
    }


def present(keys: Sequence[str]) -> list[Client]:
    """The chosen clients (default: all) that can run here; print the names of the others."""
    found = []
    for client in CLIENTS:
        if not keys or client.key in keys:
            if reason := client.missing():
                print(f"absent: {client.key} (needs {reason})")
            else:
                found.append(client)
    return found


def run(
    folder: Path,
    rounds: int = ROUNDS,
    *,
    seconds: float = SECONDS,
    only: str = "",
    chosen: Sequence[str] = (),
    kind: str = "sparq",
) -> None:
    """Measure, print each line when it is complete, then versions and targets.

    Args:
        folder: the folder of nsqd's data; created if it does not exist.
        rounds: the number of runs of each client on each line.
        seconds: the duration of a run.
        only: run only lines whose name contains this text.
        chosen: keys of the clients to compare; empty: all.
        kind: which nsqd, "sparq" or "go".

    Raises:
        ClientError: a client failed.
    """
    lines = [line for line in LINES if only in line.name]
    if not lines:
        return
    clients = present(chosen)
    results: client_targets.Results = {}
    folder.mkdir(parents=True, exist_ok=True)
    with nsqd(kind, folder) as server:
        bench = Bench(server)
        for line in lines:
            able = [each for each in clients if line.way in each.ways]
            cells = in_turn(bench, line, able, rounds, seconds)
            print(row(line.name, HEADINGS))
            for key, cell in cells.items():
                print(row(f"  {key}", cell.columns()), flush=True)
            results[line.name] = {key: cell.speed for key, cell in cells.items()}
    print(NOTE)
    for key, text in bench.versions.items():
        print(f"{key}: {text}")
    print(client_targets.report(results), flush=True)


def in_turn(
    bench: Bench, line: Line, clients: Sequence[Client], rounds: int, seconds: float
) -> dict[str, Cell]:
    """Measure one line, with the clients in turn."""
    cells = {client.key: Cell() for client in clients}
    for _ in range(rounds):
        for client in clients:
            cells[client.key].rounds.append(bench.measure(client, line, seconds))
    return cells


def keys(text: str) -> list[str]:
    """Split comma-separated keys of clients."""
    known = [client.key for client in CLIENTS]
    found = [key for key in text.split(",") if key]
    for key in found:
        if key not in known:
            raise argparse.ArgumentTypeError(f"{key} is none of {', '.join(known)}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; return the exit status: 1 if a client failed."""
    parser = argparse.ArgumentParser(
        prog="bench.clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each line")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a run")
    parser.add_argument("--only", default="", help="only lines whose name contains this")
    parser.add_argument("--clients", type=keys, default=[], help="only these, by comma")
    parser.add_argument("--nsqd", choices=("sparq", "go"), default="sparq", help="whose nsqd")
    options = parser.parse_args(arguments)
    if options.nsqd == "go" and (reason := go_nsqd.missing()):
        parser.error(reason)
    # SIGTERM must unwind the blocks below, which end nsqd and the programs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="sparq-clients-") as name:
        try:
            run(
                Path(name).resolve(),
                options.rounds,
                seconds=options.seconds,
                only=options.only,
                chosen=options.clients,
                kind=options.nsqd,
            )
        except ClientError as error:
            sys.stderr.write(f"bench.clients: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
