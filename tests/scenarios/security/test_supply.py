"""D-1: no dangerous calls. D-2: dependencies are pinned by hash, without known vulnerabilities."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from locks.environment import environment

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SECONDS = 240
AUDIT_SECONDS = 60

DANGEROUS = (
    *("S102", "S301", "S302", "S306", "S307", "S311", "S324", "S323", "S501", "S506"),
    *("S602", "S604", "S605", "T100"),
)
"""ruff's rules on exec, eval, unpickling, MD5, unverified TLS, shells, and chance for secrets."""

CHANCE = {
    "client/discovery.py": "how long a pause is",
    "nsqd/auth.py": "which authd is asked first",
    "demo/generator.py": "the clicks of a made site",
    "testing.py": "what a disk of tests loses",
    "tools/nsq_tail.py": "a channel's number, as in NSQ",
    "tools/nsq_to_http.py": "which messages are sampled, and which host is tried",
    "tools/nsq_to_nsq.py": "which nsqd is tried",
}
"""Modules that use `random`, and what for; never for secrets."""


def run(command: list[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program; return its output and exit status."""
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
    )


def test_no_dangerous_calls() -> None:
    """sparq unpickles and evaluates nothing, starts no shell, and uses `random` for no secret."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "src"]
    command += [f"--select={','.join(DANGEROUS)}", "--output-format=json"]
    found = [
        (one["code"], str(Path(one["filename"]).relative_to(ROOT / "src" / "sparq")))
        for one in json.loads(run(command, ROOT, SECONDS).stdout)
    ]

    assert {("S311", name) for name in CHANCE} == set(found)


def locks() -> list[Path]:
    """All files that pin Python packages."""
    return sorted([*ROOT.glob("locks/*.txt"), *ROOT.rglob("*/requirements-*.txt")])


def ours(paths: list[Path]) -> list[Path]:
    """Return the paths that are not below hidden folders or node_modules."""
    return [
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        and "node_modules" not in path.parts
    ]


def test_every_dependency_is_pinned_by_hash() -> None:
    """Every Python and npm package is pinned to one version with at least one hash."""
    pins = 0
    for path in ours(locks()):
        lines = [*path.read_text(encoding="utf-8").splitlines(), ""]
        for line, following in pairwise(lines):
            if line and not line.startswith((" ", "#")):
                pins += 1
                assert re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+", line), f"{path.name}: {line}"
                assert "--hash=sha256:" in following, f"{path.name}: {line}"
    for path in ours(sorted(ROOT.rglob("package-lock.json"))):
        packages = json.loads(path.read_text())["packages"]
        pins += len(packages) - 1
        assert all("integrity" in found for name, found in packages.items() if name), path.name
    assert pins > 100


def audited(lock: Path) -> list[dict[str, Any]]:
    """Return pip-audit's report for a lock file; skip the test if it cannot look up packages."""
    try:
        home = environment("pip-audit", HERE / "requirements-pip-audit.txt")
    except subprocess.CalledProcessError:
        pytest.skip("needs an index of Python packages")
    tool = str(home / "bin" / "pip-audit")
    command = [tool, "-r", str(lock), "--require-hashes", "--disable-pip", "--format", "json"]
    command += ["--progress-spinner", "off", "--timeout", "15"]
    try:
        ran = run(command, ROOT, AUDIT_SECONDS)
        found: list[dict[str, Any]] = json.loads(ran.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError):
        pytest.skip("needs an advisory service for Python packages: none answered")
    unknown = [package["name"] for package in found if "skip_reason" in package]
    if unknown:
        pytest.skip(
            f"needs an advisory service for Python packages: {len(unknown)} of {len(found)}"
            " could not be looked up"
        )
    return found


@pytest.mark.timeout(2 * SECONDS)
def test_no_python_package_has_a_known_weakness() -> None:
    """pip-audit reports no vulnerability in the packages of `sparq-mq` and of `make`."""
    packages = [
        found for name in ("broker", "all") for found in audited(ROOT / f"locks/{name}.txt")
    ]
    weak = [(found["name"], found["vulns"]) for found in packages if found["vulns"]]
    assert [] == weak


@pytest.mark.timeout(2 * SECONDS)
def test_no_npm_package_has_a_known_weakness(tmp_path: Path) -> None:
    """npm audit finds no vulnerability in the pages' scripts and the other projects' clients."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    count = 0
    for lock in ours(sorted(ROOT.rglob("package-lock.json"))):
        home = tmp_path / lock.parent.name
        home.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(lock.parent / name, home)
        command = ["npm", "audit", "--package-lock-only", "--json", "--fetch-retries=0"]
        try:
            ran = run(command, home, AUDIT_SECONDS)
            report = json.loads(ran.stdout)
        except (subprocess.TimeoutExpired, ValueError):
            pytest.skip("needs an advisory service for npm packages: none answered")
        if "vulnerabilities" not in report:
            reason = str(report.get("message", "no reason given")).partition(" - ")[0]
            pytest.skip(f"needs an advisory service for npm packages: {reason}")
        assert {} == report["vulnerabilities"], lock.parent.name
        count += report["metadata"]["dependencies"]["total"]
