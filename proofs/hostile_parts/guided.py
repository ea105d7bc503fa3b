"""The same targets under atheris, that is libFuzzer guided by code coverage.

Only this proof uses atheris: pip installs it from its lock file into `.venvs/atheris` on first
use. If that fails (no package index, an unsupported Python), this part is left out, and the
figures show 0 executions led by coverage.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from proofs.hostile_parts.worker import Found
from proofs.outcome import progress

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
LOCK: Final = HERE / "requirements-atheris.txt"
HOME: Final = ROOT / ".venvs" / "atheris"
INSTALL_SECONDS_MAX: Final = 120
RUN_SECONDS_MAX: Final = 300
EXECUTIONS_MIN: Final = 1_000
"""For fewer executions, a process with instrumented modules is not worth its start-up time."""

TARGETS: Final = ("parser", "receiver", "IDENTIFY", "AUTH", "compression", "MPUB and queries")
_DONE: Final = re.compile(r"Done (\d+) runs in")


def attack(seed: int, count: int) -> list[Found]:
    """Run `count` executions, divided among the targets; returns [] without atheris."""
    each = count // len(TARGETS)
    if each < EXECUTIONS_MIN or not is_installed():
        return []
    progress("led by coverage")
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda name: _fuzz(name, each, seed), TARGETS))


def is_installed() -> bool:
    """Whether atheris is installed; installs it if possible."""
    stamp = HOME / ".installed"
    wanted = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return True
    shutil.rmtree(HOME, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    choice = ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    command = [*pip, *choice, "--target", str(HOME), "-r", str(LOCK)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS_MAX)
    except (OSError, subprocess.SubprocessError):
        return False
    stamp.write_text(wanted)
    return True


def _fuzz(name: str, count: int, seed: int) -> Found:
    """Fuzz one target in a new process; an early end of the process is a finding."""
    path = os.pathsep.join((str(ROOT), str(HOME)))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        words = [name, str(count), str(seed % (1 << 31) or 1), str(corpus)]
        command = [sys.executable, "-m", "proofs.hostile_parts.fuzz_process", *words]
        try:
            ended = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path},
                capture_output=True,
                timeout=RUN_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Found(name, hangs=[f"{name}: led by coverage, not done in {RUN_SECONDS_MAX} s"])
    said = (ended.stdout + ended.stderr).decode("utf-8", "replace")
    done = _DONE.search(said)
    if ended.returncode == 0 and done is not None:
        return Found(name, int(done[1]))
    return Found(name, exceptions=[f"{name}: led by coverage: {said[-1500:]}"])
