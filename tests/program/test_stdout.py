"""The output of a program: its version, and errors when it cannot be written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import sparq
from sparq.program.stdout import version_line
from sparq.protocol import SPARQ_VERSION

PRINTS = 'exec "$0" -c "from sparq.tools.commands import to_nsq; to_nsq([\'--version\'])"'


@pytest.mark.parametrize(
    ("redirected", "reason"),
    [
        ("", ""),  # the pipe
        (">/dev/full", "failed to write to standard output - No space left on device\n"),
        (">&-", "failed to write to standard output - Bad file descriptor\n"),
    ],
)
def test_a_stdout_that_cannot_be_written_gives_status_1(redirected: str, reason: str) -> None:
    """If stdout cannot be written, the status is 1, with at most one line and no traceback."""
    reader, writer = os.pipe()
    os.close(reader)
    command = ["/bin/sh", "-c", f"{PRINTS} {redirected}", sys.executable]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=30, check=False
    )
    os.close(writer)

    assert (1, reason) == (done.returncode, done.stderr)


def test_the_version_line_has_nsqs_form() -> None:
    """The line has NSQ's form, which other programs match, followed by sparq's version."""
    assert re.fullmatch(
        rf"nsqd v1\.3\.0 \(built w/python3\.\d+\.\d+\) sparq {re.escape(SPARQ_VERSION)}",
        version_line("nsqd"),
    )
    assert re.match(r"\d+\.\d+", SPARQ_VERSION)


SCRIPTS = [
    "nsqd",
    "nsqlookupd",
    "nsq_check",
    "nsq_stat",
    "nsq_tail",
    "nsq_to_file",
    "nsq_to_http",
    "nsq_to_nsq",
    "to_nsq",
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_version_of_each_program_matches_nsqs_pattern(name: str) -> None:
    """`--version` of each installed program prints a line that NSQ's own pattern matches."""
    script = Path(sys.executable).with_name(name)
    done = subprocess.run([script, "--version"], capture_output=True, check=True, timeout=60)

    assert re.match(rf"{name} v\d+\.\d+\.\d+ \(built w/(\S+)\)", done.stdout.decode())


def test_the_version_constant_equals_the_packages_version() -> None:
    """The version constant, which a start reads at no cost, equals the installed package's."""
    assert SPARQ_VERSION == version("sparq-mq") == sparq.__version__
