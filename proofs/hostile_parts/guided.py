"""The same targets under atheris: libFuzzer, led by which code an input reached.

It is a tool of this proof alone: pip installs it from its lock into `.venvs/atheris` at first use.
Where that cannot be done (no index of packages, another Python), nothing is led, and the figures
say so.
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
"""Fewer are not worth a process with instrumented modules."""

TARGETS: Final = ("parser", "receiver", "IDENTIFY", "AUTH", "compression", "MPUB and queries")
_DONE: Final = re.compile(r"Done (\d+) runs in")


def attack(seed: int, count: int) -> list[Found]:
    """So many executions, spread over the targets; empty where there is no atheris."""
    each = count // len(TARGETS)
    if each < EXECUTIONS_MIN or not is_installed():
        return []
    progress("led by coverage")
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda name: _fuzz(name, each, seed), TARGETS))


def is_installed() -> bool:
    """Whether atheris is there, or could be installed now."""
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
    """One target in a process of its own; what ends it early is a finding."""
    path = os.pathsep.join((str(ROOT), str(HOME)))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        words = [name, str(count), str(seed % (1 << 31) or 1), str(corpus)]
        command = [sys.executable, "-m", "proofs.hostile_parts.led", *words]
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
