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
import io
import os
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import instructions
from bench.generator import Figures
from bench.lines import LINES
from bench.peers import SPEED, Contestant, never_missing
from bench.peers.nsq import Sparq, SparqLater
from bench.peers.peer import Peer
from bench.results import Result
from bench.table import Servers, measure

ROOT = Path(__file__).parents[1]
ROUNDS = 5
SECONDS = 0.5
LIMIT = 0.03

Figure = Callable[[Figures], float]


class UnknownCommitError(Exception):
    """Git does not know the commit, or this is not a git checkout."""


@dataclass(frozen=True, slots=True)
class Ratios:
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
    command = ["git", "-C", str(ROOT), "archive", "--format=zip", commit, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise UnknownCommitError(done.stderr.decode(errors="replace").strip())
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder)
    return folder / "src"


def nsqd_from(source: Path, kind: type[Sparq], flags: Sequence[str] = ()) -> Callable[[Path], Peer]:
    """A function that makes nsqds which run a source tree, with further flags."""
    flagged: type[Sparq] = type(kind.__name__, (kind,), {"flags": (*kind.flags, *flags)})

    def make(folder: Path) -> Peer:
        peer = flagged(folder)
        inherited = peer.program.environment or os.environ
        peer.program.environment = {**inherited, "PYTHONPATH": str(source)}
        return peer

    return make


def contestants(old: Path, kind: type[Sparq], flags: Sequence[str] = ()) -> list[Contestant]:
    """This checkout, with further flags, the other commit, and the control."""
    return [
        Contestant(key, label, nsqd_from(source, kind, extra), never_missing, SPEED)
        for key, label, source, extra in (
            ("new", "this checkout", ROOT / "src", flags),
            ("old", "the other commit", old, ()),
            ("control", "the other commit again", old, ()),
        )
    ]


def rate(figures: Figures) -> float:
    """Messages per second."""
    return figures.rate


def cpu(figures: Figures) -> float:
    """Microseconds of nsqd's CPU per message."""
    return figures.server_us


def ratios(result: Result, figure: Figure) -> Ratios:
    """Medians, over the rounds, of the ratios of a figure."""
    new, old, control = (
        [figure(each) for each in result.cells[key].rounds] for key in ("new", "old", "control")
    )
    return Ratios(
        statistics.median(ours / theirs for ours, theirs in zip(new, old, strict=True)),
        statistics.median(again / theirs for again, theirs in zip(control, old, strict=True)),
    )


def line(result: Result) -> tuple[str, bool]:
    """A line as text, and whether it is neither slower nor uses more CPU."""
    rates, costs = ratios(result, rate), ratios(result, cpu)
    found = [
        word
        for word, lost in (("SLOWER", rates.is_beyond(-1)), ("DEARER", costs.is_beyond(1)))
        if lost
    ]
    text = (
        f"{result.name:<44}{rates.new:>8.3f}{rates.control:>10.3f}"
        f"{costs.new:>10.3f}{costs.control:>10.3f}  {' '.join(found)}"
    )
    return text.rstrip(), not found


def compare(
    commit: str,
    *,
    only: str,
    rounds: int,
    seconds: float,
    kind: type[Sparq] = Sparq,
    flags: Sequence[str] = (),
) -> bool:
    """Measure and print; return whether no line lost more than the limit.

    Raises:
        UnknownCommitError: see `extract`.
    """
    holds = True
    with tempfile.TemporaryDirectory(prefix="sparq-bench-", dir=".") as name:
        folder = Path(name).resolve()
        servers = Servers(folder / "peers")
        able = contestants(extract(commit, folder), kind, flags)
        print(f"{'':<44}{'rate':>8}{'control':>10}{'CPU':>10}{'control':>10}", flush=True)
        try:
            for each in LINES:
                if only in each.name:
                    text, lost_nothing = line(measure(each, able, servers, rounds, seconds))
                    print(text, flush=True)
                    holds = holds and lost_nothing
        finally:
            servers.close()
    return holds


def count(commit: str, *, only: str, rounds: int, flags: Sequence[str] = ()) -> bool:
    """Count instructions and print; return whether no line needs over 3 % more.

    Raises:
        UnknownCommitError: see `extract`.
    """
    with tempfile.TemporaryDirectory(prefix="sparq-bench-", dir=instructions.MEMORY) as name:
        folder = Path(name)
        servers = Servers(folder / "peers")
        new, old, _ = contestants(extract(commit, folder), instructions.CountedNsqd, flags)
        try:
            new_peer, old_peer = servers.peer(new), servers.peer(old)
            return instructions.compare(new_peer, old_peer, only=only, rounds=rounds)
        finally:
            servers.close()


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
        "--flag",
        action="append",
        default=[],
        help="a further flag of this checkout's nsqd; repeatable",
    )
    options = parser.parse_args(arguments)
    kind = SparqLater if options.later else Sparq
    common = {"only": options.only, "rounds": options.rounds, "flags": options.flag}
    try:
        if options.instructions:
            holds = count(options.commit, **common)
        else:
            holds = compare(options.commit, seconds=options.seconds, kind=kind, **common)
    except UnknownCommitError as error:
        print(error, file=sys.stderr)
        return 2
    print("no line lost more than 3 %" if holds else "LOST: see the lines marked SLOWER or DEARER")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
