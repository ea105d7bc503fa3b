"""Environments under .venvs for tools that are no part of sparq's own: MkDocs, cosmic-ray.

pip installs what a lock file pins, by hash. An environment is made anew when its lock has changed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent.parent / ".venvs"


def environment(name: str, lock: Path) -> Path:
    """The folder of the environment `name`, which has what `lock` pins.

    Raises:
        subprocess.CalledProcessError: pip cannot install it; pip prints the reason.
    """
    home = ENVIRONMENTS / name
    stamp = home / ".installed"
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == wanted):
        print(f"setting up .venvs/{name}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", "--require-hashes", "-r", str(lock)]
        subprocess.run(install, check=True)
        stamp.write_text(wanted)
    return home
