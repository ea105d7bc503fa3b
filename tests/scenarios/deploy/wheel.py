"""sparq as others get it: a wheel, in an environment that has what its lock names and no more.

1. Environments lie in `.venvs`, one for the wheel alone and one for each extra. They are made on
   first use, and made anew when their lock changes.
2. The wheel is built from a copy of the sources and installed for each run of the tests. pip finds
   no index then: what the wheel asks for has to be there, or pip says what is missing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.scenarios.deploy import pins
from tests.scenarios.interop.environments import BUILD_LOCK, ENVIRONMENTS, ROOT, Missing, attempt
from tests.support.servers import NsqdServer, start_first

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
    step([*command, "--wheel-dir", str(folder), str(source)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, extra: str = "") -> Path:
    """Put the wheel, with an extra, into its environment; the folder of the programs.

    Raises:
        Missing: there is no environment, and none can be made here.
    """
    home = ENVIRONMENTS / f"wheel-{extra}" if extra else HOME
    lock = pins.rows(pins.needed(wheel, extra)) if extra else LOCK.read_text()
    reason = made(home, lock)
    if reason:
        raise Missing(reason)
    step([*pip_of(home), "uninstall", "--yes", "sparq"])
    return put(wheel, extra, home)


def put(wheel: Path, extra: str, home: Path) -> Path:
    """Install the wheel beside what it needs; the folder of the programs."""
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    step([*pip_of(home), "install", "--no-index", wanted])
    return home / "bin"


def linked(wheel: Path, extra: str, home: Path) -> Path:
    """Install it in a new environment, in which what it needs is linked to what is here."""
    step([sys.executable, "-m", "venv", "--without-pip", str(home)])
    (packages,) = home.glob("lib/python*/site-packages")
    pins.lay(pins.needed(wheel, extra), packages)
    return put(wheel, extra, home)


def pip_of(home: Path) -> list[str]:
    """pip, for an environment that has none of its own."""
    return [*PIP, "--python", str(home / "bin" / "python")]


@functools.cache
def made(home: Path, lock: str) -> str:
    """Make the environment, unless it is there from this very lock: "", or what it needs."""
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
    """One step that needs no network; what it said is in the failure."""
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
    """Run a program with nothing of this tree in its way; `given` is its standard input."""
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


class InstalledNsqd(NsqdServer):
    """The console script `nsqd` of an environment."""

    def __init__(self, programs: Path, folder: Path) -> None:
        super().__init__("nsqd", folder, (f"--data-path={folder}",))
        self._command = ("env", "-i", str(programs / "nsqd"))

    def program(self) -> tuple[str, ...]:
        """The script, without this process's environment variables."""
        return self._command


@contextlib.contextmanager
def nsqd(programs: Path, folder: Path) -> Iterator[NsqdServer]:
    """The installed nsqd, running, with its data in the folder."""
    with InstalledNsqd(programs, folder) as server:
        start_first(server)
        yield server
