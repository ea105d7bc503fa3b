"""Compare this checkout with another commit of it: `python -m bench.against COMMIT`.

Each line of the table (`bench.lines`) runs in turn against three nsqds: this checkout's, the other
commit's, and a second one of the other commit, as a control. All three use the installed packages
and sync before each OK, or with `--later` by NSQ's policy. To measure an option that is off by
default, give it to this checkout's nsqd only: `--flag=--max-attempts=5`.

A figure is the median of the rounds' ratios, so that a busy minute of the machine affects both
sides. The control's ratio shows the noise of the machine: a line counts as slower, or as using more
CPU, only if its ratio is beyond 3 % and differs from the control's by more than 3 %.

On a machine that is too noisy for 3 %, `--instructions` counts instructions (`bench.instructions`).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import instructions
from bench.lines import LINES
from bench.peers import Contestant
from bench.peers.nsq import Sparq
from bench.table import Result, Servers, measure, row

ROOT = Path(__file__).parents[1]
ROUNDS = 5
SECONDS = 0.5
LIMIT = 0.03


class UnknownCommitError(Exception):
    """Git does not know the commit, or this is not a git checkout."""


class Ratios(NamedTuple):
    """The ratios of one figure of a line.

    Attributes:
        new: this checkout's figure divided by the other commit's.
        control: the figure of the other commit's second nsqd divided by that of its first.
    """

    new: float
    control: float

    def is_beyond(self, sign: int) -> bool:
        """Whether it is larger (`sign` 1) or smaller (-1) by more than the limit and the noise."""
        by, noise = sign * (self.new - 1), sign * (self.new - self.control)
        return by > LIMIT and noise > LIMIT


def extract(commit: str, folder: Path) -> Path:
    """Write a commit's `src` into a folder, and return its path.

    Raises:
        UnknownCommitError: with git's error message.
    """
    command = ["git", "-C", str(ROOT), "archive", commit, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise UnknownCommitError(done.stderr.decode(errors="replace").strip())
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    return folder / "src"


def contestants(
    old: Path, kind: type[Sparq], flags: Sequence[str], more: Sequence[str]
) -> list[Contestant]:
    """This checkout, with `more` flags, the other commit, and the control."""
    return [
        Contestant(key, key, kind, (*flags, *extra), environment={"PYTHONPATH": str(source)})
        for key, source, extra in (
            ("new", ROOT / "src", more),
            ("old", old, ()),
            ("control", old, ()),
        )
    ]


def ratios(result: Result, figure: str) -> Ratios:
    """Medians, over the rounds, of the ratios of a figure."""
    new, old, control = (
        [getattr(each, figure) for each in result.cells[key].rounds]
        for key in ("new", "old", "control")
    )
    return Ratios(
        statistics.median(ours / theirs for ours, theirs in zip(new, old, strict=True)),
        statistics.median(again / theirs for again, theirs in zip(control, old, strict=True)),
    )


def line(result: Result) -> tuple[str, bool]:
    """A line as text, and whether it is neither slower nor uses more CPU."""
    rates, costs = ratios(result, "rate"), ratios(result, "server_us")
    lost = rates.is_beyond(-1), costs.is_beyond(1)
    words = [word for word, is_lost in zip(("SLOWER", "DEARER"), lost, strict=True) if is_lost]
    shown = [f"{each:.3f}" for each in (rates.new, rates.control, costs.new, costs.control)]
    return f"{row(result.name, shown)}  {' '.join(words)}".rstrip(), not any(lost)


def compare(options: argparse.Namespace) -> bool:
    """Measure and print; return whether no line lost more than the limit.

    Raises:
        UnknownCommitError: see `extract`.
    """
    where = instructions.MEMORY if options.instructions else "."
    holds = True
    with tempfile.TemporaryDirectory(prefix="sparq-bench-", dir=where) as name:
        folder = Path(name).resolve()
        servers = Servers(folder / "peers")
        source = extract(options.commit, folder)
        kind = instructions.CountedNsqd if options.instructions else Sparq
        flags = ("--sync-every=2500",) if options.later else ()
        able = contestants(source, kind, flags, options.flag)
        lines = [each for each in LINES if options.only in each.name]
        try:
            if options.instructions:
                new, old, _ = map(servers.peer, able)
                return instructions.compare(new, old, lines, options.rounds)
            print(row("", ("rate", "control", "CPU", "control")), flush=True)
            for each in lines:
                text, is_kept = line(measure(each, able, servers, options.rounds, options.seconds))
                print(text, flush=True)
                holds = holds and is_kept
        finally:
            servers.close()
    return holds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 if a line lost more than the limit."""
    parser = argparse.ArgumentParser(
        prog="bench.against",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--only", default="", help="run only lines whose name contains this text")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions; needs valgrind"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="minimum length of a run")
    parser.add_argument("--later", action="store_true", help="run nsqd with --sync-every=2500")
    parser.add_argument(
        "--flag", action="append", default=[], help="a further flag of this checkout's nsqd"
    )
    options = parser.parse_args(arguments)
    try:
        holds = compare(options)
    except UnknownCommitError as error:
        print(error, file=sys.stderr)
        return 2
    print("no line lost more than 3 %" if holds else "LOST: see the lines marked SLOWER or DEARER")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
