"""Compares sparq's client with pynsq, gnsq and ansq on one nsqd: `python -m bench.clients`.

1. Each client is a process with its own environment (`tests/scenarios/interop`). It does the same
   work in the way its documentation shows (`bench/programs`), with its own defaults: sparq and
   ansq on asyncio's loop, pynsq on tornado's, gnsq on gevent's; sparq also on uvloop.
2. The clients take turns on each line (A B C, A B C, ...), each run with a new topic. Figures are
   medians.
3. nsqd counts the messages that are finished or stored, from the warm-up's end on. A client that
   stands still, requeues or lets a message time out fails.
4. If nsqd is busy all the time, the rate is nsqd's, and is marked. nsqd syncs by NSQ's policy,
   since the disk is not measured. `--nsqd go` uses Go's nsqd in memory (`NSQD_GO`: its path): a
   single task mostly waits for nsqd's answer, and Go's nsqd answers faster.
5. The targets are ratios of rates to the fastest other client. A consumer is compared with the
   fastest on any consuming line, since users who switch to sparq can choose how to consume.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.scenarios.interop.environments import ENVIRONMENTS, made
from tests.support.servers import GoServer, NsqdServer, spawn_nsqd

from bench.generator import Figures, Mark
from bench.measure import cpu_seconds
from bench.peers.nsq import MEMORY_MESSAGES, GoNsqd, batch, go_path
from bench.peers.peer import random_body
from bench.table import Result, in_turn, text

PROGRAMS = Path(__file__).parent / "programs"
CHANNEL = "bench"
SIZE, IN_FLIGHT, BATCH = 200, 2500, 500
FILL_BATCH, FILL_BATCHES = 5_000, 50
"""Messages to consume: they must fit into nsqd's cache."""
WARM_UP = 400
SECONDS, ROUNDS = 1.0, 5
DEADLINE_SECONDS, POLL_SECONDS, REST_SECONDS = 60.0, 0.05, 0.2
FLAGS = ("--sync-every=2500", f"--max-rdy-count={IN_FLIGHT}")
GO_FLAGS = (f"--mem-queue-size={MEMORY_MESSAGES}", f"--max-rdy-count={IN_FLIGHT}")
HEADINGS = ("msg/s", "client us", "nsqd us", "nsqd busy", "", "")
NOTE = "* nsqd had no time left: the client may be faster than this"


class ClientError(Exception):
    """A client's program failed; the text describes how."""


class Client(NamedTuple):
    """A client that is compared.

    Attributes:
        program: the name of its file in `bench/programs` and of its environment.
        ways: the ways it supports, named as in `bench/programs/job.py`.
        uvloop: whether it runs on uvloop.
    """

    program: str
    ways: str
    uvloop: bool = False

    def missing(self) -> str:
        """The reason why it cannot run here; "" if it can."""
        return made(self.program, ENVIRONMENTS / self.program) if self.program in OTHERS else ""


CLIENTS = {
    "sparq": Client("sparq", "iterate handler batches publish blocking"),
    "sparq-uvloop": Client("sparq", "iterate handler batches publish", uvloop=True),
    "pynsq": Client("pynsq", "handler publish"),
    "gnsq": Client("gnsq", "handler publish"),
    "ansq": Client("ansq", "iterate publish"),
}
OTHERS = ("pynsq", "gnsq", "ansq")


class Line(NamedTuple):
    """A workload, and at least how many times the fastest other client's rate sparq must have."""

    name: str
    way: str
    tasks: int = 0
    target: float = 0

    @property
    def consumes(self) -> bool:
        """Whether the topic needs messages before the run."""
        return self.way != "publish"


LINES = (
    Line("consume + FIN, by iteration", "iterate", target=5),
    Line("consume + FIN, with a handler", "handler", target=5),
    Line(f"consume + FIN, in batches of {BATCH}", "batches", target=20),
    Line("consume + FIN, blocking face", "blocking"),
    Line("publish, awaited, 1 task", "publish", 1, 3),
    Line("publish, awaited, 100 tasks", "publish", 100, 3),
    Line("publish, awaited, 1,000 tasks", "publish", 1000, 3),
)


@contextmanager
def running(client: Client, job: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A client's program for the duration of the block.

    Raises:
        ClientError: it ended by itself; with the end of its output.
    """
    environment = ENVIRONMENTS / client.program / "bin" / "python"
    python = str(environment) if client.program in OTHERS else sys.executable
    words = [python, str(PROGRAMS / f"{client.program}_program.py"), json.dumps(job)]
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
    ):
        try:
            yield process
            if process.poll() is not None:
                output.seek(0)
                said = output.read()[-2000:].decode(errors="replace")
                raise ClientError(f"{client.program} ended by itself:\n{said}")
        finally:
            process.kill()


@contextmanager
def nsqd(kind: str, folder: Path) -> Iterator[NsqdServer]:
    """A running nsqd, sparq's or Go's, with its data in the folder."""
    if kind == "sparq":
        with spawn_nsqd(folder, *FLAGS) as server:
            yield server
        return
    with GoServer(go_path(), folder, (f"--data-path={folder}", *GO_FLAGS)) as server:
        server.start()
        yield server


class Bench:
    """One nsqd, and runs against it."""

    def __init__(self, server: NsqdServer) -> None:
        self._server = server
        self._runs = 0

    def run(self, key: str, line: Line, seconds: float) -> Figures:
        """Do one run. The server of the figures is the client, and the load nsqd.

        Raises:
            ClientError: the client ended, stood still, or lost a message.
        """
        client, server = CLIENTS[key], self._server
        self._runs += 1
        topic = f"clients_{self._runs}"
        server.post(f"/topic/create?topic={topic}")
        if line.consumes:
            server.post(f"/channel/create?topic={topic}&channel={CHANNEL}")
            bodies = batch(random_body(SIZE), FILL_BATCH)
            for _ in range(FILL_BATCHES):
                server.post(f"/mpub?topic={topic}&binary=true", bodies)
        time.sleep(REST_SECONDS)  # so that a run does not include work of the last one
        job = {
            **{"nsqd": server.tcp, "topic": topic, "channel": CHANNEL, "way": line.way},
            **{"in_flight": IN_FLIGHT, "tasks": line.tasks, "body_size": SIZE},
            **{"batch_size": BATCH, "uvloop": client.uvloop},
        }
        with running(client, job) as process:
            first, last = self._watch(process, topic, line, seconds)
        server.post(f"/topic/delete?topic={topic}")
        return first.until(last)

    def _watch(
        self, process: subprocess.Popen[bytes], topic: str, line: Line, seconds: float
    ) -> tuple[Mark, Mark]:
        """The first mark after the warm-up, and one `seconds` later or before the end."""
        found: list[Mark] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while process.poll() is None:
            now = self._mark(process.pid, topic, line)
            if line.consumes and now.messages == FILL_BATCH * FILL_BATCHES and len(found) > 1:
                break
            if now.messages >= WARM_UP:
                found.append(now)
                if len(found) > 1 and now.wall - found[0].wall >= seconds:
                    break
            if time.monotonic() > deadline:
                raise ClientError(f"{line.name}: {now.messages:,} messages at the end")
            time.sleep(POLL_SECONDS)
        if len(found) < 2:
            return Mark(0, 0, 0, 0), Mark(1, 0, 0, 0)
        return found[0], found[-1]

    def _mark(self, pid: int, topic: str, line: Line) -> Mark:
        path = f"/stats?format=json&topic={topic}&include_clients=false"
        (stats,) = self._server.get_json(path)["topics"]
        count = int(stats["message_count"])
        if line.consumes:
            (channel,) = stats["channels"]
            if channel["requeue_count"] or channel["timeout_count"]:
                raise ClientError(f"{line.name}: messages came back: {channel}")
            count -= channel["depth"] + channel["in_flight_count"]
        return Mark(time.monotonic(), cpu_seconds(pid), cpu_seconds(self._server.pid), count)


def present(chosen: Sequence[str]) -> dict[str, Client]:
    """The chosen clients (default: all) that can run here; print the names of the others."""
    found = {}
    for key, client in CLIENTS.items():
        if not chosen or key in chosen:
            if reason := client.missing():
                print(f"absent: {key} (needs {reason})")
            else:
                found[key] = client
    return found


def verdicts(results: Mapping[str, Result]) -> Iterator[str]:
    """One line of text for each figure of sparq that has a target and a rival."""
    for line in LINES:
        if line.name not in results or not line.target:
            continue
        names = [each.name for each in LINES if each.consumes and line.consumes] or [line.name]
        others = {
            key: cell.median("rate")
            for name in names
            for key, cell in (results[name].cells.items() if name in results else ())
            if key in OTHERS
        }
        for key, cell in results[line.name].cells.items() if others else ():
            if key.startswith("sparq"):
                best = max(others, key=others.__getitem__)
                found = cell.median("rate") / others[best]
                word = "met" if found >= line.target else "MISSED"
                what = f"{line.name:<34}{key:<14}{found:>8.2f} x {best:<6}"
                yield f"  {what}  at least {line.target:g}: {word}"


def run(
    folder: Path,
    rounds: int = ROUNDS,
    *,
    only: str = "",
    seconds: float = SECONDS,
    chosen: Sequence[str] = (),
    kind: str = "sparq",
) -> None:
    """Measure, print each line when it is complete, then the targets.

    Args:
        folder: the folder of nsqd's data; created if it does not exist.
        rounds: the number of runs of each client on each line.
        only: run only lines whose name contains this text.
        seconds: the duration of a run.
        chosen: keys of the clients to compare; empty: all.
        kind: which nsqd, "sparq" or "go".

    Raises:
        ClientError: a client failed.
    """
    lines = [line for line in LINES if only in line.name]
    if not lines:
        return
    clients = present(chosen)
    results: dict[str, Result] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with nsqd(kind, folder) as server:
        bench = Bench(server)
        for line in lines:
            able = {key: key for key, each in clients.items() if line.way in each.ways.split()}
            run_one = partial(bench.run, line=line, seconds=seconds)
            results[line.name] = in_turn(line.name, able, rounds, run_one)
            print(text(results[line.name], HEADINGS), flush=True)
    print(NOTE)
    if found := list(verdicts(results)):
        print("\n".join(["targets, as ratios to the best of the others:", *found]), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench; return the exit status: 1 if a client failed."""
    parser = argparse.ArgumentParser(
        prog="bench.clients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=int, default=ROUNDS, help="rounds of each line")
    add("--seconds", type=float, default=SECONDS, help="of a run")
    add("--only", default="", help="only lines whose name contains this")
    add("--clients", default="", help="only these, by comma")
    add("--nsqd", choices=("sparq", "go"), default="sparq", help="whose nsqd")
    options = parser.parse_args(arguments)
    if options.nsqd == "go" and (reason := GoNsqd.missing()):
        parser.error(reason)
    chosen = [key for key in options.clients.split(",") if key]
    if unknown := [key for key in chosen if key not in CLIENTS]:
        parser.error(f"{unknown[0]} is none of {', '.join(CLIENTS)}")
    # SIGTERM must unwind the blocks below, which end nsqd and the programs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="sparq-clients-") as name:
        try:
            run(
                Path(name).resolve(),
                options.rounds,
                only=options.only,
                seconds=options.seconds,
                chosen=chosen,
                kind=options.nsqd,
            )
        except ClientError as error:
            sys.stderr.write(f"bench.clients: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
