"""bandit and pip-audit, each installed in a separate environment under .venvs on first use.

pip installs what the lock file in this folder pins by hash; sparq does not depend on it. Without a
package index, `Missing` says what the check needs.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
from pathlib import Path

from tests.scenarios.interop.environments import ENVIRONMENTS, Missing, attempt

HERE = Path(__file__).parent


@functools.cache
def scanner(name: str) -> tuple[str, str]:
    """Return the program's path and "", or "" and what is missing."""
    lock = HERE / f"requirements-{name}.txt"
    home = ENVIRONMENTS / name
    program = home / "bin" / name
    stamp = home / ".installed"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        try:
            needs = "an index of Python packages"
            attempt(name, needs, [sys.executable, "-m", "venv", "--without-pip", str(home)])
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
            install = [*pip, str(home / "bin" / "python"), "install", "-q", "--require-hashes"]
            attempt(name, needs, [*install, "-r", str(lock)])
        except Missing as missing:
            return "", str(missing)
        stamp.write_text(wanted)
    return str(program), ""


def program(name: str) -> str:
    """Return a scanner's path; raises `Missing`."""
    path, needs = scanner(name)
    if not path:
        raise Missing(needs)
    return path
