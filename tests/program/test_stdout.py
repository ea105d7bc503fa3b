"""What a program says and nobody takes: a pipe without a reader, a full disk, a closed output."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAYS = 'exec "$0" -c "from sparq.tools.commands import to_nsq; to_nsq([\'--version\'])"'


@pytest.mark.parametrize(
    ("redirected", "reason"),
    [
        ("", ""),  # the pipe
        (">/dev/full", "failed to write to standard output - No space left on device\n"),
        (">&-", "failed to write to standard output - Bad file descriptor\n"),
    ],
)
def test_nobody_takes_what_is_said(redirected: str, reason: str) -> None:
    """Exit status 1 and at most a line: no traceback, neither then nor when Python ends."""
    reader, writer = os.pipe()
    os.close(reader)
    command = ["/bin/sh", "-c", f"{SAYS} {redirected}", sys.executable]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=30, check=False
    )
    os.close(writer)

    assert (1, reason) == (done.returncode, done.stderr)
