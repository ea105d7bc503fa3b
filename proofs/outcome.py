"""The common parts of all proofs: command line, report, and the result for GUARANTEES.md.

A proof is a module with a function `prove(plan) -> Outcome`, which it passes to `run(...)`:

1. `plan.seed` seeds all of its random generators. The first printed line is the command that
   repeats the run.
2. It ends with one line of figures and with its control: the same proof with a guard switched off,
   which must fail. If the control does not fail, the proof shows nothing and does not hold.
3. If the machine lacks a requirement, it returns `skipped("needs ...")`, which is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from proofs import file_systems
from proofs.file_systems import FILE_SYSTEMS, Disks


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a run.

    Attributes:
        seed: seed of all random generators.
        count: size of the run; the proof's help says what it counts.
        control: whether to run the control too.
        keep: a new folder that keeps the data of the proof; None: its data is deleted.
        file_system: the kind of file system that it runs on; "": that of the temporary folders.
    """

    seed: int
    count: int
    control: bool = True
    keep: Path | None = None
    file_system: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a proof.

    Attributes:
        promises: promises in GUARANTEES.md, such as "P1".
        figures: the line of figures, separated by " · ".
        held: whether the proof holds: no violation, and the control failed.
        control: result of the control; empty: it did not run.
        skipped: "needs ..."; empty: the proof ran.
        verb, repeat, seconds: name, command that repeats it, and duration; filled in by `run`.
    """

    promises: tuple[str, ...]
    figures: str
    held: bool
    control: str = ""
    skipped: str = ""
    verb: str = ""
    repeat: str = ""
    seconds: float = 0.0


def skipped(promises: tuple[str, ...], needs: str) -> Outcome:
    """Result of a proof that this machine cannot run; `needs` must begin with "needs "."""
    assert needs.startswith("needs ")
    return Outcome(promises, "", held=True, skipped=needs)


def progress(text: str) -> None:
    """Show the progress on one line that is overwritten, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r  {text} ", end="", file=sys.stderr, flush=True)


def run(
    verb: str,
    prove: Callable[[Plan], Outcome],
    *,
    count: int,
    of: str,
    disks: Disks = Disks.NONE,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a proof from the command line, and print its report.

    Args:
        verb: its make target.
        prove: the proof.
        count: default of `--count`.
        of: unit of `--count`, for the help.
        disks: whether it can run on several kinds of file systems.
        arguments: command-line arguments; None: those of the process.

    Returns:
        The exit status: 0 if the proof holds or is skipped, else 1.
    """
    parser = argparse.ArgumentParser(
        prog=f"make {verb}", description=sys.modules["__main__"].__doc__
    )
    parser.add_argument("--count", type=int, default=count, help=f"{of} (default {count})")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--no-control", action="store_true", help="leave the control run out")
    parser.add_argument("--keep", type=Path, help="keep what it writes in this new folder")
    parser.add_argument("--json", type=Path, help="write the outcome to this file, too")
    if disks is not Disks.NONE:
        text = "run on a file system of this kind, in an image (needs root)"
        parser.add_argument("--file-system", choices=FILE_SYSTEMS, default="", help=text)
    given = parser.parse_args(arguments)
    repeat = f"make {verb} SEED={given.seed}" + (
        f" N={given.count}" if given.count != count else ""
    )
    kind = "" if disks is Disks.NONE else given.file_system
    if kind and disks is Disks.GIVEN and not file_systems.lacking(kind):
        if file_systems.INSIDE not in os.environ:
            return file_systems.rerun_apart()
        file_systems.use(kind)
    repeat += f" FS={kind}" if kind else ""
    print(f"repeat with: {repeat}", flush=True)
    began = time.monotonic()
    if kind and (needs := file_systems.lacking(kind)):
        outcome = skipped((), needs)
    else:
        outcome = prove(Plan(given.seed, given.count, not given.no_control, given.keep, kind))
    seconds = round(time.monotonic() - began, 1)
    outcome = replace(outcome, verb=verb, repeat=repeat, seconds=seconds)
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(outcome)))
    report(outcome)
    return 0 if outcome.held else 1


def report(outcome: Outcome) -> None:
    """Print the figures, the control and the verdict, or why the proof was skipped."""
    if outcome.skipped:
        print(f"\r{outcome.verb}: skipped: {outcome.skipped}")
        return
    print(f"\r{outcome.figures}")
    if outcome.control:
        print(f"control: {outcome.control}")
    verdict = "holds" if outcome.held else "FAILED"
    print(f"{outcome.verb}: {' '.join(outcome.promises)} {verdict} ({outcome.seconds:.0f} s)")
