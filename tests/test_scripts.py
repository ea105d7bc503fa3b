"""The console scripts while their programs are loaded and after they have ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sparq.cli import TOOLS

ROOT = Path(__file__).parents[1]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
INTERRUPTED = """
import os, signal, sys
from sparq import scripts

class AtImport:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sparq.program":
            os.kill(os.getpid(), signal.NUMBER)

signal.signal(signal.SIGINT, HANDLER)
sys.meta_path.insert(0, AtImport)
scripts.SCRIPT(["--version"])
"""
"""A program that gets a signal while it is loaded."""
ENDED = """
import atexit, os, signal
from sparq import scripts

signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(os.kill, os.getpid(), signal.SIGINT)
scripts.to_nsq([])
"""
"""A program that gets Ctrl-C just before Python exits."""
HEAVY = frozenset(
    {
        *("aiohttp", "asyncio", "cramjam", "multidict", "numpy", "prometheus_client", "pyspark"),
        *("rich", "ssl", "uvloop", "xxhash", "yarl"),
    }
)
"""Packages that take tenths of a second to load, and that no flag needs."""
LIGHT = """
import sys
from sparq import scripts

try:
    scripts.SCRIPT(WORDS)
finally:
    print(*sorted(sys.modules), file=sys.stderr)
"""
WORDS = [
    *((name, flag) for name in SCRIPTS for flag in ("--help", "--version")),
    *(
        ("sparq", f"{command} {flag}")
        for command in ("pipeline", *TOOLS)
        for flag in ("--help", "--version")
    ),
    ("nsq_tail", "--no-such-flag"),
]


def _interrupted(script: str, number: str, handler: str) -> subprocess.CompletedProcess[str]:
    program = INTERRUPTED.replace("SCRIPT", script).replace("NUMBER", number)
    return _run(program.replace("HANDLER", handler))


def _run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_each_script_is_a_program_of_that_name() -> None:
    """Each script in pyproject.toml calls the function of its name in `sparq.scripts`."""
    assert {name: f"sparq.scripts:{name}" for name in SCRIPTS} == SCRIPTS


@pytest.mark.parametrize("script", ["nsqd", "nsq_tail"])
def test_ctrl_c_while_it_is_loaded_ends_it_without_a_word(script: str) -> None:
    """The program ends by SIGINT and prints nothing, not even Python's traceback."""
    done = _interrupted(script, "SIGINT", "signal.default_int_handler")

    assert (-signal.SIGINT, "", "") == (done.returncode, done.stdout, done.stderr)


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    """A script's background job ignores Ctrl-C: it continues."""
    done = _interrupted("nsq_tail", "SIGINT", "signal.SIG_IGN")

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith("nsq_tail v")


@pytest.mark.parametrize(
    ("script", "status"),
    [("nsqd", 0), ("nsqlookupd", 0), ("nsq_to_file", 0), ("nsq_tail", -signal.SIGHUP)],
)
def test_a_hangup_while_it_is_loaded(script: str, status: int) -> None:
    """SIGHUP does not end programs that reload or reopen files on it."""
    done = _interrupted(script, "SIGHUP", "signal.default_int_handler")

    assert (status, "") == (done.returncode, done.stderr)


def test_ctrl_c_when_it_has_ended_is_no_traceback() -> None:
    """Even a program with an event loop, which keeps Python's handler, prints no traceback."""
    done = _run(ENDED)

    assert (-signal.SIGINT, "to_nsq: --topic required\n") == (done.returncode, done.stderr)


@pytest.mark.parametrize("words", [[], ["nsq_cat"], ["launch"]])
def test_a_tool_that_is_none(words: list[str]) -> None:
    """`python -m sparq.tools` lists the tools if the name is unknown or missing."""
    command = [sys.executable, "-m", "sparq.tools", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    name = words[0] if words else "nothing"
    assert (1, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith(
        f"python -m sparq.tools: {name} is not one of nsq_check, nsq_stat,"
    )


@pytest.mark.parametrize(("script", "words"), WORDS)
def test_what_flags_alone_can_answer_loads_no_more_than_flags(script: str, words: str) -> None:
    """Help, version and usage errors appear quickly: heavy packages are loaded only after them."""
    done = _run(LIGHT.replace("SCRIPT", script).replace("WORDS", repr(words.split())))

    loaded = set(done.stderr.splitlines()[-1].split())
    assert "sparq.scripts" in loaded
    assert set() == HEAVY & loaded
