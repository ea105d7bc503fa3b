"""`python -m bench`: measure speed and memory, and print the tables.

1. nsqd and its bound, alternating: the cost of sparq above that of moving the bytes.
2. sparq and other brokers (`bench.table`): every workload, the brokers taking turns.
3. Millions of messages queued (`bench.queued`): memory, restart after kill -9, drain.
4. The client and pynsq, gnsq and ansq (`bench.clients`): consuming and publishing.
5. With `--parts pipeline` only: the clicks pipeline and plain Spark (`bench.pipeline`).

`--only TEXT` selects, in all five, the lines whose name contains the text.

The measures of the pipeline (`--measures`), and how many minutes each takes at full size with three
rounds (memory: two) on two idle cores. These are estimates for 15,000 clicks/s and, in brackets,
for 4,000 clicks/s:

    parse     2          run     3 (5)         state    14
    sustained 13 (30)    memory  14 (48)       latency   9        all 55 (108)
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
from tests.support.servers import Server, free_port, spawn_nsqd

from bench import clients, load, queued, table, workloads
from bench.measure import HEADER, Row, memory_mib
from bench.peers import CONTESTANTS, chosen, present
from bench.results import markdown
from bench.workloads import SIZE, Target, Workload

PARTS = "bounds,peers,backlog,clients"
ROUNDS = 5
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
    """The process and the port of a running nsqd."""
    return Target(server.pid, server.tcp_port)


def compare(
    name: str, workload: Workload, moved: tuple[int, int, int], rounds: int, folder: Path
) -> None:
    """Print one line of the table; nsqd and the bound alternate."""
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
    """Print the publish rate to a topic with 1 channel and with 20."""
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
    """Print nsqd's memory with five million messages queued."""
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
    """Print nsqd and its bound, the cost of many channels, and memory."""
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
    """Comma-separated keys of contestants, as a list."""
    known = [contestant.key for contestant in CONTESTANTS]
    found = [key for key in text.split(",") if key]
    for key in found:
        if key not in known:
            raise argparse.ArgumentTypeError(f"{key} is none of {', '.join(known)}")
    return found


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="rounds of each workload (5; pipeline: 3)")
    parser.add_argument("--only", default="", help="run only lines whose name contains this text")
    parser.add_argument("--parts", default=PARTS, help="which tables, comma-separated")
    parser.add_argument(
        "--peers", type=keys, default=[], help="only these contestants, comma-separated"
    )
    parser.add_argument(
        "--seconds", type=float, default=table.RUN_SECONDS, help="minimum length of a run"
    )
    parser.add_argument(
        "--queued", type=int, default=queued.MESSAGES, help="messages queued in the part backlog"
    )
    parser.add_argument(
        "--markdown", type=Path, help="also write the table of brokers to this file"
    )
    parser.add_argument("--measures", default="", help="measures of the pipeline, comma-separated")
    parser.add_argument("--clicks", type=int, help="clicks in each measure of the pipeline")
    parser.add_argument("--log", type=Path, help="log of a real site, for the measure parse")
    parser.add_argument("--json", type=Path, help="also write the pipeline's figures to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the selected parts and print their tables."""
    options = options_of(arguments)
    asked, options.rounds = options.rounds, options.rounds or ROUNDS
    # The `finally` blocks below must end the servers when the bench gets SIGTERM, too.
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
        if "pipeline" in options.parts:
            run_pipeline(folder / "pipeline", asked, options)


def run_pipeline(folder: Path, rounds: int | None, options: argparse.Namespace) -> None:
    """Run the part `pipeline`; exit with status 1 if a measure fails."""
    from bench import pipeline  # imported here: the other parts need no Spark

    names = [name for name in pipeline.MEASURES if options.only in name]
    if options.measures:
        wanted = options.measures.split(",")
        if unknown := [name for name in wanted if name not in pipeline.MEASURES]:
            known = ", ".join(pipeline.MEASURES)
            sys.exit(f"bench: --measures={options.measures}: {unknown[0]!r} is none of {known}")
        names = wanted
    if options.log and not options.log.is_file():
        sys.exit(f"bench: --log={options.log} is no file")
    rounds = rounds or pipeline.ROUNDS
    clicks, to, log = options.clicks, options.json, options.log
    if pipeline.main(folder, rounds, clicks, names, to, log=log):
        sys.exit(1)


if __name__ == "__main__":
    main()
