"""The documentation's pages: their blocks of code, and how their programs are run.

A program runs as a separate process in a separate folder, as a reader would run it, with warnings
as errors; only its addresses are changed. One that waits for a signal gets Ctrl-C once it has
printed what the page shows. Programs of Spark need Java and this interpreter:
`spark_environment` has both.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sparq.pipeline.java import ensure_java
from sparq.pipeline.session import use_this_python
from tests.support.run_program import run_program
from tests.support.spark_session import JAVA_OPTIONS
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
RUN_SECONDS = 30.0
SPARK_SECONDS = 240.0
SPARK_VARIABLES = re.compile(r"SPARK_|PYSPARK_")
"""Variables that another Spark session of this process may have set for its own children."""

CONNECT = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "zstandard": "zstandard",
}
"""What Spark Connect needs: packages by the modules they contain."""

PIPELINES = {**CONNECT, "yaml": "PyYAML"}
"""What spark-pipelines needs: packages by the modules they contain."""


class Result(NamedTuple):
    """The exit status of a program, and what it wrote."""

    status: int
    output: str
    errors: str


def text_of(page: str) -> str:
    """The text of a page, named by its path in the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """The text below a second-level heading."""
    return text_of(page).partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """The blocks of a language; "": those without one, such as outputs."""
    found = BLOCK.finditer(text)
    return [textwrap.dedent(block[3]) for block in found if block[2] == language]


def commands(text: str) -> list[tuple[str, str]]:
    """The commands after a prompt, each with the output shown after it."""
    parts = [
        part for block in blocks(text, "console") for part in re.split("^\\$ ", block, flags=re.M)
    ]
    return [(line, output) for line, _, output in (part.partition("\n") for part in parts) if line]


def lines_of(page: str, program: str) -> list[str]:
    """The command lines of a program."""
    return [line for line, _ in commands(text_of(page)) if line.split()[0] == program]


def with_zeros(text: str) -> str:
    """A text with every number replaced by 0: numbers differ from run to run."""
    return re.sub(r"\d+", "0", text).rstrip("\n")


def with_addresses(text: str, addresses: Mapping[str, str]) -> str:
    """The text with addresses replaced; each must occur in it."""
    for written, real in addresses.items():
        assert written in text
        text = text.replace(written, real)
    return text


def run_client(text: str, expected: str, folder: Path, *, waits: bool) -> Result:
    """Run a program that uses sparq's client; `waits`: it runs until Ctrl-C."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    with (folder / "output").open("wb") as output, (folder / "errors").open("wb") as errors:
        command = [sys.executable, "-u", "-W", "error", "program.py"]
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=errors)
    try:
        if waits:
            printed = folder / "output"
            wait_for(lambda: printed.read_bytes() == expected.encode(), RUN_SECONDS)
            process.send_signal(signal.SIGINT)
        status = process.wait(RUN_SECONDS)
    finally:
        process.kill()
        process.wait()
    return Result(status, (folder / "output").read_text(), (folder / "errors").read_text())


def spark_environment() -> dict[str, str]:
    """The environment of a process that starts Spark: its Java, its Python, its programs.

    Spark's scripts do not find their folder if its path has a space, unless SPARK_HOME is set.
    """
    ensure_java()
    use_this_python()
    kept = {name: value for name, value in os.environ.items() if not SPARK_VARIABLES.match(name)}
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return {
        **kept,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), kept["PATH"])),
        "SPARK_HOME": str(Path(spec.origin).parent),
        "PYSPARK_PYTHON": os.environ["PYSPARK_PYTHON"],
        "PYSPARK_DRIVER_PYTHON": os.environ["PYSPARK_DRIVER_PYTHON"],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DRIVER_MEMORY": "1g",
        "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
    }


def run_spark(text: str, folder: Path) -> str:
    """Run a program that starts Spark; returns its output.

    Raises:
        AssertionError: its exit status was not 0; the text is the end of its stderr.
    """
    (folder / "program.py").write_text(text, encoding="utf-8")
    program = [sys.executable, "program.py"]
    ran = run_program(program, cwd=folder, env=spark_environment(), seconds=SPARK_SECONDS)
    assert 0 == ran.returncode, ran.stderr[-4000:]
    return ran.stdout


def missing_packages(packages: Mapping[str, str]) -> str:
    """The names of packages that are not installed, separated by commas."""
    return ", ".join(name for module, name in packages.items() if not _is_there(module))


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that contains the module is missing
        return False
