"""`python -m bench`: measure speed and memory, and print the tables.

1. sparq and other brokers (`peers`): every workload, the brokers taking turns.
2. Millions of messages queued (`backlog`): memory, restart after kill -9, drain.
3. The client and pynsq, gnsq and ansq (`clients`): consuming and publishing.
4. With `--parts pipeline` only: the clicks pipeline and plain Spark (`bench.pipeline`).

`--only TEXT` selects, in all four, the lines whose name contains the text.

The measures of the pipeline (`--measures`), and how many minutes each takes at full size with three
rounds (memory: two) on two idle cores. These are estimates for 15,000 clicks/s and, in brackets,
for 4,000 clicks/s:

    parse     2          run     3 (5)         state    14
    sustained 13 (30)    memory  14 (48)       latency   9        all 55 (108)
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import clients, queued, table
from bench.lines import LINES
from bench.peers import BACKLOG, CONTESTANTS, SPEED, present

PARTS = "peers,backlog,clients"
ROUNDS = 5


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def keys(text: str) -> list[str]:
        known = [contestant.key for contestant in CONTESTANTS]
        found = [key for key in text.split(",") if key]
        if unknown := [key for key in found if key not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(known)}")
        return found

    add = parser.add_argument
    add("--rounds", type=int, help="rounds of each workload (5; pipeline: 3)")
    add("--only", default="", help="run only lines whose name contains this text")
    add("--parts", default=PARTS, help="which tables, comma-separated")
    add("--peers", type=keys, default=[], help="only these contestants, comma-separated")
    add("--seconds", type=float, default=table.RUN_SECONDS, help="minimum length of a run")
    add("--queued", type=int, default=queued.MESSAGES, help="messages in the part backlog")
    add("--markdown", type=Path, help="also write the table of brokers to this file")
    add("--measures", default="", help="measures of the pipeline, comma-separated")
    add("--clicks", type=int, help="clicks in each measure of the pipeline")
    add("--log", type=Path, help="log of a real site, for the measure parse")
    add("--json", type=Path, help="also write the pipeline's figures to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the selected parts and print their tables."""
    options = options_of(arguments)
    rounds = options.rounds or ROUNDS
    # The `finally` blocks below must end the servers when the bench gets SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="sparq-bench-", dir=".") as name:
        folder = Path(name).resolve()
        if "peers" in options.parts:
            run_peers(folder / "peers", rounds, options)
        if "backlog" in options.parts and options.only in queued.NAME:
            queued.run(folder / queued.NAME, options.queued, present(BACKLOG, options.peers))
        if "clients" in options.parts:
            clients.run(folder / "clients", rounds, only=options.only)
        if "pipeline" in options.parts:
            run_pipeline(folder / "pipeline", options)


def run_peers(folder: Path, rounds: int, options: argparse.Namespace) -> None:
    """Run the part `peers`; print each line when it is done, and then the targets."""
    lines = [line for line in LINES if options.only in line.name]
    if not lines:
        return
    results = []
    able = present(SPEED, options.peers)
    for result in table.measured(folder, lines, able, rounds, options.seconds):
        results.append(result)
        print(table.text(result), flush=True)
    print(f"{table.NOTE}\n{table.report(results)}", flush=True)
    if options.markdown:
        options.markdown.write_text(table.markdown(results) + "\n", encoding="utf-8")


def run_pipeline(folder: Path, options: argparse.Namespace) -> None:
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
    rounds = options.rounds or pipeline.ROUNDS
    clicks, to, log = options.clicks, options.json, options.log
    if pipeline.main(folder, rounds, clicks, names, to, log=log):
        sys.exit(1)


if __name__ == "__main__":
    main()
