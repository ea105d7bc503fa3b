"""How long nsqd takes to start with a large backlog: `python -m bench.restart`.

For each backlog, the bench makes a data path, starts an nsqd on it, and measures the time until a
consumer has its first message; then again after a clean stop, and after kill -9. It also prints the
memory at that moment and its peak. An nsqd without messages is measured for comparison.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.servers import NsqdServer
from tests.support.v2_client import OK, V2Client

from bench import backlog
from bench.backlog import CHANNEL, TOPIC, Backlog
from bench.measure import cpu_seconds, memory_mib
from sparq.protocol.commands import pub, rdy, sub

DEADLINE_SECONDS = 60.0
POLL_SECONDS = 0.005
REST_SECONDS = 4.0
"""Time between a first message and the stop: nsqd's work after a start is done by then."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of nsqd.

    Attributes:
        name: the backlog, and how nsqd was stopped before.
        ready_seconds: until nsqd accepted a connection.
        delivery_seconds: until a consumer had a message; if none is queued, one is published.
        cpu_seconds: nsqd's CPU time until then; more reliable on a busy machine.
        memory_mib, peak_mib: resident memory at that moment, and its maximum so far.
    """

    name: str
    ready_seconds: float
    delivery_seconds: float
    cpu_seconds: float
    memory_mib: float
    peak_mib: float

    def line(self) -> str:
        """The figures as a row of the table."""
        return (
            f"{self.name:<44}{self.ready_seconds:>10.2f}{self.delivery_seconds:>14.2f}"
            f"{self.cpu_seconds:>9.2f}{self.memory_mib:>12.0f}{self.peak_mib:>10.0f}"
        )


HEADER = f"{'start':<44}{'ready s':>10}{'delivery s':>14}{'CPU s':>9}{'memory MiB':>12}{'peak':>10}"


def peak_mib(pid: int) -> float:
    """Peak resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def connect(server: NsqdServer) -> V2Client:
    """Connect to nsqd as soon as it accepts connections."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return V2Client(server, seconds=DEADLINE_SECONDS)
        except OSError as error:
            has_ended = server.process is None or server.process.poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise RuntimeError(server.log_text[-2000:]) from error
            time.sleep(POLL_SECONDS)


def first_message(client: V2Client, *, publish: bool) -> None:
    """Subscribe, and wait for the first message."""
    client.send(sub(TOPIC, CHANNEL) + rdy(1))
    if publish:
        client.send(pub(TOPIC, b"hello"))
    client.messages(1)
    assert client.ask(b"") == OK


def measure(server: NsqdServer, name: str, *, publish: bool = False) -> Start:
    """Start nsqd and wait for the first message; nsqd keeps running."""
    began = time.perf_counter()
    server.launch()
    with connect(server) as client:
        ready = time.perf_counter() - began
        first_message(client, publish=publish)
        delivered = time.perf_counter() - began
    pid = server.pid
    return Start(name, ready, delivered, cpu_seconds(pid), memory_mib(pid), peak_mib(pid))


def restarts(
    folder: Path, wanted: Backlog, name: str, rest_seconds: float = REST_SECONDS
) -> list[Start]:
    """Make a data path, and start nsqd on it three times."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if wanted.messages:
        backlog.make(folder, wanted)
    flags = (f"--data-path={folder}", "--broadcast-address=127.0.0.1", "--msg-timeout=10m")
    server = NsqdServer("sparq.nsqd", folder, flags)
    # If no message is ready (none queued, or all but the deferred ones finished), publish one.
    publish = not wanted.messages or wanted.deferred_every > 0
    found = []
    with server:
        for when, end in (("made", 15), ("clean stop", 9), ("kill -9", 9)):
            found.append(measure(server, f"{name}, {when}", publish=publish))
            time.sleep(rest_seconds)
            server.terminate() if end == 15 else server.kill9()
    shutil.rmtree(folder)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument(
        "--only",
        default="",
        help="comma-separated texts: run only backlogs whose name contains one",
    )
    parser.add_argument("--folder", type=Path, help="folder for the data paths")
    options = parser.parse_args(arguments)
    base = Backlog(options.messages)
    chosen = {
        "nothing queued": replace(base, messages=0),
        "one a batch": base,
        "100 a batch": replace(base, per_batch=100),
        "1 % deferred, others finished": replace(base, per_batch=100, deferred_every=100),
        "a tenth requeued": replace(base, per_batch=100, requeued=options.messages // 10),
    }
    words = [word for word in options.only.split(",") if word]
    print(f"{options.messages:,} messages of 200 bytes\n{HEADER}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name, wanted in chosen.items():
            if not words or any(word in name for word in words):
                for start in restarts(Path(folder) / "nsqd", wanted, name):
                    print(start.line(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
