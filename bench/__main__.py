"""`python -m bench`: the tables of speed and memory.

1. nsqd and its bound in turn, medians of the rounds: what sparq costs above moving the bytes.
2. sparq beside other brokers (`bench.table`): every workload, everybody in turn.
3. Millions of messages queued (`bench.queued`): memory, restart after kill -9, drain.
4. The client beside pynsq, gnsq and ansq (`bench.clients`): consuming and publishing.

`--only` takes the lines whose name contains a text, of all four.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop
from tests.servers import Server, free_port, spawn_nsqd

from bench import clients, load, queued, table, workloads
from bench.measure import HEADER, Row, memory_mib
from bench.peers import CONTESTANTS, chosen, present
from bench.results import markdown
from bench.workloads import SIZE, Target, Workload

PARTS = "bounds,peers,backlog,clients"
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


def bounds(rounds: int, only: str, folder: Path) -> None:
    """nsqd beside its bound, many channels, memory."""
    mpub_size = len(load.mpub(workloads.MPUB_COUNT, SIZE))
    ok = len(load.OK)
    lines: list[tuple[str, Workload, tuple[int, int, int]]] = [
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
    print(HEADER)
    for line, workload, moved in lines:
        if only in line:
            compare(line, workload, moved, rounds, folder)
    if only in "channels":
        channels(rounds, folder)
    if only in "memory":
        memory(folder)


def keys(text: str) -> list[str]:
    """Names of contestants, by comma."""
    known = [contestant.key for contestant in CONTESTANTS]
    found = [key for key in text.split(",") if key]
    for key in found:
        if key not in known:
            raise argparse.ArgumentTypeError(f"{key} is none of {', '.join(known)}")
    return found


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload")
    parser.add_argument("--only", default="", help="only lines whose name contains this")
    parser.add_argument("--parts", default=PARTS, help="which tables, by comma")
    parser.add_argument("--peers", type=keys, default=[], help="only these contestants, by comma")
    parser.add_argument("--seconds", type=float, default=table.RUN_SECONDS, help="of a run")
    parser.add_argument("--queued", type=int, default=queued.MESSAGES, help="backlog's messages")
    parser.add_argument("--markdown", type=Path, help="write the table with peers here too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for and print the tables."""
    options = options_of(arguments)
    # Servers are ended by what is below, also when somebody ends the bench.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="sparq-bench-", dir=".") as name:
        folder = Path(name).resolve()
        if "bounds" in options.parts:
            bounds(options.rounds, options.only, folder)
        if "peers" in options.parts:
            contestants = present(chosen("speed", options.peers))
            results = table.run(folder / "peers", options, contestants)
            if options.markdown:
                options.markdown.write_text(markdown(results) + "\n", encoding="utf-8")
        if "backlog" in options.parts and options.only in queued.NAME:
            contestants = present(chosen(queued.NAME, options.peers))
            queued.run(folder / queued.NAME, options.queued, contestants)
        if "clients" in options.parts:
            clients.run(folder / "clients", options.rounds, only=options.only)


if __name__ == "__main__":
    main()
