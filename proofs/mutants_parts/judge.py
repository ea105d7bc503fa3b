"""Runs the tests of one mutant, in a copy of the repository, and says whether they notice it.

1. A mutant runs the tests that reach its statement: first those in its module's own test file, then
   the others, the quickest first. The first failure ends the run.
2. A statement that runs when its module is imported counts as reached by each test that reaches
   anything in the module.
3. Tests that take much longer than before, or too much memory, are stopped: that counts as noticed.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData

from proofs.coverage import Reach

SECONDS_MIN = 20.0
SLOWNESS_MAX = 5.0
"""A run may use `SECONDS_MIN` of CPU, and as many times what its tests took under coverage."""
TEST_SECONDS_MAX = 120
"""The longest time for one test, which may wait for ever: then it fails."""
RUN_SECONDS_MAX = 1800.0
MEMORY_BYTES_MAX = 6 << 30
FILE_BYTES_MAX = 4 << 30
STOPPED = -signal.SIGXCPU
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
    """What the tests made of a mutant.

    Attributes:
        killed: tests failed, or had to be stopped.
        by: "own tests", "other tests", "time"; "" if it survived.
        tests: the number of tests that reach it.
    """

    killed: bool
    by: str
    tests: int


class ReachedLines:
    """The tests that reach a line, of each module."""

    def __init__(self, reach: Reach, root: Path) -> None:
        self._seconds = reach.seconds
        self._root = root
        self._data = CoverageData(str(reach.data))
        self._data.read()
        self._modules: dict[str, dict[int, set[str]]] = {}

    def _module(self, path: str) -> dict[int, set[str]]:
        """Tests by line; the context of what runs at import is empty."""
        if path not in self._modules:
            found = self._data.contexts_by_lineno(path)
            self._modules[path] = {line: {*names} - {""} for line, names in found.items()}
        return self._modules[path]

    def tests(self, path: str, line: int) -> list[str]:
        """The tests that reach the statement at a line, the quickest first."""
        reached = self._module(path)
        lines = statement_lines(ast.parse((self._root / path).read_text(encoding="utf-8")), line)
        names = set().union(*(reached.get(each, ()) for each in lines or reached))
        return sorted(names, key=lambda name: (self._seconds.get(name, 0.0), name))


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


class Workplace:
    """A copy of the repository, in which one mutant at a time takes its module's place."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder = folder / "copy"
        self._list = folder / "tests.json"
        self._temporary = folder / "tmp"
        shutil.copytree(root, self.folder, ignore=NOT_COPIED)

    def judge(self, mutant: Mutant, tests: list[str], seconds: Mapping[str, float]) -> Verdict:
        """Run the mutant's tests."""
        own = [name for name in tests if name.startswith(mutant.own_tests)]
        others = [name for name in tests if not name.startswith(mutant.own_tests)]
        path = self.folder / mutant.path
        original, stat = path.read_bytes(), path.stat()
        path.write_text(mutant.text, encoding="utf-8")
        try:
            for by, some in (("own tests", own), ("other tests", others)):
                limit = SECONDS_MIN + SLOWNESS_MAX * sum(seconds.get(name, 0.0) for name in some)
                status = self.run(some, limit) if some else 0
                if status == STOPPED:
                    return Verdict(True, "time", len(tests))
                if status not in (0, NO_TESTS):
                    return Verdict(True, by, len(tests))
            return Verdict(False, "", len(tests))
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def prepare(self, tests: list[str]) -> bool:
        """Run tests without a change, so that Python keeps compiled code; whether they pass."""
        files = sorted({name.partition("::")[0] for name in tests})
        compiled = [sys.executable, "-m", "compileall", "-q", "src"]
        subprocess.run(compiled, cwd=self.folder, check=True)
        return self.run(tests, SECONDS_MIN * len(files), keeps_compiled=True) == 0

    def run(self, tests: list[str], seconds: float, *, keeps_compiled: bool = False) -> int:
        """The exit status of pytest with these tests; `STOPPED` if they take too long."""
        self._list.write_text(json.dumps(tests), encoding="utf-8")
        files = dict.fromkeys(name.partition("::")[0] for name in tests)
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:randomly", "--tb=no"]
        command += [f"--timeout={TEST_SECONDS_MAX}"]
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
        # A mutant may never end, or fill memory or disk. A busy machine slows it, but not its CPU.
        for limited, size in (
            (resource.RLIMIT_CPU, math.ceil(seconds)),
            (resource.RLIMIT_AS, MEMORY_BYTES_MAX),
            (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
        ):
            _, hard = resource.getrlimit(limited)
            soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
            resource.prlimit(process.pid, limited, (soft, hard))
        try:
            return process.wait(RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return STOPPED
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tests, and what they have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def changed_lines(mutant: Mutant, root: Path) -> Iterator[str]:
    """The line before and after, as a diff shows them."""
    before = (root / mutant.path).read_text(encoding="utf-8").splitlines()
    after = mutant.text.splitlines()
    yield f"- {before[mutant.line - 1].strip()}"
    yield f"+ {after[mutant.line - 1].strip()}"
