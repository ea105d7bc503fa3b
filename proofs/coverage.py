"""Measures which branches of protocol, log and broker their tests take: `make coverage`.

1. It runs the tests of these packages and of inspection, which is built on them, and those
   scenarios that call them without a daemon. Only code in the tests' own process is measured: what
   a daemon runs does not count, so the figures of other packages are low and given as one total.
2. coverage measures; each line and branch is stored with the tests that reach it, which
   `make mutants` needs too. The data stays in build/coverage.
3. The table goes to build/coverage/coverage.md, with its date and commit.

Without changes to src or tests since the last measurement, its data is used again.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import coverage

from proofs.__main__ import git, today

ROOT = Path(__file__).parent.parent
HOME = ROOT / "build" / "coverage"
PAGE = HOME / "coverage.md"
PACKAGES = ("protocol", "log", "broker")
FOLDERS = (*PACKAGES, "inspection")
CORE = tuple(f"{top}.{package}." for top in ("sparq", "tests") for package in PACKAGES)
SHARE_LISTED = 0.05
"""A module with a larger share of branches that no test takes has its own row."""
DAEMONS = ("asyncio", "subprocess", "tests.nsqd", "tests.support.servers", "tests.support.v2_")
"""Imports of tests that talk to a daemon."""


class Reach(NamedTuple):
    """A finished measurement.

    Attributes:
        data: coverage's data file.
        seconds: the duration of each test, by its id.
    """

    data: Path
    seconds: dict[str, float]


def groups_of_tests() -> list[list[str]]:
    """Files of tests, in groups that run side by side: one for each folder, and the scenarios."""
    folders = [sorted((ROOT / "tests" / name).glob("**/test_*.py")) for name in FOLDERS]
    scenarios = sorted((ROOT / "tests" / "scenarios").glob("**/test_*.py"))
    # Not those of performance: they count calls, and more timers fire in a slow process.
    counted = [path for path in scenarios if path.parent.name != "performance"]
    folders.append([path for path in counted if is_in_process(path)])
    return [[str(path.relative_to(ROOT)) for path in paths] for paths in folders if paths]


def is_in_process(path: Path) -> bool:
    """Whether a file of tests imports protocol, log or broker, and nothing that needs a daemon."""
    imported: list[str] = []
    fixtures: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            imported += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            imported += [name.name for name in node.names]
        elif isinstance(node, ast.arg):
            fixtures.add(node.arg)
    return (
        any(name.startswith(CORE) for name in imported)
        and not any(name.startswith(DAEMONS) for name in imported)
        and "nsqd" not in fixtures
    )


def measured() -> Reach:
    """The measurement of these tests: the last one, or a new one if files have changed since.

    Raises:
        SystemExit: a test failed.
    """
    groups = groups_of_tests()
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py")]
    newest = max(path.stat().st_mtime for path in files)
    stored = HOME / "durations.json"
    last = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    if last.get("groups") != groups or stored.stat().st_mtime < newest:
        last = {"groups": groups, "seconds": _measure(groups)}
        stored.write_text(json.dumps(last), encoding="utf-8")
    return Reach(HOME / "data", last["seconds"])


def _measure(groups: Sequence[Sequence[str]]) -> dict[str, float]:
    """Run the groups, one for each core at a time, and put their data together: the durations."""
    HOME.mkdir(parents=True, exist_ok=True)
    for old in [*HOME.glob("data*"), *HOME.glob("durations*.json")]:
        old.unlink()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(_run, groups, range(len(groups))))
    command = [sys.executable, "-m", "coverage", "combine", "--quiet"]
    subprocess.run([*command, f"--data-file={HOME / 'data'}"], cwd=ROOT, check=True)
    return {name: each for part in found for name, each in part.items()}


def _run(tests: Iterable[str], number: int) -> dict[str, float]:
    """Run tests under coverage; returns their durations."""
    durations = HOME / f"durations.{number}.json"
    measure = [sys.executable, "-m", "coverage", "run", f"--data-file={HOME / 'data'}.{number}"]
    command = [*measure, "-m", "pytest", "-p", "proofs.mutants_parts.reach_plugin", *tests]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": paths, "SPARQ_DURATIONS": str(durations)}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(ran.stdout[-5000:] + ran.stderr[-1000:])
    print(ran.stdout.strip().splitlines()[-1], flush=True)
    seconds: dict[str, float] = json.loads(durations.read_text(encoding="utf-8"))
    return seconds


def report(data: Path, include: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """coverage's figures of each module, or of those included, by its path."""
    measurement = coverage.Coverage(
        data_file=str(data), config_file=str(ROOT / "pyproject.toml"), messages=False
    )
    measurement.load()
    target = data.with_name("report.json")
    measurement.json_report(outfile=str(target), include=include)
    files = json.loads(target.read_text(encoding="utf-8"))["files"]
    return {name: each["summary"] for name, each in files.items()}


def commit(root: Path = ROOT) -> str:
    """The commit that was measured, with a + if src or tests differ from it."""
    changed = git(root, "status", "--porcelain", "--", "src", "tests")
    return git(root, "rev-parse", "--short", "HEAD") + "+" * bool(changed)


def row(name: str, modules: Iterable[dict[str, Any]]) -> str:
    """A row of the table, the sum of the modules."""
    fields = ("num_statements", "missing_lines", "num_branches", "missing_branches")
    sums = [sum(module[field] for module in modules) for field in fields]
    statements, lines_missed, branches, missed = sums
    share = f"{100 * (branches - missed) / branches:.1f} %" if branches else "-"
    return f"| {name} | {statements:,} | {lines_missed:,} | {branches:,} | {missed:,} | {share} |"


def table(modules: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each package, for its modules with missed branches, and for all other packages."""
    lines = [
        "| module | statements | not run | branches | not taken | branch coverage |",
        "|---|---|---|---|---|---|",
    ]
    rest = dict(modules)
    for package in PACKAGES:
        prefix = f"src/sparq/{package}/"
        mine = {name: rest.pop(name) for name in sorted(modules) if name.startswith(prefix)}
        if not mine:
            continue
        lines.append(row(f"**{package}**", [*mine.values()]))
        lines += [
            row(name.removeprefix("src/sparq/").removesuffix(".py").replace("/", "."), [each])
            for name, each in mine.items()
            if each["missing_branches"] > each["num_branches"] * SHARE_LISTED
        ]
    return [*lines, row("all other packages", [*rest.values()])] if rest else lines


OPENING = """# Branch coverage

Written by `make coverage` on {date}, commit {commit}: {count:,} tests.

Branches of `protocol`, `log` and `broker` that tests take: `tests/protocol`, `tests/log`,
`tests/broker`, `tests/inspection`, and the scenarios that use these packages without a daemon. Only
code in the tests' own process is measured. A module has a row if over 5 % of its branches are
not taken. The daemons that other tests start are processes of
their own and are not measured, so the last row says little about the other packages. The lines that
no test reaches: `.venv/bin/python -m coverage report -m --data-file=build/coverage/data`.

"""


def main() -> int:
    """Measure, and write the page."""
    reach = measured()
    lines = table(report(reach.data))
    opening = OPENING.format(date=today(), commit=commit(), count=len(reach.seconds))
    PAGE.write_text(opening + "\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(line for line in lines if "**" in line or "other" in line))
    print(os.path.relpath(PAGE, ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
