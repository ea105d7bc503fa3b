"""Processes that a program has started end with it, also after a timeout."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run_program import run_program
from tests.support.waiting import wait_for

STARTS_ANOTHER = """
import os, subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + "+", "w") as file:
    file.write(str(other.pid))
os.rename(file.name, sys.argv[1])
time.sleep(float(sys.argv[2]))
"""


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("seconds", [0, 600])
def test_a_child_is_killed_on_a_timeout(tmp_path: Path, seconds: int) -> None:
    """A child that holds the output open for ten minutes is killed, with or without its parent."""
    pid_file = tmp_path / "pid"
    command = [sys.executable, "-c", STARTS_ANOTHER, str(pid_file), str(seconds)]
    patience = 1.0
    while not pid_file.exists():
        patience *= 2
        with pytest.raises(subprocess.TimeoutExpired):
            run_program(command, seconds=patience)

    pid = int(pid_file.read_text(encoding="ascii"))
    wait_for(lambda: not is_running(pid))


def test_input_outputs_and_status_are_passed() -> None:
    """`run_program` passes the input, and returns both outputs and the exit status."""
    code = "import sys; print(input()); print('no', file=sys.stderr); sys.exit(3)"
    ran = run_program([sys.executable, "-c", code], seconds=30, given="yes\n")

    assert (3, "yes\n", "no\n") == (ran.returncode, ran.stdout, ran.stderr)
