"""Spark finds the interpreter of this process, wherever it lies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparq.pipeline.session import use_this_python

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.mark.parametrize("folder", ["plain", "a folder", "it's (so)"])
def test_a_shell_finds_the_interpreter(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked as the driver asks, without quotes: also where its path has a space.

    Workers are started without a shell, and elsewhere: they are told the whole path.
    """
    program = tmp_path / folder / "python3"
    program.parent.mkdir()
    program.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(program))
    for name in ("PATH", *VARIABLES):
        monkeypatch.setenv(name, os.environ.get(name, ""))

    use_this_python()

    found = subprocess.run(
        ["/bin/sh", "-c", f"command -v {os.environ['PYSPARK_DRIVER_PYTHON']}"],
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    assert f"{program}\n" == found
    assert str(program) == os.environ["PYSPARK_PYTHON"]
