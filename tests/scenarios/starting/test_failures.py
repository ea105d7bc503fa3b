"""A process that cannot start exits with status 1, and logs a FATAL line with NSQ's text last."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import spawn_nsqd

FATAL = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: (.*)\n")


def last_words(
    *flags: str, folder: Path, status: int = 1, program: tuple[str, str] = ("-m", "sparq.nsqd")
) -> str:
    """Start nsqd, which must fail; return the text of its last line, FATAL."""
    command = [sys.executable, *program, *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (status, b""), done.stderr
    last = done.stderr.decode().splitlines(keepends=True)[-1]
    found = FATAL.fullmatch(last)
    assert found is not None, last
    assert "Traceback" not in done.stderr.decode()
    return found[1]


def test_errors_are_reported_one_at_a_time(tmp_path: Path) -> None:
    """Errors come one at a time, in NSQ's order and words: data path, options, listeners, data."""
    held = tmp_path / "held"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sparq.json").write_text("{")
    data = (tmp_path / "data").resolve()
    wrong = {
        f"--data-path={held}": (
            f"failed to lock data-path: cannot flock directory {held} - resource temporarily "
            "unavailable (possibly in use by another instance of nsqd)"
        ),
        "--max-deflate-level=0": "--max-deflate-level must be [1,9]",
        "--node-id=1024": "--node-id must be [0,1024)",
        "--tls-cert=none.pem": (
            "failed to build TLS config - open none.pem: no such file or directory"
        ),
        "--tls-required": "cannot require TLS client connections without TLS key and cert",
        "--auth-http-request-method=put": "--auth-http-request-method must be post or get",
        "--e2e-processing-latency-percentile=0.5,1.5": (
            "invalid E2E processing latency percentile: 1.5"
        ),
        "--http-address=192.0.2.1:1": (
            "listen (192.0.2.1:1) failed - cannot assign requested address"
        ),
    }
    always = (f"--data-path={data}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    with spawn_nsqd(tmp_path, name="held"):
        for number, text in enumerate(wrong.values()):
            # If a flag is given twice the last value counts: the remaining mistakes follow.
            flags = [*always, *list(wrong)[number:]]
            assert last_words(*flags, folder=tmp_path) == f"failed to instantiate nsqd - {text}"

    said = last_words(*always, folder=tmp_path)
    assert said.startswith(f"failed to load metadata - {data}/sparq.json is damaged: ")


def test_a_module_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """A start without file descriptors left for its modules says so, without a traceback."""
    module = "sparq.nsqd.serving"
    program = f"""
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise OSError(24, "Too many open files", name)
sys.meta_path.insert(0, Refusing())
import runpy
runpy.run_module("sparq.nsqd", run_name="__main__", alter_sys=True)
"""
    flags = [f"--{kind}-address=127.0.0.1:0" for kind in ("tcp", "http")]
    said = last_words(*flags, folder=tmp_path, program=("-c", program))
    assert said == (
        f"failed to instantiate nsqd - the module {module} cannot be loaded: "
        f"[Errno 24] Too many open files: '{module}'"
    )


@pytest.mark.parametrize("facts", [b"", b'{"format": 99, "node_id": 1, "retired_index": "0"}'])
def test_unreadable_metadata_are_not_overwritten(tmp_path: Path, facts: bytes) -> None:
    """nsqd does not overwrite metadata that it cannot read or whose format it does not know."""
    (tmp_path / "sparq.json").write_bytes(facts)
    last_words("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", folder=tmp_path)

    assert (tmp_path / "sparq.json").read_bytes() == facts


def test_a_data_path_locked_by_gos_nsqd_is_refused(tmp_path: Path) -> None:
    """nsqd refuses a data path that Go's nsqd has locked: importing it would lose messages."""
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        said = last_words("--http-address=127.0.0.1:0", folder=tmp_path)
    finally:
        os.close(held)

    assert said.startswith("failed to instantiate nsqd - failed to lock data-path: cannot flock ")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_data_path_is_not_created(tmp_path: Path) -> None:
    """nsqd does not create its data path: a mistyped one would look like lost messages."""
    said = last_words("--data-path=nowhere", folder=tmp_path)

    place = tmp_path.resolve() / "nowhere"
    assert said == (
        f"failed to instantiate nsqd - failed to lock data-path: open {place}: "
        "no such file or directory"
    )


def test_a_data_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """If nsqd cannot write its metadata, the error is NSQ's `failed to persist metadata`."""
    (tmp_path / "sparq.json.new").mkdir()
    said = last_words("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", folder=tmp_path)

    assert said.startswith("failed to persist metadata - ")
