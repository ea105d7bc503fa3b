"""Counts the small mistakes in protocol, log and broker that their tests notice: `make mutants`.

1. A mutant is a copy of a module with one change, such as `<=` for `<`. It is killed if a test
   fails, and survives if all tests pass that reach its line; a line that no test reaches survives
   too. The score is the share that is killed. It never reaches 100 %: some changes make no
   difference, such as another initial size of a buffer.
2. `N=` mutants are chosen at random, as many in each package; `SEED=` chooses the same again.
3. cosmic-ray makes the changes, from its lock in .venvs/mutants; coverage finds the tests, in this
   process's environment (`proofs/coverage.py`). The repository itself is never changed: each core
   has a copy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from locks.environment import environment

from proofs import coverage
from proofs.coverage import PACKAGES
from proofs.mutants_parts.judge import Mutant, ReachedLines, Verdict, Workplace, changed_lines
from proofs.outcome import progress

ROOT = Path(__file__).parent.parent
PARTS = ROOT / "proofs" / "mutants_parts"
COUNT = 240


class Judged(NamedTuple):
    """A mutant and its verdict."""

    mutant: Mutant
    verdict: Verdict


def modules(patterns: Sequence[str]) -> dict[str, list[str]]:
    """The paths of the modules to change, such as "log.disk" or "log.*", by package."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / "src" / "sparq" / package).glob("**/*.py")):
            name = ".".join(path.relative_to(ROOT / "src" / "sparq").with_suffix("").parts)
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                found.setdefault(package, []).append(str(path.relative_to(ROOT)))
    return found


def choose(packages: dict[str, list[str]], count: int, seed: int) -> tuple[list[Mutant], int]:
    """Mutants, as many of each package, in random order; and the number of places for changes.

    Raises:
        subprocess.CalledProcessError: cosmic-ray cannot be installed.
    """
    home = environment("mutants", PARTS / "requirements-mutants.txt")
    counts = {
        package: count // len(packages) + (place < count % len(packages))
        for place, package in enumerate(packages)
    }
    answered = subprocess.run(
        [str(home / "bin" / "python"), str(PARTS / "changes.py")],
        input=json.dumps({"seed": seed, "packages": packages, "counts": counts}),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        check=True,
        text=True,
    )
    answer = json.loads(answered.stdout)
    mutants = [Mutant(**each) for each in answer["mutants"]]
    random.Random(seed).shuffle(mutants)
    return mutants, sum(answer["places"].values())


def judge(
    mutants: Sequence[Mutant], reach: coverage.Reach, told: Callable[[Judged], None]
) -> list[Judged]:
    """Run the tests of each mutant, in one copy of the repository for each core.

    Ctrl-C ends early, with those that are done.

    Raises:
        SystemExit: tests fail in a copy that has no change.
    """
    lines = ReachedLines(reach, ROOT)
    tests = [lines.tests(mutant.path, mutant.line) for mutant in mutants]
    # Some test of each file: with it, Python keeps what it compiles of the file.
    some = {name.partition("::")[0]: name for names in tests for name in names[::-1]}
    copies: SimpleQueue[Workplace] = SimpleQueue()

    def prepare(folder: str) -> None:
        copy = Workplace(Path(folder), ROOT)
        if not copy.prepare([*some.values()]):
            sys.exit("tests fail without any change")
        copies.put(copy)

    def run(number: int) -> Judged:
        if not tests[number]:
            return Judged(mutants[number], Verdict(False, "", 0))
        copy = copies.get()
        try:
            return Judged(
                mutants[number], copy.judge(mutants[number], tests[number], reach.seconds)
            )
        finally:
            copies.put(copy)

    found: list[Judged] = []
    cores = min(os.cpu_count() or 1, len(mutants))
    with (
        tempfile.TemporaryDirectory(prefix="sparq-mutants-") as folder,
        ThreadPoolExecutor(cores) as pool,
    ):
        list(pool.map(prepare, [f"{folder}/{number}" for number in range(cores)]))
        with contextlib.suppress(KeyboardInterrupt):
            for judged in pool.map(run, range(len(mutants))):
                found.append(judged)
                told(judged)
    return found


def show(judged: Judged) -> None:
    """A survivor: its place, the change, and the number of tests that reach it."""
    mutant, verdict = judged
    if verdict.killed:
        return
    reach = f"{verdict.tests} tests reach it" if verdict.tests else "no test reaches it"
    print(f"\r{mutant.path}:{mutant.line}: survived, {reach}")
    print("\n".join(f"    {line}" for line in changed_lines(mutant, ROOT)), flush=True)


def table(judged: Sequence[Judged]) -> list[str]:
    """The score of each package and of all, as a table for CONTRIBUTING.md."""
    lines = [
        "| package | mutants | killed | by the module's own test file | not reached | score |",
        "|---|---|---|---|---|---|",
    ]
    for name in (*PACKAGES, "all"):
        verdicts = [each.verdict for each in judged if name in (each.mutant.package, "all")]
        if verdicts:
            killed = sum(verdict.killed for verdict in verdicts)
            own = sum(verdict.by == "own tests" for verdict in verdicts)
            unreached = sum(not verdict.tests for verdict in verdicts)
            counts = f"{len(verdicts)} | {killed} | {own} | {unreached}"
            lines.append(f"| {name} | {counts} | {100 * killed / len(verdicts):.0f} % |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Choose, run and count."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help=f"mutants (default {COUNT})")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--only", nargs="+", default=["*"], help="modules, such as log.disk")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    packages = modules(given.only)
    if not packages:
        parser.error("no such module in protocol, log or broker")
    mutants, places = choose(packages, given.count, given.seed)
    selected = "" if given.only == ["*"] else f' ARGS="--only {" ".join(given.only)}"'
    print(f"repeat with: make mutants SEED={given.seed} N={given.count}{selected}")
    print(f"{len(mutants)} mutants at {places:,} places", flush=True)
    reach = coverage.measured()
    done = 0

    def told(judged: Judged) -> None:
        nonlocal done
        done += 1
        show(judged)
        progress(f"{done} of {len(mutants)}")

    judged = judge(mutants, reach, told)
    print("\r" + "\n".join(table(judged)))
    print(f"seed {given.seed}, {(time.monotonic() - began) / 60:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
