"""Tokens are created on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparq.daemon.access import tokens
from tests.nsqadmin.access.options import NOW


@pytest.mark.parametrize("module", ["sparq.nsqadmin.access", "sparq.daemon.access"])
def test_the_command_adds_a_line_to_the_file(tmp_path: Path, module: str) -> None:
    """A new file has mode 0600; a missing newline at its end is added before the new line."""
    path = tmp_path / "new"
    command = [sys.executable, "-m", module]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], capture_output=True, check=False, text=True)

    first = run("bob", "operate", "2030-01-01", f"--file={path}")
    path.write_text(path.read_text().rstrip())
    second = run("eve", "read", f"--file={path}")
    third = run("eve", "boss", f"--file={path}")
    fourth = run("eve", "read")

    found = tokens.read(str(path))
    assert [0, 0, 1, 0] == [ran.returncode for ran in (first, second, third, fourth)]
    assert 0o600 == path.stat().st_mode & 0o777
    assert 2 == len(found)
    assert all(found.find(ran.stdout.strip(), NOW) for ran in (first, second))
    assert "boss" in third.stderr
    assert "eve read" in fourth.stderr
