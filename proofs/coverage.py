"""Measures which branches of protocol, log and broker their tests take: `make coverage`.

1. It runs the tests of these packages and of inspection, which is built on them, and those
   scenarios that call them without a daemon. Only code in the tests' own process is measured: what
   a daemon runs does not count, so other packages have no figures.
2. coverage measures; each line and branch is stored with the tests that reach it, which
   `make mutants` needs too. The data stays in build/coverage.
3. It fails if a package has fewer branches taken than `BRANCHES_MIN` percent.

Without changes to src or tests since the last measurement, its data is used again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import coverage

ROOT = Path(__file__).parent.parent
HOME = ROOT / "build" / "coverage"
PACKAGES = ("protocol", "log", "broker")
FOLDERS = (*PACKAGES, "inspection")
BRANCHES_MIN = 95.0

OF_CORE = re.compile(rf"^from (sparq|tests)\.({'|'.join(PACKAGES)})\b", re.MULTILINE)
OF_DAEMONS = re.compile(
    r"^(from|import) (asyncio|subprocess|tests\.nsqd|tests\.support\.(servers|v2_))|\bnsqd: ",
    re.MULTILINE,
)
"""Imports and fixtures of tests that talk to a daemon."""


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
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in scenarios
        if path.parent.name != "performance"
    }
    folders.append(
        [
            path
            for path, text in texts.items()
            if OF_CORE.search(text) and not OF_DAEMONS.search(text)
        ]
    )
    return [[str(path.relative_to(ROOT)) for path in paths] for paths in folders if paths]


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


def branches(data: Path) -> dict[str, tuple[int, int]]:
    """How many branches each package has, and how many of them tests take."""
    measurement = coverage.Coverage(
        data_file=str(data), config_file=str(ROOT / "pyproject.toml"), messages=False
    )
    measurement.load()
    target = data.with_name("report.json")
    found = {}
    for package in PACKAGES:
        measurement.json_report(outfile=str(target), include=[f"src/sparq/{package}/*"])
        totals = json.loads(target.read_text(encoding="utf-8"))["totals"]
        found[package] = totals["num_branches"], totals["covered_branches"]
    return found


def main() -> int:
    """Measure, and print the share of each package; the exit status is 1 if one is too low."""
    reach = measured()
    shares = []
    for package, (count, taken) in branches(reach.data).items():
        shares.append(100 * taken / count)
        print(f"{package}: {shares[-1]:.1f} % of {count:,} branches are taken", flush=True)
    print(f"{len(reach.seconds):,} tests; the lines that none reaches:")
    print(f"coverage report -m --data-file={os.path.relpath(reach.data, ROOT)}")
    return int(min(shares) < BRANCHES_MIN)


if __name__ == "__main__":
    sys.exit(main())
