"""A separate environment for each foreign client, created on first use and kept in .venvs.

pip and npm install what the lock files here pin; sparq is not installed in them. An environment is
recreated when its lock file changes. If one cannot be created (no npm, no network), `Missing` says
what it needs, and the client's other tests do not try again. A file lock makes a process wait while
another one creates the same environment.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENTS = ROOT / ".venvs"
BUILD_LOCK = ROOT / "locks" / "build.txt"
INSTALL_SECONDS_MAX = 240


class Missing(Exception):
    """This machine cannot run the client; the text says what it would need."""


def is_python(name: str) -> bool:
    """Whether the client is installed from PyPI; the others are installed from npm."""
    return (HERE / f"requirements-{name}.txt").exists()


def lock_of(name: str) -> Path:
    """The lock file that pins the client and its dependencies."""
    if is_python(name):
        return HERE / f"requirements-{name}.txt"
    return HERE / name / "package-lock.json"


def client_command(name: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts a client, without its job, and its environment variables."""
    home = ENVIRONMENTS / name
    reason = made(name, home)
    if reason:
        raise Missing(reason)
    script = HERE / "clients" / f"{name.replace('-', '_')}_client"
    if is_python(name):
        return [str(home / "bin" / "python"), f"{script}.py"], dict(os.environ)
    node_path = {"NODE_PATH": str(home / "node_modules")}
    return ["node", f"{script}.js"], {**os.environ, **node_path}


@functools.cache
def made(name: str, home: Path) -> str:
    """Install the environment unless it matches its lock file; return "" or what is missing."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        return _made(name, home)


def _made(name: str, home: Path) -> str:
    stamp = home / ".installed"
    wanted = hashlib.sha256(lock_of(name).read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    try:
        if is_python(name):
            install_python(name, home)
        else:
            install_node(name, home)
    except Missing as missing:
        return str(missing)
    stamp.write_text(wanted)
    return ""


def install_python(name: str, home: Path) -> None:
    needs = "an index of Python packages"
    attempt(name, needs, [sys.executable, "-m", "venv", "--without-pip", str(home)])
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "--python", str(home / "bin" / "python"), "install", "--quiet"]
    install.append("--require-hashes")
    attempt(name, needs, [*install, "-r", str(BUILD_LOCK)])
    attempt(name, needs, [*install, "--no-build-isolation", "-r", str(lock_of(name))])


def install_node(name: str, home: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise Missing("node and npm")
    for manifest in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name / manifest, home)
    command = ["npm", "ci", "--prefix", str(home), "--no-audit", "--no-fund"]
    attempt(name, "an npm registry", command)


def attempt(name: str, needs: str, command: list[str]) -> None:
    """Run one installation step; raise Missing if it fails."""
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
            # pip would compile every module; few of them are imported. That took a third of the
            # time.
            env={**os.environ, "PIP_NO_COMPILE": "1"},
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{needs} for {name}: none answered in {INSTALL_SECONDS_MAX} s") from None
    if ran.returncode:
        said = (ran.stderr.strip() or ran.stdout.strip() or "no reason given").splitlines()
        # npm's last line is the path of its log, pip's is the reason of the failure.
        reason = next((line for line in said if line.startswith("npm error")), said[-1])
        raise Missing(f"{needs} for {name}: {reason[:200]}")
