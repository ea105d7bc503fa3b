"""What a program says of its version."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import sparq
from sparq.program.stdout import sparq_version, version_line


def test_the_version_is_the_one_that_clients_compare() -> None:
    """NSQ's form first, which programs match; sparq's own version comes after it."""
    assert re.fullmatch(
        rf"nsqd v1\.3\.0 \(built w/python3\.\d+\.\d+\) sparq {re.escape(sparq_version())}",
        version_line("nsqd"),
    )
    assert re.match(r"\d+\.\d+", sparq_version())


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
def test_every_program_is_known_by_the_pattern_that_nsq_clients_use(name: str) -> None:
    """The installed programs answer `--version` with a line that NSQ's own pattern matches."""
    script = Path(sys.executable).with_name(name)
    done = subprocess.run([script, "--version"], capture_output=True, check=True, timeout=60)

    assert re.match(rf"{name} v\d+\.\d+\.\d+ \(built w/(\S+)\)", done.stdout.decode())


def test_the_version_is_that_of_the_package() -> None:
    """The constant, which a start reads at no cost, and the installed package agree."""
    assert sparq_version() == version("sparq-mq") == sparq.__version__
