"""Counts the small mistakes in protocol, log and broker that their tests notice: `make mutants`.

1. A mutant is a copy of a module with one change, such as `<=` for `<`. It is killed if a test
   fails, and survives if all tests pass that reach its line; a line that no test reaches survives
   too. The score is the share that is killed. It never reaches 100 %: some changes make no
   difference, such as another initial size of a buffer.
2. `N=` mutants are chosen at random, as many in each package; `SEED=` chooses the same again.
3. A mutant runs the tests that reach its statement: first those in its module's own test file, then
   the others, the quickest first. The first failure ends the run. A statement that runs when its
   module is imported counts as reached by each test that reaches anything in the module.
4. Tests that take much longer than before, or too much memory, are stopped: that counts as killed.
5. cosmic-ray makes the changes, from its lock in .venvs/mutants; coverage finds the tests, in this
   process's environment (`proofs/coverage.py`). The repository itself is never changed: each core
   has a copy.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from coverage import CoverageData
from locks.environment import environment

from proofs import coverage
from proofs.coverage import PACKAGES, ROOT
from proofs.outcome import progress

PARTS = ROOT / "proofs" / "mutants_parts"
COUNT = 240

SECONDS_MIN = 20.0
SLOWNESS_MAX = 5.0
"""A run may use `SECONDS_MIN` of CPU, and as many times what its tests took under coverage."""
TEST_SECONDS_MAX = 120
"""The longest time for one test, which may wait for ever: then it fails."""
RUN_SECONDS_MAX = 1800.0
LIMITS = (f"--as={6 << 30}", f"--fsize={4 << 30}")
NO_TESTS = 5
"""Exit status of pytest if the tests are not there, because the change renames them."""
NOT_COPIED = shutil.ignore_patterns(
    *(".git", ".venv*", "data", "build", "dist", "node_modules", "*.egg-info", "__pycache__"),
    *(".hypothesis", ".mypy_cache", ".ruff_cache", "sparq-bench-*"),
)


class Mutant(NamedTuple):
    """A module with one change: its path below the repository, the line, and the whole text."""

    path: str
    line: int
    text: str

    @property
    def package(self) -> str:
        """The package of `sparq` that it is in."""
        return Path(self.path).parts[2]

    @property
    def own_tests(self) -> str:
        """The test file of its module."""
        return f"tests/{self.package}/test_{Path(self.path).stem}.py"


class Verdict(NamedTuple):
    """Whether tests noticed a mutant, and how many reach it."""

    mutant: Mutant
    is_killed: bool
    tests: int


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


def statement_lines(tree: ast.Module, line: int) -> range | None:
    """The lines of the innermost statement at `line`, without its body; None: it runs at import."""
    innermost: ast.stmt | ast.excepthandler | None = None
    in_function = False
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt | ast.excepthandler):
            continue
        if not node.lineno <= line <= (node.end_lineno or 0):
            continue
        innermost = node  # `walk` yields parents first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            in_function |= node.body[0].lineno <= line
    if innermost is None or not in_function:
        return None
    body = getattr(innermost, "body", None)
    last = max(innermost.lineno, body[0].lineno - 1) if body else innermost.end_lineno
    return range(innermost.lineno, max(last or 0, line) + 1)


@cache
def tests_by_line(data: Path, path: str) -> dict[int, set[str]]:
    """The tests that reach each line of a module; the context of what runs at import is empty."""
    measured = CoverageData(str(data))
    measured.read()
    found = measured.contexts_by_lineno(path)
    return {line: {*names} - {""} for line, names in found.items()}


def tests_of(mutant: Mutant, reach: coverage.Reach) -> list[str]:
    """The tests that reach a mutant's statement: its module's own, then the quickest, first."""
    reached = tests_by_line(reach.data, mutant.path)
    tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    lines = statement_lines(tree, mutant.line) or reached
    names = set().union(*(reached.get(line, ()) for line in lines))

    def order(name: str) -> tuple[bool, float, str]:
        return not name.startswith(mutant.own_tests), reach.seconds.get(name, 0.0), name

    return sorted(names, key=order)


class Workplace:
    """A copy of the repository, in which one mutant at a time takes its module's place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "copy"
        self._list = folder / "tests.json"
        self._temporary = folder / "tmp"
        shutil.copytree(ROOT, self.folder, ignore=NOT_COPIED)

    def judge(self, mutant: Mutant, tests: list[str], seconds: Mapping[str, float]) -> Verdict:
        """Run the mutant's tests."""
        path = self.folder / mutant.path
        original, stat = path.read_bytes(), path.stat()
        path.write_text(mutant.text, encoding="utf-8")
        try:
            limit = SECONDS_MIN + SLOWNESS_MAX * sum(seconds.get(name, 0.0) for name in tests)
            return Verdict(mutant, self.run(tests, limit) not in (0, NO_TESTS), len(tests))
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def prepare(self, tests: list[str]) -> bool:
        """Run tests without a change, so that Python keeps compiled code; whether they pass."""
        compiled = [sys.executable, "-m", "compileall", "-q", "src"]
        subprocess.run(compiled, cwd=self.folder, check=True)
        return self.run(tests, SECONDS_MIN * len(tests), keeps_compiled=True) == 0

    def run(self, tests: list[str], seconds: float, *, keeps_compiled: bool = False) -> int:
        """Return the exit status of pytest with these tests, which may use so much CPU."""
        self._list.write_text(json.dumps(tests), encoding="utf-8")
        files = dict.fromkeys(name.partition("::")[0] for name in tests)
        # A mutant may never end, or fill memory or disk. A busy machine slows it, but not its CPU.
        command = [
            "prlimit",
            f"--cpu={math.ceil(seconds)}",
            *LIMITS,
            sys.executable,
            "-m",
            "pytest",
        ]
        command += ["-x", "-p", "no:randomly", "--tb=no", f"--timeout={TEST_SECONDS_MAX}"]
        command += ["-p", "proofs.mutants_parts.select_plugin", f"--basetemp={self._temporary}"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(self.folder / "src"), str(self.folder))),
            "SPARQ_TESTS": str(self._list),
        }
        if not keeps_compiled:
            # Two mutants of one module may have the same size and the same second.
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        process = subprocess.Popen(
            [*command, *files],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        try:
            return process.wait(RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            # The tests, and what they have started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def judge(mutants: Sequence[Mutant], reach: coverage.Reach) -> list[Verdict]:
    """Run the tests of each mutant, in one copy of the repository for each core; show survivors.

    Ctrl-C ends early, with those that are done.

    Raises:
        SystemExit: tests fail in a copy that has no change.
    """
    tests = [tests_of(mutant, reach) for mutant in mutants]
    # Some test of each file: with it, Python keeps what it compiles of the file.
    some = {name.partition("::")[0]: name for names in tests for name in names[::-1]}
    copies: SimpleQueue[Workplace] = SimpleQueue()

    def prepare(folder: str) -> None:
        copy = Workplace(Path(folder))
        if not copy.prepare([*some.values()]):
            sys.exit("tests fail without any change")
        copies.put(copy)

    def judge_one(mutant: Mutant, names: list[str]) -> Verdict:
        if not names:
            return Verdict(mutant, False, 0)
        copy = copies.get()
        try:
            return copy.judge(mutant, names, reach.seconds)
        finally:
            copies.put(copy)

    found: list[Verdict] = []
    cores = min(os.cpu_count() or 1, len(mutants))
    with (
        tempfile.TemporaryDirectory(prefix="sparq-mutants-") as folder,
        ThreadPoolExecutor(cores) as pool,
    ):
        list(pool.map(prepare, [f"{folder}/{number}" for number in range(cores)]))
        with contextlib.suppress(KeyboardInterrupt):
            for verdict in pool.map(judge_one, mutants, tests):
                found.append(verdict)
                if not verdict.is_killed:
                    show_survivor(verdict.mutant, verdict.tests)
                progress(f"{len(found)} of {len(mutants)}")
    return found


def show_survivor(mutant: Mutant, tests: int) -> None:
    """Print its place, the change as a diff shows it, and the number of tests that reach it."""
    reach = f"{tests} tests reach it" if tests else "no test reaches it"
    print(f"\r{mutant.path}:{mutant.line}: survived, {reach}")
    before = (ROOT / mutant.path).read_text(encoding="utf-8")
    for sign, text in (("-", before), ("+", mutant.text)):
        print(f"    {sign} {text.splitlines()[mutant.line - 1].strip()}", flush=True)


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """The score of each package and of all, as a table for CONTRIBUTING.md."""
    lines = ["| package | mutants | killed | not reached | score |", "|---|---|---|---|---|"]
    for name in (*PACKAGES, "all"):
        some = [each for each in verdicts if name in (each.mutant.package, "all")]
        if some:
            killed = sum(each.is_killed for each in some)
            unreached = sum(not each.tests for each in some)
            counts = f"{len(some)} | {killed} | {unreached}"
            lines.append(f"| {name} | {counts} | {100 * killed / len(some):.0f} % |")
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
    print("\r" + "\n".join(table(judge(mutants, coverage.measured()))))
    print(f"seed {given.seed}, {(time.monotonic() - began) / 60:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
