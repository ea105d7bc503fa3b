"""sparq as users get it: a wheel, in an environment that has exactly the packages of its lock.

1. Environments are in `.venvs`, one for the wheel alone and one for each extra. They are created
   on first use, and again when their lock changes.
2. The wheel is built from a copy of the sources and installed for each run of the tests. pip has
   no index then: if a package that the wheel needs is missing, pip reports it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.scenarios.interop.environments import BUILD_LOCK, ENVIRONMENTS, ROOT, Missing, attempt

HOME = ENVIRONMENTS / "wheel"
SOURCES = ("src", "pyproject.toml", "README.md")
INDEX = "an index of Python packages"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
SECONDS_MAX = 120


def build(folder: Path) -> Path:
    """Build the wheel below the folder, without changes to the source tree."""
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
    step([*command, "--wheel-dir", str(folder), str(source)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, extra: str = "") -> Path:
    """Install the wheel, with an extra, into its environment; returns the folder of the programs.

    Raises:
        Missing: the environment does not exist, and cannot be created here.
    """
    home = ENVIRONMENTS / f"wheel-{extra}" if extra else HOME
    if reason := create_environment(
        home, (ROOT / "locks" / f"{extra or 'broker'}.txt").read_text()
    ):
        raise Missing(reason)
    step([*pip_of(home), "uninstall", "--yes", "sparq-mq"])
    step([*pip_of(home), "install", "--no-index", f"{wheel}[{extra}]" if extra else str(wheel)])
    return home / "bin"


def pip_of(home: Path) -> list[str]:
    """The command of pip for an environment without pip."""
    return [*PIP, "--python", str(home / "bin" / "python")]


@functools.cache
def create_environment(home: Path, lock: str) -> str:
    """Create the environment, unless it has this very lock; returns "" or what is missing."""
    stamp, wanted = home / ".installed", hashlib.sha256(lock.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    shutil.rmtree(home, ignore_errors=True)
    pip = [*pip_of(home), "install", "--require-hashes"]
    try:
        attempt(home.name, INDEX, [sys.executable, "-m", "venv", "--without-pip", str(home)])
        (home / "lock.txt").write_text(lock)
        attempt(home.name, INDEX, [*pip, "-r", str(BUILD_LOCK)])
        attempt(home.name, INDEX, [*pip, "--no-build-isolation", "-r", str(home / "lock.txt")])
    except Missing as missing:
        return str(missing)
    stamp.write_text(wanted)
    return ""


def step(command: list[str]) -> None:
    """Run a step that needs no network; a failure has its output."""
    strict = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    strict["PIP_CONFIG_FILE"] = os.devnull
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, env=strict
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def run(
    *command: Path | str,
    folder: Path,
    env: Mapping[str, str] | None = None,
    given: str = "",
    seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a program without this process's environment; `given` is its standard input."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=dict(env or {}),
        input=given,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
