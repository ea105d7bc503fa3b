"""`python -m bench`: the table of speeds, nsqd and its bound in turn, medians of the rounds."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from tests.servers import Server, free_port, spawn_nsqd

from bench import load, workloads
from bench.measure import HEADER, Row, memory_mib
from bench.workloads import SIZE, Target, Workload

QUEUED = 5_000_000
CHANNELS = 20
FRAME = SIZE + load.FRAME_OVERHEAD


@contextmanager
def bound(request_size: int, reply_size: int, prime: int = 0) -> Iterator[Target]:
    """A server that moves the same bytes and does nothing else."""
    port = free_port()
    numbers = map(str, (port, request_size, reply_size, prime))
    command = [sys.executable, "-m", "bench.bound", *numbers]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield Target(process.pid, port)
        finally:
            process.kill()


def target_of(server: Server) -> Target:
    """A running nsqd as something to measure."""
    return Target(server.pid, server.tcp_port)


def compare(
    name: str, workload: Workload, moved: tuple[int, int, int], rounds: int, folder: Path
) -> None:
    """One line of the table: A nsqd, B the bound, in turn."""
    ours, theirs = Row(name), Row("bound")
    prime = moved[2]
    for number in range(rounds):
        work = folder / f"{name.replace(' ', '-')}-{number}"
        work.mkdir()
        with spawn_nsqd(work) as server:
            ours.add(*uvloop.run(workload(target_of(server))))
        with bound(*moved) as target:
            task = workloads.deliver(prime, filled=False) if prime else workload
            theirs.add(*uvloop.run(task(target)))
    print(ours.line(theirs), flush=True)


def channels(rounds: int, folder: Path) -> None:
    """What twenty channels cost the publisher."""
    one, many = Row("MPUB, 1 channel"), Row(f"MPUB, {CHANNELS} channels")
    for number in range(rounds):
        for row, count in ((one, 1), (many, CHANNELS)):
            work = folder / f"channels-{count}-{number}"
            work.mkdir()
            with spawn_nsqd(work) as server:
                target = target_of(server)
                uvloop.run(workloads.make_channels(target, count))
                row.add(*uvloop.run(workloads.mpub(target)))
    print(one.line(None))
    print(f"{many.line(None)}   {many.rate / one.rate:.2f} of the rate with 1", flush=True)


def memory(folder: Path) -> None:
    """nsqd's memory with five million messages queued."""
    work = folder / "memory"
    work.mkdir()
    with spawn_nsqd(work) as server:
        target = target_of(server)
        uvloop.run(workloads.make_channels(target, 1))
        empty = memory_mib(server.pid)
        request = load.mpub(workloads.MPUB_COUNT, SIZE)
        count = QUEUED // workloads.MPUB_COUNT
        uvloop.run(load.publish(server.tcp_port, request, count, workloads.FILL_WINDOW))
        full = memory_mib(server.pid)
        print(f"memory with {QUEUED:,} x {SIZE} B queued: {full:.0f} MiB (empty: {empty:.0f} MiB)")


def main() -> None:
    """Run what is asked for and print the table."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload")
    parser.add_argument("--only", default="", help="only lines whose name contains this")
    options = parser.parse_args()
    mpub_size = len(load.mpub(workloads.MPUB_COUNT, SIZE))
    ok = len(load.OK)
    table: list[tuple[str, Workload, tuple[int, int, int]]] = [
        ("MPUB 200 x 200 B pipelined", workloads.mpub, (mpub_size, ok, 0)),
        ("PUB 200 B pipelined", workloads.pub, (len(load.pub(SIZE)), ok, 0)),
        ("PUB 200 B one at a time", workloads.pub_one_at_a_time, (214, ok, 0)),
        ("deliver + FIN, RDY 2500", workloads.deliver(2500), (load.FIN_SIZE, FRAME, 2500)),
        ("deliver + FIN, RDY 200", workloads.deliver(200), (load.FIN_SIZE, FRAME, 200)),
        (
            "deliver + FIN, RDY 2500, from disk",
            workloads.deliver(2500, workloads.COLD_TOTAL),
            (load.FIN_SIZE, FRAME, 2500),
        ),
    ]
    with tempfile.TemporaryDirectory(prefix="sparq-bench-", dir=".") as name:
        folder = Path(name).resolve()
        print(HEADER)
        for line, workload, moved in table:
            if options.only in line:
                compare(line, workload, moved, options.rounds, folder)
        if options.only in "channels":
            channels(options.rounds, folder)
        if options.only in "memory":
            memory(folder)


if __name__ == "__main__":
    main()
