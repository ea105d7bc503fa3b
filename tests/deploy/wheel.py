"""sparq as others get it: a wheel, in an environment that has what its lock names and no more.

The environment lies in `.venvs/wheel`, is made on first use and made anew when the lock changes.
The wheel is built from a copy of the sources and installed for each run of the tests.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.interop.environments import ENVIRONMENTS, ROOT, Missing, attempt

LOCK = ROOT / "locks" / "broker.txt"
HOME = ENVIRONMENTS / "wheel"
SOURCES = ("src", "pyproject.toml", "README.md")
INDEX = "an index of Python packages"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
SECONDS_MAX = 120


def build(folder: Path) -> Path:
    """Build the wheel below the folder; the tree itself stays as it is."""
    source = folder / "source"
    source.mkdir()
    made_elsewhere = shutil.ignore_patterns("*.egg-info", "__pycache__")
    for name in SOURCES:
        origin, copy = ROOT / name, source / name
        if origin.is_dir():
            shutil.copytree(origin, copy, ignore=made_elsewhere)
        else:
            shutil.copy(origin, copy)
    command = [*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    run([*command, "--wheel-dir", str(folder), str(source)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path) -> Path:
    """Put the wheel into the environment; the folder of its programs.

    Raises:
        Missing: there is no environment, and none can be made here.
    """
    reason = made()
    if reason:
        raise Missing(reason)
    pip = [*PIP, "--python", str(HOME / "bin" / "python"), "install"]
    run([*pip, "--no-index", "--no-deps", "--force-reinstall", str(wheel)])
    return HOME / "bin"


@functools.cache
def made() -> str:
    """Make the environment, unless it is there from this very lock: "", or what it needs."""
    stamp, wanted = HOME / ".installed", hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    shutil.rmtree(HOME, ignore_errors=True)
    pip = [*PIP, "--python", str(HOME / "bin" / "python"), "install", "--require-hashes"]
    try:
        attempt("the wheel", INDEX, [sys.executable, "-m", "venv", "--without-pip", str(HOME)])
        attempt("the wheel", INDEX, [*pip, "--only-binary", ":all:", "-r", str(LOCK)])
    except Missing as missing:
        return str(missing)
    stamp.write_text(wanted)
    return ""


def run(command: list[str]) -> None:
    """One step that needs no network; what it said is in the failure."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
