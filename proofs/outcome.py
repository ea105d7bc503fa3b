"""What every proof has in common: its arguments, its report, and its place in GUARANTEES.md.

A proof is a module with a function `prove(plan) -> Outcome` and a `main` that is `run(...)`:

1. Its chances come from `plan.seed` alone; the first line printed is the command that repeats it.
2. It ends with one line of figures, and with its control: the same proof with a guard switched
   off, which must fail. A proof whose control did not fail has shown nothing, and does not hold.
3. What it needs and the machine lacks it says as `skipped("needs ...")`; it is never silent.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Plan:
    """How a proof is to be run.

    Attributes:
        seed: of all chances.
        count: how much: of what, the proof's own help says.
        control: whether the control is run too.
        keep: a new folder in which the data of the proof is to be kept, for a look afterwards;
            None: what the proof writes is removed.
    """

    seed: int
    count: int
    control: bool = True
    keep: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a proof came to.

    Attributes:
        promises: of GUARANTEES.md, as "P1".
        figures: the line of figures, parts divided by " · ".
        held: whether the proof holds, the control's failure included.
        control: what the control showed; empty: it was not run.
        skipped: "needs ..."; empty: it was run.
        verb, repeat, seconds: filled in by `run`.
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
    """The proof cannot be run here; `needs` begins with "needs "."""
    assert needs.startswith("needs ")
    return Outcome(promises, "", held=True, skipped=needs)


def progress(text: str) -> None:
    """Say how far it is, on one line that is written over, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r  {text} ", end="", file=sys.stderr, flush=True)


def run(
    verb: str,
    prove: Callable[[Plan], Outcome],
    *,
    count: int,
    of: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """The command line of a proof.

    Args:
        verb: its make verb.
        prove: the proof.
        count: how much it does unless told otherwise.
        of: what that counts, for the help.
        arguments: None: those of the process.

    Returns:
        The exit status: 0 if it holds or is skipped, else 1.
    """
    parser = argparse.ArgumentParser(
        prog=f"make {verb}", description=sys.modules["__main__"].__doc__
    )
    parser.add_argument("--count", type=int, default=count, help=f"{of} (default {count})")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--no-control", action="store_true", help="leave the control run out")
    parser.add_argument("--keep", type=Path, help="keep what it writes in this new folder")
    parser.add_argument("--json", type=Path, help="write the outcome to this file, too")
    given = parser.parse_args(arguments)
    repeat = f"make {verb} SEED={given.seed}" + (
        f" N={given.count}" if given.count != count else ""
    )
    print(f"repeat with: {repeat}", flush=True)
    began = time.monotonic()
    outcome = prove(Plan(given.seed, given.count, not given.no_control, given.keep))
    seconds = round(time.monotonic() - began, 1)
    outcome = replace(outcome, verb=verb, repeat=repeat, seconds=seconds)
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(outcome)))
    report(outcome)
    return 0 if outcome.held else 1


def report(outcome: Outcome) -> None:
    """Print what came out."""
    if outcome.skipped:
        print(f"\r{outcome.verb}: skipped: {outcome.skipped}")
        return
    print(f"\r{outcome.figures}")
    if outcome.control:
        print(f"control: {outcome.control}")
    verdict = "holds" if outcome.held else "FAILED"
    print(f"{outcome.verb}: {' '.join(outcome.promises)} {verdict} ({outcome.seconds:.0f} s)")
