"""Every proof, and GUARANTEES.md from what they came to: `make proofs`.

Each proof is a process of its own, with its defaults. They run one after the other; the mixed run,
an hour at a low rate, runs beside the others. A proof that fails, or ends
without an outcome, is written down as failed, and the exit status is 1. `--only crash,full` runs
some again and keeps the rows of the others; `--only ''` writes the page anew and runs nothing.
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

# What costs little comes first.
VERBS = (
    "golden",
    "model",
    "equal",
    "simulate",
    "bitrot",
    "full",
    "ioerror",
    "crash",
    "kill",
    "power",
    "term",
    "clock",
    "fds",
    "net",
    "cluster",
    "slow",
    "museum",
    "hostile",
    "spark",
    "mixed",
)
BESIDE = ("mixed",)
"""Long proofs that need little of the machine: they begin first and end last, beside the others."""

SECONDS_MAX = 7200.0
OWN = (":!GUARANTEES.md", ":!proofs/results.json")


def run(
    verb: str, seed: int | None, root: Path = guarantees.ROOT, *, beside: bool = False
) -> Outcome:
    """One proof in a process of its own.

    Args:
        verb: the proof.
        seed: of its random choices; None: one by chance.
        root: the folder that holds the package `proofs`.
        beside: run it without its output; else that goes where ours goes.
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
    """Run a program to its end, for SECONDS_MAX at most; in words how it ended."""
    output = subprocess.DEVNULL if quiet else None
    try:
        ended = subprocess.run(command, cwd=root, stdout=output, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return f"stopped after {SECONDS_MAX:.0f} s"
    return f"exit status {ended.returncode}"


def commit(root: Path = guarantees.ROOT) -> str:
    """The commit of the tree, with a + when files differ from it, our own output apart."""
    name = git(root, "rev-parse", "--short", "HEAD")
    changed = git(root, "status", "--porcelain", "--untracked-files=no", "--", ".", *OWN)
    return name + "+" * bool(changed) if name else "unknown"


def git(root: Path, *words: str) -> str:
    """What git says, nothing where there is no repository."""
    command = ["git", *words]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def today() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def outcomes(verbs: Sequence[str], seed: int | None) -> Iterator[tuple[str, Outcome]]:
    """Run these proofs; each with what it came to, as soon as it has ended."""
    beside = [verb for verb in verbs if verb in BESIDE]
    alone = [verb for verb in verbs if verb not in BESIDE]
    with ThreadPoolExecutor(max_workers=len(BESIDE)) as pool:
        under_way = {verb: pool.submit(run, verb, seed, beside=bool(alone)) for verb in beside}
        for number, verb in enumerate(alone, 1):
            print(f"\n[{number}/{len(verbs)}] {verb}", flush=True)
            yield verb, run(verb, seed)
        for number, (verb, ended) in enumerate(under_way.items(), len(alone) + 1):
            print(f"\n[{number}/{len(verbs)}] {verb}", flush=True)
            yield verb, ended.result()


def prove(book: Book, verbs: Sequence[str], seed: int | None) -> None:
    """Run these proofs; the book and the page are written after each, so that none is lost."""
    book.machine = machine.facts()
    for verb, found in outcomes(verbs, seed):
        outcome = replace(found, verb=verb)
        print(f"{verb}: {'holds' if outcome.held else 'FAILED'} {outcome.figures}", flush=True)
        book.results[verb] = Result(outcome, today(), commit())
        guarantees.write(book)
        guarantees.PAGE.write_text(guarantees.page(book, VERBS))


def main(arguments: Sequence[str] | None = None) -> int:
    """The proofs asked for; the exit status says whether all of them hold or are skipped."""
    parser = argparse.ArgumentParser(prog="make proofs", description=__doc__)
    parser.add_argument("--only", help="these verbs, with commas between them")
    parser.add_argument("--seed", type=int, help="of all proofs; without it, one each by chance")
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
    """The proofs that were run, counted by what they came to."""
    outcomes = [book.results[verb].outcome for verb in verbs]
    failed = [outcome.verb for outcome in outcomes if not outcome.held]
    skipped = [outcome.verb for outcome in outcomes if outcome.skipped]
    parts = [
        f"proofs {len(verbs)}",
        f"hold {len(verbs) - len(failed) - len(skipped)}",
        f"failed {len(failed)} {' '.join(failed)}".rstrip(),
        f"skipped {len(skipped)} {' '.join(skipped)}".rstrip(),
    ]
    return " · ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
