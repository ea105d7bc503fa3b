"""The rules of deploy/prometheus, and promtool, which checks them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "deploy" / "prometheus"
CONFIG = FOLDER / "prometheus.yml"
ALERTS = FOLDER / "nsq.rules.yml"
MIXIN = FOLDER / "nsq_mixin.rules.yml"
NEEDED = "needs prometheus (apt-get install prometheus)"


def program(name: str) -> str:
    """The path of `prometheus` or `promtool`; skips the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(NEEDED)
    return found


def promtool(*words: str | Path) -> str:
    """Run promtool, which must succeed; returns its output."""
    command = [program("promtool"), *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def names(kind: str, path: Path) -> list[str]:
    """The names of all alerts (`alert`) or recording rules (`record`) in a file."""
    return re.findall(rf"\b{kind}: ([\w:]+)", path.read_text(encoding="utf-8"))
