"""An environment of its own for each foreign client, made on first use and kept in .venvs.

Ordinary pip and npm install what the locks here pin; nothing of sparq is in there. An environment
is made anew when its lock changes. Where one cannot be made (no npm, no network), the tests that
want it are skipped and say what they need.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent.parent / ".venvs"
PYTHON_CLIENTS = ("pynsq", "gnsq", "ansq")
INSTALL_SECONDS_MAX = 240


def client_command(name: str) -> tuple[list[str], dict[str, str]]:
    """How to start client `name`: the command without its job, and its environment variables."""
    home = ENVIRONMENTS / name
    make_once(name, home)
    if name in PYTHON_CLIENTS:
        script = HERE / "clients" / f"{name}_client.py"
        return [str(home / "bin" / "python"), str(script)], dict(os.environ)
    node_path = {"NODE_PATH": str(home / "node_modules")}
    return ["node", str(HERE / "clients" / f"{name}_client.js")], {**os.environ, **node_path}


def make_once(name: str, home: Path) -> None:
    """Install the client's environment unless it is there already, from this very lock."""
    lock = HERE / (f"requirements-{name}.txt" if name in PYTHON_CLIENTS else "package-lock.json")
    stamp = home / ".installed"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    if name in PYTHON_CLIENTS:
        install_python(name, home, lock)
    else:
        install_node(name, home)
    stamp.write_text(wanted)


def install_python(name: str, home: Path, lock: Path) -> None:
    attempt(name, "an index of Python packages", [sys.executable, "-m", "venv", str(home)])
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--require-hashes", "-r", str(lock)]
    attempt(name, "an index of Python packages", install)


def install_node(name: str, home: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs node and npm")
    for manifest in ("package.json", "package-lock.json"):
        shutil.copy(HERE / manifest, home)
    command = ["npm", "ci", "--prefix", str(home), "--omit=optional", "--no-audit", "--no-fund"]
    attempt(name, "an npm registry", command)


def attempt(name: str, needs: str, command: list[str]) -> None:
    """Run one step of a set-up; a failure skips the test, with the reason."""
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"needs {needs} for {name}: none answered in {INSTALL_SECONDS_MAX} s")
    if ran.returncode:
        last = (ran.stderr.strip() or ran.stdout.strip() or "no reason given").splitlines()[-1]
        pytest.skip(f"needs {needs} for {name}: {last[:200]}")
