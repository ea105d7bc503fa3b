"""D-1: no dangerous calls. D-2: dependencies are pinned by hash, without known vulnerabilities."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.interop.environments import Missing
from tests.scenarios.security.scanners import program

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SECONDS = 240
AUDIT_SECONDS = 60

FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "input", "breakpoint"),
    *("pickle.load", "pickle.loads", "cloudpickle.load", "cloudpickle.loads", "marshal.load"),
    *("marshal.loads", "shelve.open", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("tempfile.mktemp", "os.tempnam", "ssl._create_unverified_context"),
    *("hashlib.md5", "hashlib.sha1", "random.seed", "importlib.import_module"),
}
"""Calls that sparq does not need; `re.compile` is an attribute, and so not the builtin."""

CHANCE = {
    "client/discovery.py": "which nsqd is tried first, and how long a pause is",
    "nsqd/auth.py": "which authd is asked first",
    "demo/generator.py": "the clicks of a made site",
    "testing.py": "what a disk of tests loses",
    "tools/nsq_tail.py": "a channel's number, as in NSQ",
    "tools/nsq_to_http.py": "which messages are sampled, and which host is tried",
    "tools/nsq_to_nsq.py": "which nsqd is tried",
}
"""Modules that use `random`, and what for; never for secrets."""

BANDIT = {
    "B101": "assertions are invariants and stay on in production; none decides who may what",
    "B311": "see CHANCE",
    "B404": "programs of our own and Java are started, without a shell",
    "B603": "likewise",
    "B104 daemon/address.py": "the host that means every address is only compared",
    "B105 cli.py": "a sentence about the command `token`",
    "B106 nsqd/tls.py": "an empty password of a key file, so that OpenSSL does not ask for one",
    "B108 tools/commands.py": "NSQ's default for --output-dir; it trusts nothing there",
}
"""Accepted findings of bandit, with reasons."""


def run(command: list[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a program; return its output and exit status."""
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
    )


def place(path: Path) -> str:
    """Return a source file's name as in the tables above."""
    return str(path.relative_to(ROOT / "src" / "sparq"))


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call in a file, and the text of the called expression."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_no_dangerous_calls() -> None:
    """sparq unpickles and evaluates nothing, starts no shell, and uses `random` for no secret."""
    found, count = [], 0
    for path in SOURCES:
        for node, name in calls(path):
            count += 1
            where = f"{place(path)}:{node.lineno} {name}"
            if name in FORBIDDEN:
                found.append(where)
            if any(word.arg == "shell" for word in node.keywords):
                found.append(f"{where} with a shell")
            if name.startswith("random.") and place(path) not in CHANCE:
                found.append(where)
    assert [] == found


@pytest.mark.timeout(2 * SECONDS)
def test_bandit() -> None:
    """bandit finds exactly the accepted findings."""
    try:
        bandit = program("bandit")
    except Missing as missing:
        pytest.skip(f"needs {missing}")
    command = [bandit, "--quiet", "--recursive", "--format", "json", "src"]
    ran = run(command, ROOT, SECONDS)
    report = json.loads(ran.stdout)
    assert [] == report["errors"]
    used = set()
    for found in report["results"]:
        exact = f"{found['test_id']} {place(ROOT / found['filename'])}"
        known = next((key for key in (exact, found["test_id"]) if key in BANDIT), None)
        assert known is not None, (exact, found["line_number"], found["issue_text"])
        used.add(known)
    assert set(BANDIT) == used


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
        tool = program("pip-audit")
    except Missing as missing:
        pytest.skip(f"needs {missing}")
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
