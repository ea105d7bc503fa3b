"""Signals that end a program while it is still loading its modules."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from sparq.program import early_signals

PROGRAM = """
import signal, sys
from sparq.program.early_signals import {name}, install
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
install({name}{call})
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("name", "call", "number", "expected"),
    [
        ("end_with_success", "", signal.SIGTERM, 0),
        ("end_with_success", "", signal.SIGINT, 0),
        ("default_action", "()", signal.SIGTERM, -signal.SIGTERM),
        ("default_action", "()", signal.SIGINT, -signal.SIGINT),
    ],
)
def test_a_signal_ends_the_program(
    name: str, call: str, number: signal.Signals, expected: int
) -> None:
    """A daemon ends with success, a tool by the signal; neither prints a traceback."""
    with started(name, call) as process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)

    assert (expected, b"") == (process.returncode, errors)


def test_an_ignored_signal_stays_ignored() -> None:
    """A shell script that starts a program with & has it ignore SIGINT."""
    with started("end_with_success", "", "ignored") as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)

    assert 0 == process.returncode
    assert signal.SIGINT in early_signals.ENDING


def started(name: str, call: str, how: str = "") -> subprocess.Popen[bytes]:
    """Start a program that handles the signals and then waits for the end of its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(name=name, call=call), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert b"ready\n" == process.stdout.readline()
    return process
