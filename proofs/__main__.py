"""Runs all proofs and writes GUARANTEES.md from their results: `make proofs`.

Each proof runs in its own process, with its default options. The proofs run one after another; only
the mixed run, an hour at a low rate, runs in parallel with the others. A proof that fails, or ends
without an outcome, is recorded as failed, and the exit status is 1. `--only crash,full` runs these
two again and keeps the results of the others; `--only ''` only rewrites the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from proofs import guarantees, machine
from proofs.guarantees import Book, Result
from proofs.outcome import Outcome
from proofs.promises import PROMISES

# The cheapest proofs come first.
VERBS = (
    *("golden", "simulate", "bitrot", "full", "crash", "power"),
    *("cluster", "operator_day", "slow", "hostile", "spark", "mixed"),
)
BESIDE = "mixed"
"""A long proof with little load: it starts first, in parallel with the others, and ends last."""

SECONDS_MAX = 7200.0
OWN = (":!GUARANTEES.md", ":!proofs/results.json")


def run(
    verb: str, seed: int | None, root: Path = guarantees.ROOT, *, beside: bool = False
) -> Outcome:
    """Run one proof in its own process and return its outcome.

    Args:
        verb: name of the proof.
        seed: seed of its random choices; None: the proof chooses one.
        root: the folder that contains the package `proofs`.
        beside: discard the proof's output, as others run in parallel; otherwise it is shown.
    """
    with tempfile.TemporaryDirectory(prefix="sparq-proofs-") as folder:
        answer = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", f"proofs.{verb}", "--json", str(answer)]
        command += [] if seed is None else ["--seed", str(seed)]
        began = time.monotonic()
        status = status_of(command, root, quiet=beside)
        if answer.exists():
            return guarantees.parse_outcome(json.loads(answer.read_text()))
    names = tuple(promise.name for promise in PROMISES if verb in promise.proofs)
    seconds = round(time.monotonic() - began, 1)
    figures = f"ended without an outcome, {status}"
    return Outcome(names, figures, held=False, verb=verb, seconds=seconds)


def status_of(command: Sequence[str], root: Path, *, quiet: bool = False) -> str:
    """Run a program for at most SECONDS_MAX, and describe how it ended."""
    output = subprocess.DEVNULL if quiet else None
    try:
        ended = subprocess.run(command, cwd=root, stdout=output, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return f"stopped after {SECONDS_MAX:.0f} s"
    return f"exit status {ended.returncode}"


def commit(root: Path = guarantees.ROOT) -> str:
    """Return the current commit, with a + if tracked files differ, except our own output."""
    name = git(root, "rev-parse", "--short", "HEAD")
    changed = git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *OWN)
    return name + "+" * bool(changed) if name else "unknown"


def git(root: Path, *words: str) -> str:
    """Return git's output; empty outside a repository."""
    command = ["git", *words]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def outcomes(verbs: Sequence[str], seed: int | None) -> Iterator[tuple[str, Outcome]]:
    """Run these proofs, and yield each name with its outcome; BESIDE comes last."""
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(run, BESIDE, seed, beside=len(verbs) > 1) if BESIDE in verbs else None
        for number, verb in enumerate(verbs, 1):
            print(f"\n[{number}/{len(verbs)}] {verb}", flush=True)
            yield verb, long.result() if long and verb == BESIDE else run(verb, seed)


def prove(book: Book, verbs: Sequence[str], seed: int | None) -> None:
    """Run these proofs. Results and page are written after each, so an abort loses none."""
    book.machine = machine.facts()
    for verb, found in outcomes(verbs, seed):
        outcome = replace(found, verb=verb)
        print(f"{verb}: {'holds' if outcome.held else 'FAILED'} {outcome.figures}", flush=True)
        book.results[verb] = Result(outcome, today(), commit())
        guarantees.write(book)
        guarantees.PAGE.write_text(guarantees.page(book, VERBS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected proofs; the exit status is 0 if all of them hold or are skipped."""
    parser = argparse.ArgumentParser(prog="make proofs", description=__doc__)
    parser.add_argument("--only", help="names of the proofs to run, separated by commas")
    parser.add_argument("--seed", type=int, help="seed of all proofs (default: one each at random)")
    options = parser.parse_args(arguments)
    verbs = VERBS if options.only is None else tuple(filter(None, options.only.split(",")))
    if unknown := [verb for verb in verbs if verb not in VERBS]:
        parser.error(f"there is no proof {', '.join(unknown)}; there are {', '.join(VERBS)}")
    book, began = guarantees.read(), time.monotonic()
    if verbs:
        prove(book, verbs, options.seed)
    guarantees.PAGE.write_text(guarantees.page(book, VERBS))
    print(f"\n{summary(book, verbs)} ({(time.monotonic() - began) / 60:.0f} minutes)")
    return 0 if all(book.results[verb].outcome.held for verb in verbs) else 1


def summary(book: Book, verbs: Sequence[str]) -> str:
    """Return how many of these proofs were run, and which failed or were skipped."""
    outcomes = [book.results[verb].outcome for verb in verbs]
    failed = " ".join(outcome.verb for outcome in outcomes if not outcome.held)
    skipped = " ".join(outcome.verb for outcome in outcomes if outcome.skipped)
    return f"proofs {len(verbs)} · failed: {failed or 'none'} · skipped: {skipped or 'none'}"


if __name__ == "__main__":
    sys.exit(main())
