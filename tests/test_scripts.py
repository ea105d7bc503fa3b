"""The console scripts while their programs are loaded and after they have ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")
INTERRUPTED = """
import os, signal, sys
from sparq import scripts

class AtImport:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sparq.program.flags":
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
        for command in ("run", "pipeline", "top", "admin", "token")
        for flag in ("--help", "--version")
    ),
    ("nsq_tail", "--no-such-flag"),
]


def _interrupted(script: str, number: str, handler: str) -> subprocess.CompletedProcess[str]:
    program = INTERRUPTED.replace("SCRIPT", script).replace("NUMBER", number)
    return _run(program.replace("HANDLER", handler))


def _run(program: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_each_script_is_a_program_of_that_name() -> None:
    """Each script in pyproject.toml calls the function of its name in `sparq.scripts`."""
    assert {name: f"sparq.scripts:{name}" for name in SCRIPTS} == SCRIPTS


@pytest.mark.parametrize(("script", "status"), [("nsqd", 0), ("nsq_tail", -signal.SIGINT)])
def test_ctrl_c_while_it_is_loaded_ends_it_without_a_word(script: str, status: int) -> None:
    """A daemon ends with 0, a tool by SIGINT; neither prints anything, such as a traceback."""
    done = _interrupted(script, "SIGINT", "signal.default_int_handler")

    assert (status, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("script", SCRIPTS)
def test_sigterm_while_it_is_loaded_ends_process_1(script: str) -> None:
    """SIGTERM during the imports ends the first process of a container, too.

    There the kernel drops a signal that has no handler. Daemons end with 0, the others with 143.
    """
    if os.geteuid() or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    program = INTERRUPTED.replace("SCRIPT", script).replace("NUMBER", "SIGTERM")
    program = program.replace("HANDLER", "signal.default_int_handler")
    done = _run(program, "unshare", "--pid", "--fork", "--kill-child")

    status = 0 if script in DAEMONS else 128 + signal.SIGTERM
    assert (status, "", "") == (done.returncode, done.stdout, done.stderr)


def test_sigterm_at_any_time_of_a_start_ends_a_daemon(tmp_path: Path) -> None:
    """SIGTERM ends a daemon whenever it comes: by the signal before any code of its own ran."""
    delays = [0.02 * 1.5**n for n in range(9)]
    command = [sys.executable, "-m", "sparq.nsqd", "--tcp-address=127.0.0.1:0"]
    for delay in delays:
        with subprocess.Popen(
            [*command, "--http-address=127.0.0.1:0", f"--data-path={tmp_path}"],
            stderr=subprocess.DEVNULL,
        ) as process:
            time.sleep(delay)
            process.terminate()
            assert process.wait(20) in (0, -signal.SIGTERM), delay


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
